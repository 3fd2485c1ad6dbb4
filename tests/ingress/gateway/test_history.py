"""Stripe's list of events: the real client against the sandbox, what is cut out of a page, every way it can fail."""

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from pydantic import SecretStr

from services.ingress.gateway.history import StripeHistory, open_history, read_page
from services.ingress.machine import (
    HistoryAnswer,
    HistoryPage,
    HistoryQuery,
    HistoryRefused,
    HistoryTrouble,
    PastEvent,
)
from services.kernel.db import Database
from services.kernel.errors import Retryable
from services.kernel.gate import Gates
from services.sandbox.control import SandboxControl
from services.sandbox.stripe.api import DEFAULT_KEY
from services.sandbox.wire import CompleteSession, CreateSession
from services.sandbox.world import Urls, World
from services.vendors.http import http_client
from services.vendors.stripe import stripe_client
from tests.fixtures.database import Connect
from tests.fixtures.fulfillment import session_params

PAID = "checkout.session.completed"


@pytest.fixture
async def db(connect: Connect) -> Database:
    return await connect("rowclaim_ingress")


def latest(*kinds: str, after: str | None = None) -> HistoryQuery:
    now = datetime.now(UTC)
    return HistoryQuery(kinds, now - timedelta(hours=1), now + timedelta(minutes=1), after)


async def test_a_page_holds_the_events_as_stripe_rendered_them(
    db: Database, urls: Urls, control: SandboxControl, world: World
) -> None:
    closing: list[Callable[[], Awaitable[None]]] = []
    history = open_history(SecretStr(DEFAULT_KEY), urls.stripe, Gates(db), closing.append)
    ids = []
    for _ in range(2):
        session = await control.do(CreateSession(session_params("octocat")))
        await control.do(CompleteSession(session["id"], email="buyer@example.com"))
        ids.append(session["id"])
    page = await history.page(latest(PAID, "no.such.type"))
    assert isinstance(page, HistoryPage)
    told = [json.loads(event.body) for event in page.events]
    assert [event["data"]["object"]["id"] for event in told] == ids[::-1]
    assert [(event["id"], event["type"]) for event in told] == [(e.external_id, e.kind) for e in page.events]
    assert (page.unreadable, page.after) == (0, None)
    assert page.oldest == datetime.fromtimestamp(told[-1]["created"], UTC)
    rest = await history.page(latest(PAID, after=page.events[0].external_id))
    assert isinstance(rest, HistoryPage)
    assert rest.events == page.events[1:]
    assert await history.page(latest("no.such.type")) == HistoryPage(events=[], unreadable=0, oldest=None, after=None)
    past = HistoryQuery([PAID], datetime.now(UTC) - timedelta(days=2), datetime.now(UTC) - timedelta(days=1))
    assert await history.page(past) == HistoryPage(events=[], unreadable=0, oldest=None, after=None)
    wrong = open_history(SecretStr("sk_test_wrong"), urls.stripe, Gates(db), closing.append)
    assert await wrong.page(latest(PAID)) == HistoryRefused("401")
    for close in closing:
        await close()
    assert len(closing) == 2


async def test_a_closed_gate_is_no_answer(db: Database, urls: Urls) -> None:
    closing: list[Callable[[], Awaitable[None]]] = []
    gates = Gates(db)
    await gates.close("stripe", timedelta(minutes=5), "maintenance", "ann")
    with pytest.raises(Retryable, match="gate_closed"):
        await open_history(SecretStr(DEFAULT_KEY), urls.stripe, gates, closing.append).page(latest(PAID))
    await closing[0]()


def event(external_id: str = "evt_1", **fields: object) -> dict[str, object]:
    return {"id": external_id, "object": "event", "type": PAID, "created": 1_764_000_000, **fields}


def listed(*events: object, has_more: bool = False) -> bytes:
    return json.dumps({"object": "list", "data": events, "has_more": has_more, "url": "/v1/events"}).encode()


def test_what_is_stored_is_the_rendered_text_and_not_a_copy() -> None:
    text = '{"id" : "evt_1","object":"event",\n "type":"a.b", "created":5, "data":{"amount":1.10,"name":"\\u00e9"}}'
    assert read_page(f'{{"has_more": true, "data": [ {text} ]}}'.encode()) == HistoryPage(
        events=[PastEvent("evt_1", "a.b", text.encode())],
        unreadable=0,
        oldest=datetime.fromtimestamp(5, UTC),
        after="evt_1",
    )


@pytest.mark.parametrize(
    "fault",
    [{"object": "v2.core.event"}, {"object": "charge"}, {"id": "evt.1"}, {"id": ""}, {"type": ""}, {"type": "é"}],
)
def test_what_the_door_would_refuse_is_counted_and_not_stored(fault: dict[str, object]) -> None:
    page = read_page(listed(event("evt_1"), event(**{"external_id": "evt_2", **fault})))
    assert isinstance(page, HistoryPage)
    assert ([e.external_id for e in page.events], page.unreadable) == (["evt_1"], 1)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{}",
        b'{"data": [',
        listed("evt_1"),
        listed(event(type=7)),
        listed(event(created=-1)),
        listed(event(created=2**62)),
        listed(has_more=True),
        listed(event(""), has_more=True),
        b'{"has_more": false, "data": [' + b"[" * 100_000,
    ],
    ids=lambda body: body[:40].decode(),
)
def test_a_list_that_cannot_be_read_or_gone_on_from_is_trouble(body: bytes) -> None:
    assert read_page(body) == HistoryTrouble("unreadable_list")


def refusal(status: int, **error: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": "no", **error}})


@pytest.mark.parametrize(
    ("answer", "meant"),
    [
        (refusal(401), HistoryRefused("401")),
        (refusal(403), HistoryRefused("403")),
        (refusal(400, code="resource_missing", type="invalid_request_error"), HistoryTrouble("resource_missing")),
        (refusal(429, code="rate_limit"), HistoryTrouble("rate_limit")),
        (refusal(500), HistoryTrouble("500")),
        (httpx.Response(502, html="<h1>Bad gateway</h1>"), HistoryTrouble("502")),
        (httpx.Response(200, content=b'{"data": ['), HistoryTrouble("200")),
        (httpx.Response(200, content=b'{"data": 7}'), HistoryTrouble("unreadable_list")),
        (httpx.ConnectError, HistoryTrouble("no_answer")),
        (httpx.ReadTimeout, HistoryTrouble("no_answer")),
        (TimeoutError, HistoryTrouble("timed_out")),
    ],
    ids=str,
)
async def test_every_failure_is_an_answer(
    db: Database, answer: httpx.Response | type[Exception], meant: HistoryAnswer
) -> None:
    async def answered(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, httpx.Response):
            return answer
        raise answer("planted")

    http = http_client(httpx.MockTransport(answered))
    history = StripeHistory(stripe_client("sk_test_x", http, api_url="https://stripe.test"), Gates(db))
    assert await history.page(latest(PAID)) == meant
    await http.aclose()
