"""The worker's loop: again while there is work, rings kept, failures backed off, the stop prompt and never cutting."""

import asyncio
from collections.abc import Callable

import pytest

from services.kernel.errors import Invariant, Retryable
from services.kernel.worker import Backoff, Worker, first_of, jittered
from tests.waiting import wait_until

LONG_S = 3600.0


def still(seconds: float) -> float:
    return seconds


class Steps:
    """A step that does what it is told, in order, and then nothing; it notes when it was called."""

    def __init__(self, *plan: int | BaseException | Callable[[], int]) -> None:
        self.plan = list(plan)
        self.calls = 0

    async def __call__(self) -> int:
        self.calls += 1
        told = self.plan.pop(0) if self.plan else 0
        if isinstance(told, BaseException):
            raise told
        return told() if callable(told) else told


async def running(worker: Worker, stop: asyncio.Event) -> "asyncio.Task[None]":
    task = asyncio.create_task(worker.run(stop))
    await asyncio.sleep(0)
    return task


async def test_goes_on_while_there_is_work_and_then_waits() -> None:
    steps, stop = Steps(1, 5, 2, 0), asyncio.Event()
    task = await running(Worker("w", steps, tick_s=LONG_S), stop)
    await wait_until(lambda: steps.calls == 4, within_s=5, what="all the work done")
    for _ in range(20):
        await asyncio.sleep(0)
    assert steps.calls == 4  # it waits for a ring or the tick, which is an hour away
    stop.set()
    await asyncio.wait_for(task, 5)


async def test_a_ring_wakes_it_long_before_the_tick() -> None:
    steps, stop = Steps(), asyncio.Event()
    worker = Worker("w", steps, tick_s=LONG_S)
    task = await running(worker, stop)
    await wait_until(lambda: steps.calls == 1, within_s=5, what="the first look")
    worker.ring()
    await wait_until(lambda: steps.calls == 2, within_s=5, what="the look after the ring")
    stop.set()
    await asyncio.wait_for(task, 5)


async def test_a_ring_during_a_step_is_kept() -> None:
    """The step had looked before the row was there: without the ring it would sleep for an hour."""
    stop = asyncio.Event()
    calls = 0

    async def step() -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            worker.ring()
            await asyncio.sleep(0)
        return 0

    worker = Worker("w", step, tick_s=LONG_S)
    task = await running(worker, stop)
    await wait_until(lambda: calls == 2, within_s=5, what="a second look")
    stop.set()
    await asyncio.wait_for(task, 5)


async def test_many_rings_are_one_look() -> None:
    steps, stop = Steps(), asyncio.Event()
    worker = Worker("w", steps, tick_s=LONG_S)
    task = await running(worker, stop)
    await wait_until(lambda: steps.calls == 1, within_s=5, what="the first look")
    for _ in range(50):
        worker.ring()
    await wait_until(lambda: steps.calls == 2, within_s=5, what="the look after the rings")
    for _ in range(20):
        await asyncio.sleep(0)
    assert steps.calls == 2
    stop.set()
    await asyncio.wait_for(task, 5)


async def test_ticks_without_any_ring() -> None:
    steps, stop = Steps(), asyncio.Event()
    task = await running(Worker("w", steps, tick_s=0.001), stop)
    await wait_until(lambda: steps.calls >= 5, within_s=5, what="five looks")
    stop.set()
    await asyncio.wait_for(task, 5)


async def test_the_tick_is_jittered() -> None:
    asked: list[float] = []

    def jitter(seconds: float) -> float:
        asked.append(seconds)
        return 0.0

    steps, stop = Steps(), asyncio.Event()
    task = await running(Worker("w", steps, tick_s=LONG_S, jitter=jitter), stop)
    await wait_until(lambda: steps.calls >= 3, within_s=5, what="the tick its jitter makes nothing of")
    assert set(asked) == {LONG_S}
    stop.set()
    await asyncio.wait_for(task, 5)


async def test_without_a_tick_nothing_but_a_ring_starts_a_step() -> None:
    steps, stop = Steps(3, 0), asyncio.Event()
    worker = Worker("w", steps, tick_s=None)
    task = await running(worker, stop)
    for _ in range(20):
        await asyncio.sleep(0)
    assert steps.calls == 0
    worker.ring()
    await wait_until(lambda: steps.calls == 2, within_s=5, what="the work after the ring")
    for _ in range(20):
        await asyncio.sleep(0)
    assert steps.calls == 2
    stop.set()
    await asyncio.wait_for(task, 5)


async def test_retryable_backs_off_and_tries_again_without_a_ring() -> None:
    waits: list[float] = []

    def jitter(seconds: float) -> float:
        waits.append(seconds)
        return 0.0

    failure = Retryable("database_unavailable")
    steps, stop = Steps(failure, failure, failure, 1, failure, 0), asyncio.Event()
    worker = Worker("w", steps, tick_s=None, jitter=jitter)
    task = await running(worker, stop)
    worker.ring()
    await wait_until(lambda: steps.calls == 6, within_s=5, what="the work after the failures")
    assert waits == [0.2, 0.4, 0.8, 0.2]  # a success in between begins anew
    stop.set()
    await asyncio.wait_for(task, 5)


@pytest.mark.parametrize("error", [Invariant("row_shape"), ValueError("a bug")], ids=["invariant", "bug"])
async def test_any_other_error_ends_the_run(error: Exception) -> None:
    steps = Steps(1, error)
    with pytest.raises(type(error)):
        await asyncio.wait_for(Worker("w", steps).run(asyncio.Event()), 5)
    assert steps.calls == 2


async def test_a_stop_ends_a_wait_and_a_backoff_at_once() -> None:
    for steps in (Steps(0), Steps(Retryable("database_unavailable"))):
        stop = asyncio.Event()
        task = await running(Worker("w", steps, tick_s=LONG_S, jitter=lambda _: LONG_S), stop)
        await wait_until(lambda steps=steps: steps.calls == 1, within_s=5, what="the first look")
        stop.set()
        await asyncio.wait_for(task, 5)
        assert steps.calls == 1


async def test_a_stop_lets_the_step_in_hand_finish_and_starts_no_other() -> None:
    stop, inside, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
    finished = 0

    async def step() -> int:
        nonlocal finished
        inside.set()
        await may_end.wait()
        finished += 1
        return 1

    task = await running(Worker("w", step), stop)
    await asyncio.wait_for(inside.wait(), 5)
    stop.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    await asyncio.wait_for(task, 5)
    assert finished == 1


async def test_a_worker_told_to_stop_before_it_runs_takes_no_step() -> None:
    steps, stop = Steps(1), asyncio.Event()
    stop.set()
    for tick_s in (1.0, None):
        await asyncio.wait_for(Worker("w", steps, tick_s=tick_s).run(stop), 5)
    assert steps.calls == 0


async def test_a_run_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    stop, steps = asyncio.Event(), Steps()
    task = await running(Worker("w", steps, tick_s=0.001), stop)
    await wait_until(lambda: steps.calls >= 3, within_s=5, what="three looks")
    task.cancel()
    await asyncio.wait({task})
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


def test_backoff_doubles_to_its_bound_and_begins_anew() -> None:
    backoff = Backoff(still)
    assert [backoff.next() for _ in range(7)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    for _ in range(2_000):  # an outage of hours
        assert backoff.next() == 5.0
    backoff.reset()
    assert backoff.next() == 0.2


def test_jitter_stays_within_a_fifth_and_spreads() -> None:
    drawn = [jittered(10.0) for _ in range(500)]
    assert min(drawn) >= 8.0
    assert max(drawn) <= 12.0
    assert max(drawn) - min(drawn) > 2.0


async def test_the_first_of_several_events_or_the_time_ends_a_wait() -> None:
    one, other = asyncio.Event(), asyncio.Event()
    await asyncio.wait_for(first_of(one, other, within_s=0.001), 5)
    other.set()
    await asyncio.wait_for(first_of(one, other), 5)
    await asyncio.wait_for(first_of(other, within_s=LONG_S), 5)
