"""When a serving process is ready, and that a broken law wakes somebody."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from services.kernel.errors import Invariant
from services.operations.process import Process
from services.operations.serving import page_invariant, readiness
from tests.fixtures.database import Clock
from tests.operations.conftest import OTHER, TOY, MakeTerminal, log_sender


@pytest.fixture
async def process(make_terminal: MakeTerminal) -> AsyncIterator[Process]:
    line = make_terminal(TOY, OTHER, INGRESS_NEEDED="set")
    async with Process.open("toy", (TOY, OTHER), line.load((TOY, OTHER)), log_sender) as opened:
        yield opened


async def amiss(process: Process) -> dict[str, str | None]:
    return {name: await check() for name, check in (await readiness(process, [TOY, OTHER])).items()}


async def test_it_is_ready_when_every_role_arrives_and_events_can_be_stored(process: Process) -> None:
    assert await amiss(process) == {
        "process": None,
        "database:rowclaim_fulfillment": None,
        "database:rowclaim_ingress": None,
        "events": None,
    }


async def test_it_is_not_ready_without_a_week_for_events(process: Process, clock: Clock) -> None:
    await clock.shift(timedelta(weeks=8, days=1))
    assert (await amiss(process))["events"] == "event bodies can be stored for 0 more weeks; run `rowclaim migrate`"


async def test_it_is_not_ready_while_it_stops(process: Process) -> None:
    process.stopping.set()
    assert (await amiss(process))["process"] == "stopping"


async def test_a_broken_law_is_one_page_however_often(process: Process, owner: Any) -> None:
    for _ in range(3):
        await page_invariant(process, Invariant("fence_refused", "purchases"))
    pages = await owner.fetch("select dedup_key, severity, summary, seen from pages")
    assert [tuple(page) for page in pages] == [("invariant:fence_refused", "critical", "fence_refused: purchases", 3)]


async def test_a_request_is_answered_though_the_page_cannot_be_recorded(process: Process) -> None:
    await (await process.database(TOY.role)).close()
    await page_invariant(process, Invariant("fence_refused", "purchases"))
