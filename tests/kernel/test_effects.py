"""One attempt: bounded, its outcome written once and never cut off, its loss a normal return."""

import asyncio

import pytest

from services.kernel.effects import Attempt, attempt, uncut

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


async def run(row: Row, call=delivered, bound_s: float = BOUND_S) -> Attempt[str]:
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
