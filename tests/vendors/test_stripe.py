"""Stripe's client over our door: what its errors mean, that it tries once, and that one key is one key."""

import json

import httpx
import pytest
import stripe

from services.kernel import doors
from services.kernel.doors import Door
from services.vendors.http import http_client
from services.vendors.stripe import Failure, FailureKind, failure_of, stripe_client


def _client(answer: httpx.Response | type[Exception], seen: list[httpx.Request]) -> stripe.StripeClient:
    async def answered(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if isinstance(answer, httpx.Response):
            return answer
        raise answer("planted")

    return stripe_client("sk_test_x", http_client(httpx.MockTransport(answered)), api_url="https://stripe.test/base/")


def _error(status: int, **error: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": "no", **error}})


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (httpx.ConnectError, Failure(FailureKind.UNKNOWN, "no_answer")),
        (httpx.ReadTimeout, Failure(FailureKind.UNKNOWN, "no_answer")),
        (httpx.RemoteProtocolError, Failure(FailureKind.UNKNOWN, "no_answer")),
        (_error(500), Failure(FailureKind.UNKNOWN, "500")),
        (httpx.Response(502, html="<h1>Bad gateway</h1>"), Failure(FailureKind.UNKNOWN, "502")),
        (httpx.Response(200, content=b"{"), Failure(FailureKind.UNKNOWN, "200")),
        (_error(409, code="idempotency_key_in_use"), Failure(FailureKind.BUSY, "idempotency_key_in_use")),
        (_error(429, code="rate_limit"), Failure(FailureKind.BUSY, "rate_limit")),
        (_error(429), Failure(FailureKind.BUSY, "429")),
        (_error(400, type="idempotency_error"), Failure(FailureKind.KEY_CONFLICT, "400")),
        (_error(400, code="coupon_expired"), Failure(FailureKind.REFUSED, "coupon_expired")),
        (_error(404, code="resource_missing"), Failure(FailureKind.REFUSED, "resource_missing")),
        (
            _error(400, code="email_invalid", param="customer_email"),
            Failure(FailureKind.REFUSED, "email_invalid", "customer_email"),
        ),
        (_error(402, code="card_declined", type="card_error"), Failure(FailureKind.REFUSED, "card_declined")),
        (_error(401), Failure(FailureKind.CONFIG, "401")),
        (_error(403), Failure(FailureKind.CONFIG, "403")),
    ],
    ids=str,
)
async def test_every_error_means_one_thing_and_is_tried_once(
    answer: httpx.Response | type[Exception], failure: Failure
) -> None:
    seen: list[httpx.Request] = []
    with pytest.raises(stripe.StripeError) as raised:
        await _client(answer, seen).v1.checkout.sessions.retrieve_async("cs_1")
    assert failure_of(raised.value) == failure
    assert len(seen) == 1


async def test_a_request_is_as_stripe_wants_it_and_crosses_the_door() -> None:
    seen: list[httpx.Request] = []
    crossed: list[tuple[Door, str]] = []
    before = doors.watch(lambda door, what, moment: crossed.append((door, what)))
    try:
        client = _client(httpx.Response(200, json={"id": "cs_1", "object": "checkout.session"}), seen)
        await client.v1.checkout.sessions.create_async(
            {"mode": "payment", "metadata": {"rowclaim_slice": "fulfillment"}}, {"idempotency_key": "purchase:1"}
        )
        found = await client.v1.checkout.sessions.retrieve_async("cs_1")
    finally:
        doors.watch(before)
    created, fetched = seen
    assert str(created.url) == "https://stripe.test/base/v1/checkout/sessions"
    assert created.content == b"mode=payment&metadata[rowclaim_slice]=fulfillment"
    assert created.headers["idempotency-key"] == "purchase:1"
    assert created.headers["authorization"] == "Bearer sk_test_x"
    assert created.headers["content-type"] == "application/x-www-form-urlencoded"
    assert (fetched.method, fetched.content) == ("GET", b"")
    assert found.to_dict() == {"id": "cs_1", "object": "checkout.session"}
    assert crossed == [
        *[(Door.HTTP, "POST /base/v1/checkout/sessions")] * 2,
        *[(Door.HTTP, "GET /base/v1/checkout/sessions/cs_1")] * 2,
    ]


async def test_unset_the_address_is_stripes_own() -> None:
    seen: list[httpx.Request] = []

    async def answered(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=json.dumps({"id": "cs_1", "object": "checkout.session"}))

    client = stripe_client("sk_test_x", http_client(httpx.MockTransport(answered)))
    await client.v1.checkout.sessions.retrieve_async("cs_1")
    assert seen[0].url.host == "api.stripe.com"
