"""A Checkout Session fetched from Stripe: the real client against the sandbox, and every way it can fail."""

from collections.abc import Awaitable, Callable

import httpx
import pytest
from pydantic import SecretStr

from services.fulfillment.gateway.checkout import StripeCheckout, open_checkout
from services.fulfillment.machine import (
    Fetched,
    SessionAnswer,
    SessionMisconfigured,
    SessionMissing,
    SessionTrouble,
)
from services.kernel.errors import Retryable
from services.kernel.gate import Gates
from services.sandbox.control import SandboxControl
from services.sandbox.stripe.api import DEFAULT_KEY
from services.sandbox.wire import CompleteSession, CreateSession
from services.sandbox.world import Urls
from services.vendors.http import http_client
from services.vendors.stripe import stripe_client
from tests.fixtures.fulfillment import session_params
from tests.fulfillment.gateway.test_invite import OpenGates


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
    return StripeCheckout(stripe_client("sk_test_x", http, api_url="https://stripe.test"), Gates(OpenGates()))


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


async def test_a_closed_gate_is_trouble() -> None:
    checkout = _checkout(_error(500))

    class Closed(OpenGates):
        async def value(self, query: str, *args: object) -> object:
            raise Retryable("gate_closed")

    checkout.gates = Gates(Closed())
    assert await checkout.fetch("cs_test_1") == SessionTrouble("gate_closed")
