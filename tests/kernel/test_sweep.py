"""A sweep's loop: at once, at its interval, its counts told when there is something to tell."""

import asyncio
from collections.abc import Mapping

import pytest
from structlog.testing import capture_logs

from services.kernel.errors import Invariant, Retryable
from services.kernel.sweep import Sweep, run_sweep
from tests.waiting import wait_until

LONG_S = 3600.0


class Runs:
    def __init__(self, *plan: Mapping[str, int] | BaseException) -> None:
        self.plan = list(plan)
        self.calls = 0

    async def __call__(self) -> Mapping[str, int]:
        self.calls += 1
        told = self.plan.pop(0) if self.plan else {"reaped": 0}
        if isinstance(told, BaseException):
            raise told
        return told


async def until_calls(runs: Runs, calls: int, sweep: Sweep, *, jitter: float = 0.0) -> list[float]:
    """Run the sweep until it was called so often; what its jitter was asked for."""
    asked: list[float] = []
    stop = asyncio.Event()

    def spread(seconds: float) -> float:
        asked.append(seconds)
        return jitter

    task = asyncio.create_task(run_sweep(sweep, stop, jitter=spread))
    await wait_until(lambda: runs.calls >= calls, within_s=5, what=f"{calls} sweeps")
    stop.set()
    await asyncio.wait_for(task, 5)
    return asked


async def test_sweeps_at_once_and_again_at_its_interval() -> None:
    runs = Runs()
    asked = await until_calls(runs, 3, Sweep("s", LONG_S, runs))
    assert set(asked) == {LONG_S}


async def test_the_interval_is_waited_for() -> None:
    runs = Runs()
    stop = asyncio.Event()
    task = asyncio.create_task(run_sweep(Sweep("s", LONG_S, runs), stop))
    await wait_until(lambda: runs.calls == 1, within_s=5, what="the first sweep")
    for _ in range(20):
        await asyncio.sleep(0)
    assert runs.calls == 1
    stop.set()
    await asyncio.wait_for(task, 5)


async def test_counts_are_one_line_and_only_when_there_are_any() -> None:
    runs = Runs({"reaped": 0, "owed": 0}, {"reaped": 2, "owed": 0})
    with capture_logs() as logs:
        await until_calls(runs, 3, Sweep("deliveries", LONG_S, runs))
    assert [line for line in logs if line["event"] == "swept"] == [
        {"event": "swept", "log_level": "info", "sweep": "deliveries", "reaped": 2, "owed": 0}
    ]


async def test_retryable_comes_again_after_a_backoff_not_after_the_interval() -> None:
    failure = Retryable("database_unavailable")
    runs = Runs(failure, failure, {"reaped": 1})
    asked = await until_calls(runs, 4, Sweep("s", LONG_S, runs))
    assert asked[:3] == [0.2, 0.4, LONG_S]


async def test_a_backoff_is_never_longer_than_the_interval() -> None:
    runs = Runs(*[Retryable("database_unavailable")] * 3)
    await until_calls(runs, 4, Sweep("s", 0.001, runs), jitter=LONG_S)


@pytest.mark.parametrize("error", [Invariant("row_shape"), ValueError("a bug")], ids=["invariant", "bug"])
async def test_any_other_error_ends_the_run(error: Exception) -> None:
    with pytest.raises(type(error)):
        await asyncio.wait_for(run_sweep(Sweep("s", LONG_S, Runs(error)), asyncio.Event()), 5)


async def test_a_stop_ends_the_wait_at_once_and_the_sweep_in_hand_finishes() -> None:
    stop, inside, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
    finished = 0

    async def run_once() -> Mapping[str, int]:
        nonlocal finished
        inside.set()
        await may_end.wait()
        finished += 1
        return {}

    task = asyncio.create_task(run_sweep(Sweep("s", LONG_S, run_once), stop))
    await asyncio.wait_for(inside.wait(), 5)
    stop.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    await asyncio.wait_for(task, 5)
    assert finished == 1
