"""One attempt: bounded, its outcome written once and never cut off, its loss a normal return."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from services.kernel.effects import Attempt, attempt, settled, uncut
from services.kernel.errors import Retryable

BOUND_S = 30.0


class Row:
    """A row that takes one outcome, slowly if told to."""

    def __init__(self, *, held: bool = True) -> None:
        self.held = held
        self.written: list[str] = []
        self.started = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def write(self, outcome: str) -> bool:
        self.started.set()
        await self.may_end.wait()
        if self.held:
            self.written.append(outcome)
        return self.held


async def delivered() -> str:
    return "delivered"


async def never() -> str:
    await asyncio.Event().wait()
    raise AssertionError("waited for nothing")


Call = Callable[[], Awaitable[str]]


async def run(row: Row, call: Call = delivered, bound_s: float = BOUND_S) -> Attempt[str]:
    return await attempt(call, row.write, bound_s=bound_s, timed_out=lambda: "unknown")


async def test_an_answer_is_written() -> None:
    row = Row()
    assert await run(row) == Attempt("delivered", held=True)
    assert row.written == ["delivered"]


async def test_a_timeout_is_an_outcome_of_its_own_kind() -> None:
    row = Row()
    assert await run(row, never, bound_s=0.01) == Attempt("unknown", held=True)
    assert row.written == ["unknown"]


async def test_a_lost_claim_is_a_normal_return() -> None:
    row = Row(held=False)
    assert await run(row) == Attempt("delivered", held=False)
    assert row.written == []


async def test_what_a_call_raises_beyond_its_outcomes_goes_on_and_nothing_is_written() -> None:
    async def broken() -> str:
        raise KeyError("our own mistake")

    row = Row()
    with pytest.raises(KeyError):
        await run(row, broken)
    assert row.written == []


async def test_a_cancelled_call_writes_no_outcome() -> None:
    row = Row()
    task = asyncio.create_task(run(row, never))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert row.written == []


@pytest.mark.parametrize("cancels", [1, 3])
async def test_the_outcome_is_written_although_the_worker_is_cancelled(cancels: int) -> None:
    row = Row()
    row.may_end.clear()
    task = asyncio.create_task(run(row))
    await row.started.wait()
    for _ in range(cancels):
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    row.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert row.written == ["delivered"]


async def test_uncut_hands_on_what_the_work_returns_or_raises() -> None:
    async def fail() -> str:
        raise ConnectionError("gone")

    assert await uncut(delivered()) == "delivered"
    with pytest.raises(ConnectionError, match="gone"):
        await uncut(fail())


class Away:
    """A database that is away for the first few writes."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.tried = 0

    async def write(self) -> str:
        self.tried += 1
        if self.tried <= self.times:
            raise Retryable("database_unavailable")
        return "written"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.kernel.worker.BACKOFF_MIN_S", 0.001)


@pytest.mark.usefixtures("at_once")
async def test_an_outcome_outlasts_a_database_that_is_away_for_a_moment() -> None:
    away = Away(3)
    assert await settled(away.write) == "written"
    assert away.tried == 4


@pytest.mark.usefixtures("at_once")
async def test_a_database_that_stays_away_is_told_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.kernel.effects.SETTLE_S", 0.05)
    away = Away(1000)
    with pytest.raises(Retryable):
        await settled(away.write)
    assert 1 < away.tried < 1000


@pytest.mark.usefixtures("at_once")
async def test_a_cancelled_worker_still_writes_when_the_database_is_back() -> None:
    away = Away(5)
    task = asyncio.create_task(settled(away.write))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert away.tried == 6
