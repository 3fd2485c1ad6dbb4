"""Telling people of pages: once per opening and once per end, whoever sends."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import structlog

from services.kernel.db import Tx
from services.kernel.errors import Retryable
from services.kernel.pager import Page, Pager, Severity
from services.operations.paging import SEND_BATCH, SENDING_LEASE, LogSender, PageSender, send_unsent
from tests.fixtures.database import Clock, Connect
from tests.kernel.test_pager import ROLE, rows


class Recorder:
    """A page sender that answers what it is told to."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.sent: list[Page] = []
        self._answers = list(answers)

    async def send(self, page: Page) -> bool:
        answer = self._answers.pop(0) if self._answers else True
        if isinstance(answer, Exception):
            raise answer
        if answer:
            self.sent.append(page)
        return answer

    def told(self) -> list[tuple[str, bool]]:
        return [(page.dedup_key, page.resolved) for page in self.sent]


class Pages(Pager):
    """A process that opens pages and sends what was not sent, by whom it may be opened."""

    def __init__(self, tx: Tx, sender: PageSender) -> None:
        super().__init__(tx)
        self._tell = partial(send_unsent, tx, sender)

    async def send_unsent(self) -> dict[str, int]:
        return await self._tell()


async def test_it_is_sent_once_and_its_end_too(connect: Connect, owner: Any) -> None:
    sender = Recorder()
    pager = Pages(await connect(ROLE), sender)
    await pager.page("k", Severity.CRITICAL, "row 12 waits")
    assert await pager.send_unsent() == {"sent": 1, "failed": 0}
    assert await pager.send_unsent() == {"sent": 0, "failed": 0}
    assert await pager.resolve("k") is True
    assert await pager.resolve("k") is False
    assert await pager.send_unsent() == {"sent": 1, "failed": 0}
    assert await pager.send_unsent() == {"sent": 0, "failed": 0}
    opened, over = sender.sent
    assert (opened.severity, opened.summary, opened.resolved) == (Severity.CRITICAL, "row 12 waits", False)
    assert (over.id, over.dedup_key, over.resolved) == (opened.id, "k", True)
    assert await rows(owner) == [("k", 1, True, True, True)]


async def test_a_cause_that_returns_is_a_new_page(connect: Connect) -> None:
    sender = Recorder()
    pager = Pages(await connect(ROLE), sender)
    await pager.page("k", Severity.ERROR, "first")
    await pager.resolve("k")
    assert await pager.page("k", Severity.ERROR, "second") is True
    # What was over before anybody was told is told all the same: opened first, its end behind it.
    await pager.send_unsent()
    await pager.send_unsent()
    assert sender.told() == [("k", False), ("k", False), ("k", True)]
    assert len({page.id for page in sender.sent}) == 2


@pytest.mark.parametrize("trouble", [False, Retryable("gate_closed", "pagerduty"), TimeoutError()])
async def test_a_pager_that_is_down_delays_a_page(connect: Connect, trouble: bool | Exception) -> None:
    sender = Recorder(trouble)
    pager = Pages(await connect(ROLE), sender)
    await pager.page("a", Severity.ERROR, "s")
    await pager.page("b", Severity.ERROR, "s")
    assert await pager.send_unsent() == {"sent": 1, "failed": 1}
    assert sender.told() == [("b", False)]
    assert await pager.send_unsent() == {"sent": 1, "failed": 0}
    assert sender.told() == [("b", False), ("a", False)]


async def test_two_senders_share_the_pages(connect: Connect) -> None:
    database = await connect(ROLE)
    entered, go = asyncio.Event(), asyncio.Event()

    class Slow(Recorder):
        async def send(self, page: Page) -> bool:
            entered.set()
            await go.wait()
            return await super().send(page)

    slow, quick = Slow(), Recorder()
    await Pages(database, slow).page("k", Severity.ERROR, "s")
    sending = asyncio.ensure_future(Pages(database, slow).send_unsent())
    await entered.wait()
    assert await Pages(database, quick).send_unsent() == {"sent": 0, "failed": 0}
    go.set()
    assert await sending == {"sent": 1, "failed": 0}
    assert quick.sent == []


async def test_a_sender_that_died_holds_a_page_for_a_minute(connect: Connect, clock: Clock) -> None:
    database = await connect(ROLE)
    dying = Recorder(RuntimeError("killed"))
    await Pages(database, dying).page("k", Severity.ERROR, "s")
    with pytest.raises(RuntimeError):
        await Pages(database, dying).send_unsent()
    living = Recorder()
    await clock.shift(SENDING_LEASE - timedelta(seconds=5))
    await Pages(database, living).send_unsent()
    assert living.sent == []
    await clock.shift(timedelta(seconds=6))
    await Pages(database, living).send_unsent()
    assert living.told() == [("k", False)]


async def test_a_round_is_bounded_and_oldest_first(connect: Connect) -> None:
    sender = Recorder()
    pager = Pages(await connect(ROLE), sender)
    for number in range(SEND_BATCH + 1):
        await pager.page(f"k{number}", Severity.ERROR, "s")
    assert await pager.send_unsent() == {"sent": SEND_BATCH, "failed": 0}
    assert sender.told() == [(f"k{number}", False) for number in range(SEND_BATCH)]


@pytest.mark.parametrize(
    ("severity", "resolved", "level"),
    [
        (Severity.CRITICAL, False, "critical"),
        (Severity.WARNING, False, "error"),
        (Severity.CRITICAL, True, "info"),
    ],
)
async def test_without_a_pager_the_log_tells(severity: Severity, resolved: bool, level: str) -> None:
    with structlog.testing.capture_logs() as logs:
        assert await LogSender().send(Page(3, "k", severity, "row 12 waits", resolved)) is True
    (line,) = logs
    assert (line["log_level"], line["page"], line["dedup_key"], line["summary"]) == (level, 3, "k", "row 12 waits")
    assert line["event"] == ("page.resolved" if resolved else "page.opened")


async def test_pages_that_are_never_taken_do_not_hold_up_the_others(connect: Connect) -> None:
    class Picky(Recorder):
        async def send(self, page: Page) -> bool:
            return not page.dedup_key.startswith("bad") and await super().send(page)

    sender = Picky()
    pager = Pages(await connect(ROLE), sender)
    for nth in range(SEND_BATCH):
        await pager.page(f"bad:{nth}", Severity.ERROR, "s")
    assert await pager.send_unsent() == {"sent": 0, "failed": SEND_BATCH}
    await pager.page("good", Severity.CRITICAL, "s")
    assert (await pager.send_unsent())["sent"] == 1
    assert sender.told() == [("good", False)]
