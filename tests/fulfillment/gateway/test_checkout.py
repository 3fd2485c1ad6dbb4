"""Checkout Sessions and charges at Stripe: the real client against the sandbox, and every way it can fail."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final
from urllib.parse import parse_qs

import httpx
import pytest
from pydantic import SecretStr

from services.fulfillment.gateway.checkout import CheckoutSettings, Sale, StripeCheckout, open_checkout
from services.fulfillment.machine import (
    Charge,
    ChargeAnswer,
    ChargeMissing,
    Fetched,
    KeyReused,
    NewSession,
    Opened,
    SessionAnswer,
    SessionMisconfigured,
    SessionMissing,
    SessionOpened,
    SessionTrouble,
    TakenBack,
)
from services.kernel.errors import Retryable
from services.kernel.gate import Gates
from services.sandbox.control import SandboxControl
from services.sandbox.faults import Act, Fault, Moment
from services.sandbox.log import Vendor
from services.sandbox.stripe.api import DEFAULT_KEY
from services.sandbox.stripe.buyer import Payment
from services.sandbox.stripe.resources.prices import DEFAULT_PRICE
from services.sandbox.wire import (
    AddFault,
    CompleteSession,
    CreateSession,
    DisputeCharge,
    RefundCharge,
    SettleSession,
)
from services.sandbox.world import Urls, World
from services.vendors.http import http_client
from services.vendors.stripe import stripe_client
from tests.fixtures.fulfillment import session_params
from tests.fulfillment.gateway.test_invite import OpenGates
from tests.waiting import wait_until

SALE: Final = Sale("price_1", "https://shop.test/thanks?session={CHECKOUT_SESSION_ID}", "https://shop.test/")


def new(**fields: Any) -> NewSession:
    given: dict[str, Any] = {
        "user_id": "user_1",
        "handle": "Octo-Cat",
        "account_id": 583231,
        "email": "ada@example.com",
        "customer_id": None,
        "idempotency_key": None,
    }
    return NewSession(**given | fields)


@pytest.fixture
async def shop(urls: Urls, world: World) -> AsyncIterator[StripeCheckout]:
    """A shop at the sandbox, with what there is to sell."""
    async with http_client() as http:
        sale = Sale(DEFAULT_PRICE, SALE.success_url, SALE.cancel_url)
        client = stripe_client(DEFAULT_KEY, http, api_url=urls.stripe)
        yield StripeCheckout(client, Gates(OpenGates()), sale)


async def test_a_session_is_fetched_as_it_is_now(urls: Urls, control: SandboxControl) -> None:
    closing: list[Callable[[], Awaitable[None]]] = []
    checkout = open_checkout(SecretStr(DEFAULT_KEY), urls.stripe, Gates(OpenGates()), closing.append, sale=None)
    session = await control.do(CreateSession(session_params("octocat")))
    await control.do(CompleteSession(session["id"], email="buyer@example.com"))
    answer = await checkout.fetch(session["id"])
    assert isinstance(answer, Fetched)
    assert isinstance(answer.session, dict)
    assert (answer.session["id"], answer.session["payment_status"]) == (session["id"], "paid")
    assert answer.session["metadata"] == {"rowclaim_slice": "fulfillment", "github_username": "octocat"}
    assert await checkout.fetch("cs_test_unknown") == SessionMissing()
    wrong = open_checkout(SecretStr("sk_test_wrong"), urls.stripe, Gates(OpenGates()), closing.append, sale=None)
    assert await wrong.fetch(session["id"]) == SessionMisconfigured("401")
    for close in closing:
        await close()
    assert len(closing) == 2


def _checkout(answer: httpx.Response | type[Exception]) -> StripeCheckout:
    async def answered(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, httpx.Response):
            return answer
        raise answer("planted")

    http = http_client(httpx.MockTransport(answered))
    return StripeCheckout(stripe_client("sk_test_x", http, api_url="https://stripe.test"), Gates(OpenGates()), SALE)


def _error(status: int, **error: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": "no", **error}})


@pytest.mark.parametrize(
    ("answer", "meant"),
    [
        (_error(404, code="resource_missing", type="invalid_request_error"), SessionMissing()),
        (_error(400, type="invalid_request_error"), SessionMissing()),
        (_error(401), SessionMisconfigured("401")),
        (_error(403), SessionMisconfigured("403")),
        (_error(429, code="rate_limit"), SessionTrouble("rate_limit")),
        (_error(409, code="lock_timeout"), SessionTrouble("lock_timeout")),
        (_error(500), SessionTrouble("500")),
        (httpx.Response(502, html="<h1>Bad gateway</h1>"), SessionTrouble("502")),
        (httpx.Response(200, content=b'{"id": "cs_'), SessionTrouble("200")),
        (httpx.Response(200, content=b"[]"), Fetched([])),
        (httpx.ConnectError, SessionTrouble("no_answer")),
        (httpx.ReadTimeout, SessionTrouble("no_answer")),
        (httpx.RemoteProtocolError, SessionTrouble("no_answer")),
        (TimeoutError, SessionTrouble("timed_out")),
    ],
    ids=str,
)
async def test_every_failure_is_an_answer(answer: httpx.Response | type[Exception], meant: SessionAnswer) -> None:
    assert await _checkout(answer).fetch("cs_test_1") == meant


# -------------------------------------------------------------------------------------------------------- opening one
async def test_a_session_is_opened_with_the_username_in_its_metadata_and_no_field_to_type_it(
    shop: StripeCheckout, world: World
) -> None:
    opened = await shop.open(new())
    assert isinstance(opened, Opened)
    session = world.books.get("checkout.session", opened.id)
    assert opened.url == session["url"]
    marks = {"rowclaim_slice": "fulfillment", "github_username": "Octo-Cat", "github_account_id": "583231"}
    assert session["metadata"] == marks
    assert session["custom_fields"] == []
    assert (session["mode"], session["amount_total"], session["client_reference_id"]) == ("payment", 4900, "user_1")
    assert (session["customer"], session["customer_email"]) == (None, "ada@example.com")
    assert (session["success_url"], session["cancel_url"]) == (SALE.success_url, SALE.cancel_url)
    paid = world.buyer.complete(opened.id)
    assert paid["customer_details"]["email"] == "ada@example.com"
    assert world.books.get("payment_intent", paid["payment_intent"])["metadata"] == marks


async def test_who_has_no_account_yet_is_marked_as_ours_and_no_more(shop: StripeCheckout, world: World) -> None:
    opened = await shop.open(new(handle=None, account_id=None, email=None))
    assert isinstance(opened, Opened)
    session = world.books.get("checkout.session", opened.id)
    assert session["metadata"] == {"rowclaim_slice": "fulfillment"}
    assert session["customer_email"] is None


async def test_a_known_customer_is_named_and_their_address_left_to_stripe(shop: StripeCheckout, world: World) -> None:
    customer = await shop._client.v1.customers.create_async({"email": "known@example.com"})
    opened = await shop.open(new(customer_id=customer.id))
    assert isinstance(opened, Opened)
    session = world.books.get("checkout.session", opened.id)
    assert (session["customer"], session["customer_email"]) == (customer.id, None)


async def test_the_same_key_opens_the_same_session_and_another_request_under_it_none(
    shop: StripeCheckout, world: World
) -> None:
    first = await shop.open(new(idempotency_key="checkout:user_1:k"))
    assert isinstance(first, Opened)
    assert await shop.open(new(idempotency_key="checkout:user_1:k")) == first
    assert await shop.open(new(idempotency_key="checkout:user_1:k", handle="other")) == KeyReused()
    assert await shop.open(new(idempotency_key="checkout:user_1:l")) != first
    assert await shop.open(new()) != await shop.open(new())
    assert len(world.books.table("checkout.session")) == 4


async def test_a_key_in_use_is_not_now_and_an_answer_that_was_lost_is_made_up_for(
    shop: StripeCheckout, world: World, control: SandboxControl
) -> None:
    post: Any = {"method": "POST", "path": "/v1/checkout/sessions"}
    hang = await control.do(AddFault(Fault(Vendor.STRIPE, Act.HANG, Moment.BEFORE, **post)))
    opening = asyncio.create_task(shop.open(new(idempotency_key="k")))
    await wait_until(lambda: world.faults.listing()[0].fired, within_s=10, what="the first is in flight")
    assert await shop.open(new(idempotency_key="k")) == SessionTrouble("idempotency_key_in_use")
    world.faults.clear(hang)
    assert await opening == SessionTrouble("no_answer")
    assert world.books.table("checkout.session") == {}
    await control.do(AddFault(Fault(Vendor.STRIPE, Act.DROP, Moment.AFTER, **post)))
    assert await shop.open(new(idempotency_key="k")) == SessionTrouble("no_answer")
    opened = await shop.open(new(idempotency_key="k"))
    assert isinstance(opened, Opened)
    assert list(world.books.table("checkout.session")) == [opened.id]


async def test_a_customer_who_is_gone_costs_no_sale(shop: StripeCheckout, world: World) -> None:
    for key in (None, "k"):
        opened = await shop.open(new(customer_id="cus_gone", idempotency_key=key))
        assert isinstance(opened, Opened)
        session = world.books.get("checkout.session", opened.id)
        assert (session["customer"], session["customer_email"]) == (None, None)
        assert session["metadata"]["github_username"] == "Octo-Cat"
    again = await shop.open(new(customer_id="cus_gone", idempotency_key="k"))
    assert isinstance(again, Opened)
    assert again.id == opened.id


def _refusing(refused: httpx.Response, then: httpx.Response) -> tuple[StripeCheckout, list[httpx.Request]]:
    seen: list[httpx.Request] = []

    async def answered(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return refused if len(seen) == 1 else then

    http = http_client(httpx.MockTransport(answered))
    client = stripe_client("sk_test_x", http, api_url="https://stripe.test")
    return StripeCheckout(client, Gates(OpenGates()), SALE), seen


async def test_an_address_stripe_does_not_take_is_left_for_its_page_to_ask() -> None:
    refused = _error(400, type="invalid_request_error", code="email_invalid", param="customer_email")
    opened = {"object": "checkout.session", "id": "cs_1", "url": "https://pay.test/1"}
    checkout, seen = _refusing(refused, httpx.Response(200, json=opened))
    assert await checkout.open(new(idempotency_key="k")) == Opened("cs_1", "https://pay.test/1")
    first, second = (parse_qs(request.content.decode()) for request in seen)
    assert first.pop("customer_email") == ["ada@example.com"]
    assert first == second
    assert [request.headers["idempotency-key"] for request in seen] == ["k", "k:unnamed"]
    checkout, seen = _refusing(refused, _error(400, type="idempotency_error"))
    assert await checkout.open(new(idempotency_key="k")) == KeyReused()
    checkout, seen = _refusing(refused, refused)
    assert await checkout.open(new()) == SessionMisconfigured("email_invalid")
    assert len(seen) == 2


OPEN: Final = {"object": "checkout.session", "id": "cs_1", "url": "https://pay.test/1"}


@pytest.mark.parametrize(
    ("answer", "meant"),
    [
        (httpx.Response(200, json=OPEN), Opened("cs_1", "https://pay.test/1")),
        (httpx.Response(200, json=OPEN | {"url": None}), SessionTrouble("unreadable_answer")),
        (httpx.Response(200, json=OPEN | {"url": "javascript:alert(1)"}), SessionTrouble("unreadable_answer")),
        (httpx.Response(200, json=OPEN | {"id": "pi_1"}), SessionTrouble("unreadable_answer")),
        (httpx.Response(200, json=[]), SessionTrouble("unreadable_answer")),
        (_error(400, type="idempotency_error"), KeyReused()),
        (_error(409, code="idempotency_key_in_use"), SessionTrouble("idempotency_key_in_use")),
        (_error(400, code="resource_missing", param="line_items[0][price]"), SessionMisconfigured("resource_missing")),
        (_error(400, code="parameter_unknown", param="mode"), SessionMisconfigured("parameter_unknown")),
        (_error(400), SessionMisconfigured("400")),
        (_error(401), SessionMisconfigured("401")),
        (_error(403), SessionMisconfigured("403")),
        (_error(429, code="rate_limit"), SessionTrouble("rate_limit")),
        (_error(500), SessionTrouble("500")),
        (httpx.Response(502, html="<h1>Bad gateway</h1>"), SessionTrouble("502")),
        (httpx.Response(200, content=b'{"id": "cs_'), SessionTrouble("200")),
        (httpx.ConnectError, SessionTrouble("no_answer")),
        (httpx.ReadTimeout, SessionTrouble("no_answer")),
        (TimeoutError, SessionTrouble("timed_out")),
    ],
    ids=str,
)
async def test_every_answer_to_opening_one_is_of_one_kind(
    answer: httpx.Response | type[Exception], meant: SessionOpened
) -> None:
    assert await _checkout(answer).open(new()) == meant


async def test_a_shop_that_was_not_told_what_it_sells_opens_none(urls: Urls, world: World) -> None:
    async with http_client() as http:
        checkout = StripeCheckout(stripe_client(DEFAULT_KEY, http, api_url=urls.stripe), Gates(OpenGates()))
        assert await checkout.open(new()) == SessionMisconfigured("checkout_unconfigured")
    assert world.log.entries(Vendor.STRIPE) == []


# --------------------------------------------------------------------------------------------------------- the charge
@pytest.mark.parametrize("payment", Payment)
async def test_a_charge_is_taken_back_by_a_whole_refund_or_a_dispute(
    shop: StripeCheckout, world: World, control: SandboxControl, payment: Payment
) -> None:
    async def paid() -> tuple[str, str, str]:
        """Session, payment, charge."""
        opened = await shop.open(new())
        assert isinstance(opened, Opened)
        session = await control.do(CompleteSession(opened.id, payment))
        if payment is Payment.UNPAID:
            await control.do(SettleSession(opened.id, succeeded=True))
        intent = world.books.get("payment_intent", session["payment_intent"])
        return opened.id, intent["id"], intent["latest_charge"]

    session_id, payment_id, charge_id = await paid()
    assert await shop.charge(charge_id) == Charge(payment_id, frozenset())
    await control.do(RefundCharge(session_id, 4899))
    assert await shop.charge(charge_id) == Charge(payment_id, frozenset())
    await control.do(RefundCharge(session_id))
    assert await shop.charge(charge_id) == Charge(payment_id, frozenset({TakenBack.REFUNDED}))
    other_session, other_payment, other_charge = await paid()
    await control.do(DisputeCharge(other_session))
    assert await shop.charge(other_charge) == Charge(other_payment, frozenset({TakenBack.DISPUTED}))
    assert await shop.charge("ch_none") == ChargeMissing()

    for wanted, by in ((session_id, payment_id), (other_session, other_payment)):
        answer = await shop.session_of_payment(by)
        assert isinstance(answer, Fetched)
        assert isinstance(answer.session, dict)
        assert (answer.session["id"], answer.session["payment_intent"]) == (wanted, by)
        assert answer.session["metadata"]["github_username"] == "Octo-Cat"
    assert await shop.session_of_payment("pi_none") == SessionMissing()


CHARGE: Final = {"object": "charge", "id": "ch_1", "payment_intent": "pi_1", "refunded": False, "disputed": False}


@pytest.mark.parametrize(
    ("answer", "meant"),
    [
        (httpx.Response(200, json=CHARGE), Charge("pi_1", frozenset())),
        (httpx.Response(200, json=CHARGE | {"refunded": True}), Charge("pi_1", frozenset({TakenBack.REFUNDED}))),
        (httpx.Response(200, json=CHARGE | {"disputed": True}), Charge("pi_1", frozenset({TakenBack.DISPUTED}))),
        (httpx.Response(200, json=CHARGE | {"payment_intent": None}), Charge(None, frozenset())),
        (httpx.Response(200, json=CHARGE | {"payment_intent": {"id": "pi_2"}}), Charge("pi_2", frozenset())),
        (httpx.Response(200, json={"object": "charge", "id": "ch_1", "refunded": True}), ChargeMissing()),
        (httpx.Response(200, json=CHARGE | {"object": "refund"}), ChargeMissing()),
        (httpx.Response(200, json=[]), ChargeMissing()),
        (_error(404, code="resource_missing"), ChargeMissing()),
        (_error(401), SessionMisconfigured("401")),
        (_error(403), SessionMisconfigured("403")),
        (_error(429, code="rate_limit"), SessionTrouble("rate_limit")),
        (_error(500), SessionTrouble("500")),
        (httpx.ReadTimeout, SessionTrouble("no_answer")),
        (TimeoutError, SessionTrouble("timed_out")),
    ],
    ids=str,
)
async def test_every_answer_about_a_charge_is_of_one_kind(
    answer: httpx.Response | type[Exception], meant: ChargeAnswer
) -> None:
    assert await _checkout(answer).charge("ch_1") == meant


def _listed(*data: Any) -> httpx.Response:
    return httpx.Response(200, json={"object": "list", "data": list(data), "has_more": False, "url": "/v1"})


@pytest.mark.parametrize(
    ("answer", "meant"),
    [
        (_listed({"object": "checkout.session", "id": "cs_1"}), Fetched({"object": "checkout.session", "id": "cs_1"})),
        (_listed(), SessionMissing()),
        (httpx.Response(200, json={"object": "list", "data": 7}), Fetched({"object": "list", "data": 7})),
        (httpx.Response(200, json=[]), Fetched([])),
        (_error(400, code="resource_missing"), SessionMissing()),
        (_error(401), SessionMisconfigured("401")),
        (_error(500), SessionTrouble("500")),
        (TimeoutError, SessionTrouble("timed_out")),
    ],
    ids=str,
)
async def test_every_answer_about_a_payment_is_of_one_kind(
    answer: httpx.Response | type[Exception], meant: SessionAnswer
) -> None:
    assert await _checkout(answer).session_of_payment("pi_1") == meant


# -------------------------------------------------------------------------------------------------------- the settings
THREE: Final = {
    "checkout_price": SALE.price,
    "checkout_success_url": SALE.success_url,
    "checkout_cancel_url": SALE.cancel_url,
}


def test_a_sale_is_told_by_three_settings_or_by_none() -> None:
    assert CheckoutSettings(**THREE).sale == SALE
    assert CheckoutSettings().sale is None


@pytest.mark.parametrize(
    "given",
    [
        *({name: value for name, value in THREE.items() if name != left_out} for left_out in THREE),
        *({name: value} for name, value in THREE.items()),
    ],
    ids=lambda given: "+".join(given),
)
def test_half_a_sale_is_a_mistake_that_is_told(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="set all three or none"):
        CheckoutSettings(**given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"checkout_price": "prod_1"},
        {"checkout_price": "price_"},
        {"checkout_success_url": "/thanks"},
        {"checkout_success_url": "javascript:alert(1)"},
        {"checkout_cancel_url": "https://shop.test/a b"},
    ],
)
def test_what_stripe_would_refuse_is_refused_at_boot(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CheckoutSettings(**THREE | wrong)


async def test_a_closed_gate_is_trouble() -> None:
    checkout = _checkout(_error(500))

    class Closed(OpenGates):
        async def value(self, query: str, *args: object) -> object:
            raise Retryable("gate_closed")

    checkout.gates = Gates(Closed())
    assert await checkout.fetch("cs_test_1") == SessionTrouble("gate_closed")
    assert await checkout.charge("ch_1") == SessionTrouble("gate_closed")
    assert await checkout.session_of_payment("pi_1") == SessionTrouble("gate_closed")
    assert await checkout.open(new()) == SessionTrouble("gate_closed")
