"""Expanding ids, lists and what is only there when asked for."""

from typing import Any

import pytest

from services.sandbox.stripe.expansion import expand
from services.sandbox.stripe.refusals import StripeRefusal
from services.sandbox.stripe.resources.checkout_sessions import open_session
from services.sandbox.stripe.resources.customers import create_customer
from services.sandbox.world import World
from tests.sandbox.stripe.conftest import SESSION


@pytest.fixture
def paid(world: World) -> dict[str, Any]:
    customer = create_customer(world.books, email="a@example.com")["id"]
    params = {name: value for name, value in SESSION.items() if name != "customer_email"} | {"customer": customer}
    return world.buyer.complete(open_session(world.books, params)["id"])


def test_ids_become_objects_in_a_copy(world: World, paid: dict[str, Any]) -> None:
    shown = expand(paid, ["customer", "payment_intent.customer", "line_items.data.price.product"], world.books)
    assert shown["customer"]["email"] == "a@example.com"
    assert shown["payment_intent"]["customer"]["id"] == paid["customer"]
    assert shown["line_items"]["data"][0]["price"]["product"]["name"] == "Course materials"
    assert isinstance(paid["customer"], str)
    assert "line_items" not in paid
    shown["payment_intent"]["amount"] = 1
    assert world.books.get("payment_intent", paid["payment_intent"])["amount"] == 4900


def test_a_list_is_expanded_through_data(world: World, paid: dict[str, Any]) -> None:
    listed = {"object": "list", "data": [paid, paid]}
    shown = expand(listed, ["data.payment_intent"], world.books)
    assert [row["payment_intent"]["status"] for row in shown["data"]] == ["succeeded", "succeeded"]


def test_null_expands_to_null(world: World, session_id: str) -> None:
    session = world.books.get("checkout.session", session_id)
    shown = expand(session, ["payment_intent.customer", "invoice"], world.books)
    assert (shown["payment_intent"], shown["invoice"]) == (None, None)


@pytest.mark.parametrize(
    "path", ["metadata", "nothing", "payment_intent.status", "line_items.price", "status.x", "data.customer"]
)
def test_what_cannot_be_expanded_is_named(world: World, paid: dict[str, Any], path: str) -> None:
    with pytest.raises(StripeRefusal) as refused:
        expand(paid, [path], world.books)
    assert str(refused.value) == f"This property cannot be expanded ({path})."
    assert refused.value.error["param"] == "expand"


def test_what_the_sandbox_does_not_hold_is_said_plainly(world: World, paid: dict[str, Any]) -> None:
    with pytest.raises(
        StripeRefusal, match="Expanding payment_method exists at Stripe, but this sandbox does not play"
    ):
        expand(paid, ["payment_intent.payment_method"], world.books)


def test_depth_is_bounded(world: World, paid: dict[str, Any]) -> None:
    with pytest.raises(StripeRefusal, match="more than 4 levels"):
        expand(paid, ["a.b.c.d.e"], world.books)
