"""PaymentIntents, read."""

import pytest
import stripe
from stripe import PaymentIntent

from services.sandbox.stripe.buyer import Payment
from services.sandbox.stripe.resources.checkout_sessions import open_session
from services.sandbox.world import World
from tests.sandbox.stripe.conftest import SESSION
from tests.sandbox.stripe.sdk_types import check


async def test_a_payment_is_read_and_listed_by_customer(client: stripe.StripeClient, world: World) -> None:
    always = SESSION | {"customer_creation": "always"}
    first, second = [world.buyer.complete(open_session(world.books, always)["id"]) for _ in range(2)]
    intent = await client.v1.payment_intents.retrieve_async(first["payment_intent"])
    assert (intent.status, intent.amount, intent.customer) == ("succeeded", 4900, first["customer"])
    listed = await client.v1.payment_intents.list_async({"customer": second["customer"]})
    assert [one.id for one in listed.data] == [second["payment_intent"]]
    assert len((await client.v1.payment_intents.list_async({})).data) == 2


@pytest.mark.parametrize("succeeded", [True, False])
def test_a_payment_has_the_declared_shape_in_every_state(world: World, session_id: str, succeeded: bool) -> None:
    session = world.buyer.complete(session_id, Payment.UNPAID)
    intent = world.books.get("payment_intent", session["payment_intent"])
    check(PaymentIntent, intent)
    world.buyer.settle(session_id, succeeded=succeeded)
    check(PaymentIntent, intent)
    assert intent["status"] == ("succeeded" if succeeded else "requires_payment_method")


async def test_an_unknown_payment_is_404(client: stripe.StripeClient) -> None:
    with pytest.raises(stripe.InvalidRequestError, match="No such payment_intent"):
        await client.v1.payment_intents.retrieve_async("pi_none")
