"""Charges: read as the library declares them, taken back by the shop or by the buyer's bank."""

from typing import Any

import pytest
import stripe
from stripe import Charge, Dispute, Event

from services.sandbox.stripe.buyer import Payment
from services.sandbox.stripe.expansion import expand
from services.sandbox.stripe.refusals import StripeRefusal
from services.sandbox.stripe.resources.charges import dispute, find_charge, refund
from services.sandbox.stripe.resources.checkout_sessions import open_session
from services.sandbox.world import World
from tests.sandbox.stripe.conftest import SESSION
from tests.sandbox.stripe.sdk_types import check


def last_event(world: World) -> dict[str, Any]:
    return list(world.books.table("event").values())[-1]


@pytest.mark.parametrize(("payment", "prefix"), [(Payment.PAID, "ch_"), (Payment.UNPAID, "py_")])
async def test_a_charge_is_read_and_leads_to_its_session(
    client: stripe.StripeClient, world: World, session_id: str, payment: Payment, prefix: str
) -> None:
    session = world.buyer.complete(session_id, payment, email="ada@example.com")
    if payment is Payment.UNPAID:
        with pytest.raises(StripeRefusal, match="was not paid"):
            find_charge(world.books, session_id)
        world.buyer.settle(session_id, succeeded=True)
    intent = world.books.get("payment_intent", session["payment_intent"])
    charge = await client.v1.charges.retrieve_async(intent["latest_charge"])
    assert charge.id.startswith(prefix)
    assert (charge.amount, charge.refunded, charge.disputed, charge.paid) == (4900, False, False, True)
    assert (charge.payment_intent, charge.metadata["rowclaim_slice"]) == (intent["id"], "fulfillment")
    assert charge.billing_details.email == "ada@example.com"
    listed = await client.v1.checkout.sessions.list_async({"payment_intent": str(charge.payment_intent)})
    assert [one.id for one in listed.data] == [session_id]
    whole = expand(intent, ["latest_charge.payment_intent"], world.books)
    assert whole["latest_charge"]["payment_intent"]["id"] == intent["id"]
    check(Charge, find_charge(world.books, session_id))


async def test_a_refund_is_whole_when_nothing_is_left(world: World, session_id: str) -> None:
    world.buyer.complete(session_id)
    partly = refund(world.books, session_id, 900)
    assert (partly["amount_refunded"], partly["refunded"]) == (900, False)
    event = last_event(world)
    check(Event, event)
    assert (event["type"], event["data"]["object"]["refunded"]) == ("charge.refunded", False)
    with pytest.raises(StripeRefusal, match=r"\(4001\) is greater than unrefunded amount on charge \(4000\)"):
        refund(world.books, session_id, 4001)
    with pytest.raises(StripeRefusal, match=r"\(0\)"):
        refund(world.books, session_id, 0)
    wholly = refund(world.books, session_id)
    assert (wholly["amount_refunded"], wholly["refunded"]) == (4900, True)
    check(Charge, wholly)
    event = last_event(world)
    assert (event["type"], event["data"]["object"]["refunded"]) == ("charge.refunded", True)
    with pytest.raises(StripeRefusal, match="already been refunded"):
        refund(world.books, session_id)


@pytest.mark.parametrize("payment", Payment)
async def test_a_dispute_names_its_charge(world: World, session_id: str, payment: Payment) -> None:
    world.buyer.complete(session_id, payment)
    if payment is Payment.UNPAID:
        world.buyer.settle(session_id, succeeded=True)
    refund(world.books, session_id, 900)
    made = dispute(world.books, session_id, "product_not_received")
    charge = find_charge(world.books, session_id)
    check(Dispute, made)
    assert (made["charge"], made["payment_intent"]) == (charge["id"], charge["payment_intent"])
    assert (made["amount"], made["reason"], made["status"]) == (4000, "product_not_received", "needs_response")
    assert charge["disputed"] is True
    check(Charge, charge)
    event = last_event(world)
    check(Event, event)
    assert (event["type"], event["data"]["object"]["id"]) == ("charge.dispute.created", made["id"])
    with pytest.raises(StripeRefusal, match="charged back"):
        refund(world.books, session_id)
    with pytest.raises(StripeRefusal, match="disputed already"):
        dispute(world.books, session_id)


async def test_what_was_free_or_is_unknown_has_no_charge(client: stripe.StripeClient, world: World) -> None:
    free = {"currency": "usd", "unit_amount": 0, "product_data": {"name": "Gift"}}
    session_id = open_session(world.books, SESSION | {"line_items": [{"price_data": free, "quantity": 1}]})["id"]
    world.buyer.complete(session_id)
    with pytest.raises(StripeRefusal, match="was not paid"):
        refund(world.books, session_id)
    with pytest.raises(StripeRefusal, match=r"No such checkout\.session"):
        dispute(world.books, "cs_none")
    with pytest.raises(stripe.InvalidRequestError, match="No such charge"):
        await client.v1.charges.retrieve_async("ch_none")
