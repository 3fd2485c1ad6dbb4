"""Sessions through Stripe's own library, their shape against its declarations, and every way to be refused."""

from typing import Any

import httpx
import pytest
import stripe
from stripe import Event, LineItem, PaymentIntent
from stripe.checkout import Session

from services.sandbox.stripe.buyer import Payment
from services.sandbox.stripe.resources.checkout_sessions import open_session
from services.sandbox.world import World
from tests.sandbox.stripe.conftest import SESSION
from tests.sandbox.stripe.sdk_types import check

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


def changed(**changes: Any) -> Any:
    """A good Session with some parameters changed; None takes one away."""
    return {name: value for name, value in (SESSION | changes).items() if value is not None}


def line(currency: str, amount: int) -> dict[str, Any]:
    data = {"currency": currency, "unit_amount": amount, "product_data": {"name": "x"}}
    return {"price_data": data, "quantity": 1}


async def test_a_session_goes_round_through_the_library(client: stripe.StripeClient, world: World) -> None:
    created = await client.v1.checkout.sessions.create_async(SESSION)
    assert created.id.startswith("cs_test_a1")
    assert (created.status, created.payment_status, created.mode) == ("open", "unpaid", "payment")
    assert (created.amount_total, created.currency) == (4900, "usd")
    assert created.url is not None
    assert created.metadata is not None
    assert created.metadata.to_dict() == SESSION["metadata"]
    assert created.payment_intent is None, "there is none before somebody pays"
    assert created.expires_at - created.created == 24 * 3600
    retrieved = await client.v1.checkout.sessions.retrieve_async(created.id)
    assert retrieved.to_dict() == created.to_dict()
    assert [(entry.effect, entry.subject) for entry in world.log.entries(method="POST")] == [
        ("checkout_session_created", created.id)
    ]


@pytest.mark.parametrize("end", ["open", "paid", "unpaid", "settled", "failed", "expired", "free", "embedded"])
async def test_a_session_has_the_declared_shape_in_every_state(raw: httpx.AsyncClient, world: World, end: str) -> None:
    params = SESSION
    if end == "free":
        params = changed(line_items=[line("eur", 0)])
    if end == "embedded":
        params = changed(success_url=None, ui_mode="embedded_page", return_url="https://shop.example/back")
    session_id = open_session(world.books, params)["id"]
    if end in ("paid", "free"):
        world.buyer.complete(session_id, name="Ada Buyer")
    if end in ("unpaid", "settled", "failed"):
        world.buyer.complete(session_id, Payment.UNPAID)
    if end in ("settled", "failed"):
        world.buyer.settle(session_id, succeeded=end == "settled")
    if end == "expired":
        world.buyer.leave(session_id)
    shown = (await raw.get(f"/v1/checkout/sessions/{session_id}")).json()
    check(Session, shown)
    everything = {
        "expand[0]": "line_items",
        "expand[1]": "payment_intent",
        "expand[2]": "line_items.data.price.product",
    }
    expanded = (await raw.get(f"/v1/checkout/sessions/{session_id}", params=everything)).json()
    check(Session, expanded)
    if expanded["payment_intent"] is not None:
        check(PaymentIntent, expanded["payment_intent"])
    check(LineItem, expanded["line_items"]["data"][0])
    assert expanded["line_items"]["data"][0]["price"]["product"]["name"] in ("Course materials", "x")
    for event in world.books.table("event").values():
        check(Event, event)


async def test_unasked_line_items_are_not_there(client: stripe.StripeClient, session_id: str) -> None:
    plain = await client.v1.checkout.sessions.retrieve_async(session_id)
    assert "line_items" not in plain
    items = await client.v1.checkout.sessions.line_items.list_async(session_id)
    assert [(item.description, item.amount_total) for item in items.data] == [("Course materials", 4900)]


async def test_sessions_are_listed_by_customer_and_more(client: stripe.StripeClient, world: World) -> None:
    customer = await client.v1.customers.create_async({"email": "a@example.com", "metadata": {"k": "v"}})
    mine = [open_session(world.books, changed(customer=customer.id, customer_email=None))["id"] for _ in range(3)]
    other = open_session(world.books, SESSION)["id"]
    world.buyer.complete(mine[0])
    paid = world.buyer.complete(other, email="other@example.com")

    async def listed(**asked: Any) -> list[str]:
        params: Any = asked
        return [one.id for one in (await client.v1.checkout.sessions.list_async(params)).data]

    assert await listed(customer=customer.id) == mine[::-1], "newest first"
    assert await listed(customer=customer.id, status="complete") == [mine[0]]
    assert await listed(payment_intent=paid["payment_intent"]) == [other]
    assert await listed(customer_details={"email": "other@example.com"}) == [other]
    assert await listed(created={"gt": world.clock.now_s() + 5}) == []
    page = await client.v1.checkout.sessions.list_async({"customer": customer.id, "limit": 1})
    assert page.has_more
    assert [one.id async for one in page.auto_paging_iter()] == mine[::-1]


async def test_a_session_expires_by_the_api_and_by_time(client: stripe.StripeClient, world: World) -> None:
    first, second = [open_session(world.books, SESSION)["id"] for _ in range(2)]
    expired = await client.v1.checkout.sessions.expire_async(first)
    assert (expired.status, expired.url) == ("expired", None)
    with pytest.raises(stripe.InvalidRequestError, match="status in"):
        await client.v1.checkout.sessions.expire_async(first)
    world.clock.advance(24 * 3600)
    assert (await client.v1.checkout.sessions.retrieve_async(second)).status == "expired"
    with pytest.raises(Exception, match="expired, not open"):
        world.buyer.complete(second)
    types = [event["type"] for event in world.books.table("event").values()]
    assert types.count("checkout.session.expired") == 2


async def test_prices_and_customers_can_be_referred_to(client: stripe.StripeClient, world: World) -> None:
    price = await client.v1.prices.create_async(
        {"currency": "usd", "unit_amount": 1500, "product_data": {"name": "Book"}}
    )
    session = await client.v1.checkout.sessions.create_async(
        changed(line_items=[{"price": price.id, "quantity": 3}], customer_creation="always")
    )
    assert session.amount_total == 4500
    done = world.buyer.complete(session.id, email="new@example.com")
    customer = await client.v1.customers.retrieve_async(done["customer"])
    assert customer.email == "new@example.com"


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"mode": None}, "mode", "parameter_missing"),
        ({"line_items": None}, "line_items", "parameter_missing"),
        ({"success_url": None}, "success_url", "parameter_missing"),
        ({"return_url": "https://x.example"}, "return_url", None),
        ({"ui_mode": "embedded_page"}, "return_url", "parameter_missing"),
        ({"coupon": "c"}, "coupon", "parameter_unknown"),
        ({"payment_method_types": ["card"]}, "payment_method_types", "parameter_unknown"),
        ({"subscription_data": {"x": "y"}}, "subscription_data", "sandbox_not_played"),
        ({"mode": "subscription"}, "mode", "sandbox_not_played"),
        ({"mode": "barter"}, "mode", None),
        ({"ui_mode": "hosted"}, "ui_mode", None),
        ({"customer": "cus_none", "customer_email": None}, "customer", "resource_missing"),
        ({"customer": "cus_none"}, "customer", None),
        ({"customer": "cus_none", "customer_email": None, "customer_creation": "always"}, "customer", None),
        ({"expires_at": 1}, "expires_at", None),
        ({"metadata": {"k" * 41: "v"}}, "metadata", None),
        ({"metadata": {"k": "v" * 501}}, "metadata[k]", None),
        ({"client_reference_id": "x" * 201}, "client_reference_id", "parameter_invalid_string"),
        ({"success_url": ""}, "success_url", "parameter_invalid_empty"),
        ({"line_items": [{"quantity": 1}]}, "line_items[0]", None),
        ({"line_items": [{"price": "price_none", "quantity": 1}]}, "line_items[0][price]", "resource_missing"),
        ({"line_items": [{"price": "p"}]}, "line_items[0][quantity]", "parameter_missing"),
        (
            {"line_items": [{"price_data": {"currency": "usd", "amount": 1}, "quantity": 1}]},
            "line_items[0][price_data][amount]",
            "parameter_unknown",
        ),
        (
            {"line_items": [{"price_data": {"currency": "usd", "unit_amount": "many", "product": "p"}, "quantity": 1}]},
            "line_items[0][price_data][unit_amount]",
            "parameter_invalid_integer",
        ),
    ],
)
async def test_a_session_is_refused_in_stripes_words(
    client: stripe.StripeClient, world: World, changes: dict[str, Any], param: str, code: str | None
) -> None:
    with pytest.raises(stripe.InvalidRequestError) as refused:
        await client.v1.checkout.sessions.create_async(changed(**changes))
    assert (refused.value.http_status, refused.value.param, refused.value.code) == (400, param, code)
    assert world.books.table("checkout.session") == {}


async def test_amounts_and_currencies_must_fit(client: stripe.StripeClient) -> None:
    with pytest.raises(stripe.InvalidRequestError, match=r"at least \$0\.50") as small:
        await client.v1.checkout.sessions.create_async(changed(line_items=[line("usd", 49)]))
    assert small.value.code == "amount_too_small"
    with pytest.raises(stripe.InvalidRequestError, match="same currency"):
        await client.v1.checkout.sessions.create_async(changed(line_items=[line("usd", 500), line("eur", 500)]))


async def test_an_unknown_session_is_404(client: stripe.StripeClient) -> None:
    with pytest.raises(stripe.InvalidRequestError, match=r"No such checkout\.session: 'cs_none'") as missing:
        await client.v1.checkout.sessions.retrieve_async("cs_none")
    assert (missing.value.http_status, missing.value.code) == (404, "resource_missing")
