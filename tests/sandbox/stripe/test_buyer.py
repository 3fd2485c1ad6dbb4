"""What a buyer does, and the events it makes."""

import pytest

from services.sandbox.stripe.buyer import Payment
from services.sandbox.stripe.refusals import StripeRefusal
from services.sandbox.stripe.resources.checkout_sessions import open_session
from services.sandbox.stripe.resources.customers import create_customer
from services.sandbox.world import World
from tests.sandbox.stripe.conftest import SESSION


def told(world: World) -> list[tuple[str, str]]:
    """Type and the state it carries, of the events since the Session was opened."""
    rows = [row for row in world.books.table("event").values() if row["type"].split(".")[0] not in ("product", "price")]
    return [
        (row["type"], row["data"]["object"].get("payment_status") or row["data"]["object"].get("status", ""))
        for row in rows
    ]


def test_a_card_is_paid_at_once(world: World, session_id: str) -> None:
    session = world.buyer.complete(session_id, email="ada@example.com", name="Ada")
    assert (session["status"], session["payment_status"], session["url"]) == ("complete", "paid", None)
    assert session["customer_details"]["email"] == "ada@example.com"
    assert session["customer_details"]["name"] == "Ada"
    assert session["customer"] is None, "created only if required"
    intent = world.books.get("payment_intent", session["payment_intent"])
    assert (intent["status"], intent["amount_received"], intent["payment_method_types"]) == (
        "succeeded",
        4900,
        ["card"],
    )
    assert intent["metadata"] == {"rowclaim_slice": "fulfillment"}
    assert world.books.get("charge", intent["latest_charge"])["payment_intent"] == intent["id"]
    assert intent["payment_method"].startswith("pm_")
    assert told(world) == [
        ("payment_intent.created", "requires_payment_method"),
        ("charge.succeeded", "succeeded"),
        ("payment_intent.succeeded", "succeeded"),
        ("checkout.session.completed", "paid"),
    ]


@pytest.mark.parametrize("succeeded", [True, False])
def test_a_bank_debit_is_complete_at_once_and_decided_later(world: World, session_id: str, succeeded: bool) -> None:
    session = world.buyer.complete(session_id, Payment.UNPAID)
    assert (session["status"], session["payment_status"]) == ("complete", "unpaid")
    settled = world.buyer.settle(session_id, succeeded=succeeded)
    assert settled["payment_status"] == ("paid" if succeeded else "unpaid")
    last = (
        [
            ("charge.succeeded", "succeeded"),
            ("payment_intent.succeeded", "succeeded"),
            ("checkout.session.async_payment_succeeded", "paid"),
        ]
        if succeeded
        else [
            ("payment_intent.payment_failed", "requires_payment_method"),
            ("checkout.session.async_payment_failed", "unpaid"),
        ]
    )
    assert told(world) == [
        ("payment_intent.created", "requires_payment_method"),
        ("payment_intent.processing", "processing"),
        ("checkout.session.completed", "unpaid"),
        *last,
    ]
    with pytest.raises(StripeRefusal, match="nothing is left to settle"):
        world.buyer.settle(session_id, succeeded=True)


def test_an_event_keeps_the_state_of_its_moment(world: World, session_id: str) -> None:
    world.buyer.complete(session_id, Payment.UNPAID)
    world.buyer.settle(session_id, succeeded=True)
    completed = next(row for row in world.books.table("event").values() if row["type"] == "checkout.session.completed")
    assert completed["data"]["object"]["payment_status"] == "unpaid"
    assert world.books.get("checkout.session", session_id)["payment_status"] == "paid"


def test_what_costs_nothing_needs_no_payment(world: World) -> None:
    free = {"currency": "usd", "unit_amount": 0, "product_data": {"name": "Gift"}}
    session_id = open_session(world.books, SESSION | {"line_items": [{"price_data": free, "quantity": 1}]})["id"]
    session = world.buyer.complete(session_id)
    assert (session["payment_status"], session["payment_intent"]) == ("no_payment_required", None)
    assert told(world) == [("checkout.session.completed", "no_payment_required")]
    with pytest.raises(StripeRefusal, match="No such payment_intent"):
        world.buyer.settle(session_id, succeeded=True)


def test_a_page_is_submitted_once(world: World, session_id: str) -> None:
    world.buyer.complete(session_id)
    with pytest.raises(StripeRefusal, match="complete, not open"):
        world.buyer.complete(session_id)
    with pytest.raises(StripeRefusal, match="complete, not open"):
        world.buyer.leave(session_id)


def test_walking_away_expires(world: World, session_id: str) -> None:
    assert world.buyer.leave(session_id)["status"] == "expired"
    assert told(world) == [("checkout.session.expired", "unpaid")]
    with pytest.raises(StripeRefusal, match="expired, not complete"):
        world.buyer.settle(session_id, succeeded=True)


def test_the_address_is_the_pages_else_the_sessions_else_the_customers(world: World) -> None:
    def address(params: dict[str, object], email: str | None = None) -> str:
        session = world.buyer.complete(open_session(world.books, SESSION | params)["id"], email=email)
        found: str = session["customer_details"]["email"]
        return found

    customer = create_customer(world.books, email="known@example.com")["id"]
    without = {name: value for name, value in SESSION.items() if name != "customer_email"}
    assert address({}, "typed@example.com") == "typed@example.com"
    assert address({}) == "buyer@example.com"
    known = world.buyer.complete(open_session(world.books, without | {"customer": customer})["id"])
    assert known["customer_details"]["email"] == "known@example.com"
    nobody = world.buyer.complete(open_session(world.books, without)["id"])
    assert nobody["customer_details"]["email"] == "buyer@example.com"
