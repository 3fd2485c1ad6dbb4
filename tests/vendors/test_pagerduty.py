"""PagerDuty as a page sender: what goes over the wire, and what each answer means."""

import json
from collections.abc import Callable
from datetime import timedelta

import httpx
import pytest
from pydantic import SecretStr

from services.kernel.errors import Invariant, Retryable
from services.kernel.gate import Gates
from services.kernel.pager import Page, Pager, Severity
from services.operations.paging import send_unsent
from services.operations.store import list_gates
from services.vendors.http import http_client
from services.vendors.pagerduty import PagerDuty
from tests.fixtures.database import Clock, Connect

ROLE = "rowclaim_fulfillment"
OPENED = Page(7, "crashed:consume", Severity.CRITICAL, "task_crashed: worker", resolved=False)
OVER = Page(7, "crashed:consume", Severity.CRITICAL, "task_crashed: worker", resolved=True)

Answer = Callable[[httpx.Request], httpx.Response]


class Vendor:
    """Answers with one status, and keeps what it was asked."""

    def __init__(self, status: int = 202, error: Exception | None = None) -> None:
        self.status = status
        self.error = error
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        return httpx.Response(self.status, json={"status": "success"})

    @property
    def events(self) -> list[dict[str, object]]:
        return [json.loads(request.content) for request in self.requests]

    def sender(self, gates: Gates) -> PagerDuty:
        client = http_client(httpx.MockTransport(self))
        return PagerDuty(client, gates, url=SecretStr("https://pd.example/"), routing_key=SecretStr("R0UTE"))


async def test_an_opened_page_is_a_trigger_event(connect: Connect) -> None:
    vendor = Vendor()
    assert await vendor.sender(Gates(await connect(ROLE))).send(OPENED) is True
    (request,) = vendor.requests
    assert (request.method, str(request.url)) == ("POST", "https://pd.example/v2/enqueue")
    assert vendor.events == [
        {
            "routing_key": "R0UTE",
            "event_action": "trigger",
            "dedup_key": "crashed:consume#7",
            "payload": {"summary": "task_crashed: worker", "source": "rowclaim", "severity": "critical"},
        }
    ]


async def test_a_resolved_page_is_a_resolve_event_of_the_same_key(connect: Connect) -> None:
    vendor = Vendor()
    assert await vendor.sender(Gates(await connect(ROLE))).send(OVER) is True
    assert vendor.events == [
        {"routing_key": "R0UTE", "event_action": "resolve", "dedup_key": "crashed:consume#7"},
    ]


async def test_two_openings_are_two_incidents_and_a_key_fits(connect: Connect) -> None:
    vendor = Vendor()
    sender = vendor.sender(Gates(await connect(ROLE)))
    for number in (1, 2):
        await sender.send(Page(number, "k" * 300, Severity.ERROR, "s", resolved=False))
    first, second = (str(event["dedup_key"]) for event in vendor.events)
    assert first != second
    assert len(first) <= 255


@pytest.mark.parametrize("status", [200, 400, 403, 500, 503])
async def test_a_refused_page_stays_unsent(connect: Connect, status: int) -> None:
    database = await connect(ROLE)
    assert await Vendor(status).sender(Gates(database)).send(OPENED) is False
    assert [gate for gate in await list_gates(database) if gate.closed_until] == []


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.DecodingError("no gzip")], ids=repr)
async def test_an_unreachable_pager_is_no_error(connect: Connect, error: Exception) -> None:
    sender = Vendor(error=error).sender(Gates(await connect(ROLE)))
    assert await sender.send(OPENED) is False


async def test_a_rate_limit_closes_the_gate_for_all(connect: Connect, clock: Clock) -> None:
    database = await connect(ROLE)
    vendor = Vendor(429)
    sender = vendor.sender(Gates(database))
    assert await sender.send(OPENED) is False
    with pytest.raises(Retryable, match="gate_closed"):
        await sender.send(OPENED)
    assert len(vendor.requests) == 1
    await clock.shift(timedelta(seconds=31))
    vendor.status = 202
    assert await sender.send(OPENED) is True


async def test_pages_reach_it_through_the_pager(connect: Connect) -> None:
    database = await connect(ROLE)
    vendor = Vendor(503)
    sender = vendor.sender(Gates(database))
    await Pager(database).page("k", Severity.WARNING, "deliveries wait")
    assert await send_unsent(database, sender) == {"sent": 0, "failed": 1}
    vendor.status = 202
    assert await send_unsent(database, sender) == {"sent": 1, "failed": 0}
    assert [event["event_action"] for event in vendor.events] == ["trigger", "trigger"]


async def test_it_is_never_called_inside_a_transaction(connect: Connect) -> None:
    database = await connect(ROLE)
    vendor = Vendor()
    async with database.transaction():
        with pytest.raises(Invariant, match="vendor_call_in_transaction"):
            await vendor.sender(Gates(database)).send(OPENED)
    assert vendor.requests == []
