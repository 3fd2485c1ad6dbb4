"""The loop over a job's periods: several processes, deaths, leases that end, and the stop."""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString, TypeVar

import asyncpg
import pytest

from services.kernel.db import Database
from services.kernel.errors import Invariant, Retryable
from services.kernel.jobs import Job, weekly
from services.operations.jobs import run_job
from services.operations.store import periods as store
from tests.fixtures.database import Clock, Connect
from tests.operations.test_store_periods import ROLE, claimed, job, periods
from tests.waiting import wait_until

Owner = asyncpg.Connection
R = TypeVar("R")
SHORT = timedelta(milliseconds=300)


class Loop:
    """``run_job`` as a process runs it."""

    def __init__(self, a_job: Job, db: Database, **settings: float) -> None:
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(run_job(a_job, db, self.stop, **({"tick_s": 0.01} | settings)))

    async def end(self) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, 10)


async def state(owner: Owner) -> str:
    value: str = await owner.fetchval("select state from job_runs")
    return value


async def until_state(owner: Owner, wanted: str) -> None:
    async def probe() -> bool:
        return await owner.fetchval("select count(*) from job_runs where state = $1", wanted) == 1

    await wait_until(probe, within_s=10, what=f"a period {wanted}")


async def test_several_processes_run_each_period_once(connect: Connect, owner: Owner, clock: Clock) -> None:
    runs: list[str] = []

    async def run(period: str) -> Mapping[str, object]:
        await asyncio.sleep(0)
        runs.append(period)
        return {"seen": len(runs)}

    a_job = job(run=run, back_fill=10)
    loops = [Loop(a_job, await connect(role)) for role in (ROLE, "rowclaim_fulfillment", "rowclaim_operator")]
    await until_state(owner, "done")
    await clock.shift(timedelta(days=6))

    async def all_done() -> bool:
        return [state for state, _ in (await periods(owner)).values()] == ["done"] * 7

    await wait_until(all_done, within_s=10, what="seven periods done")
    for loop in loops:
        await loop.end()
    assert sorted(runs) == list(await periods(owner))


async def test_what_a_dead_process_held_is_run_by_another(connect: Connect, owner: Owner, clock: Clock) -> None:
    db = await connect(ROLE)
    await store.plan(db, job())
    await claimed(db, job())  # and dies
    loop = Loop(job(), db)
    await asyncio.sleep(0)
    await clock.shift(timedelta(seconds=61))
    await until_state(owner, "done")
    await loop.end()
    assert await owner.fetchval("select attempt from job_runs") == 2


async def test_a_long_run_keeps_its_lease(connect: Connect, owner: Owner) -> None:
    """Held over several leases, with a rival whose reaper looks all the time."""
    leases: set[datetime] = set()
    ended = asyncio.Event()
    runs = 0

    async def run(_: str) -> Mapping[str, object]:
        nonlocal runs
        runs += 1
        await ended.wait()
        return {}

    a_job = job(run=run, lease=SHORT)
    loops = [Loop(a_job, await connect(ROLE)), Loop(a_job, await connect("rowclaim_fulfillment"))]

    async def renewed() -> bool:
        leases.add(await owner.fetchval("select coalesce(max(lease_until), rowclaim_now()) from job_runs"))
        first, last = min(leases), max(leases)
        return last - first > 3 * SHORT

    await until_state(owner, "running")
    await wait_until(renewed, within_s=20, what="a lease held thrice its time")
    ended.set()
    await until_state(owner, "done")
    for loop in loops:
        await loop.end()
    assert runs == 1
    assert await owner.fetchval("select attempt from job_runs") == 1


async def test_a_run_whose_lease_was_taken_is_cancelled_and_writes_nothing(connect: Connect, owner: Owner) -> None:
    cancelled = asyncio.Event()

    async def run(_: str) -> Mapping[str, object]:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return {}

    loop = Loop(job(run=run, lease=SHORT), await connect(ROLE), tick_s=3600.0)
    await until_state(owner, "running")
    await owner.execute(
        "update job_runs set state = 'due', edge = 'reap', claim_token = claim_token + 1, lease_until = null,"
        " next_attempt_at = rowclaim_now() + interval '1 hour'"
    )
    await asyncio.wait_for(cancelled.wait(), 10)
    await loop.end()
    assert await owner.fetchrow("select state, edge, claim_token from job_runs") == ("due", "reap", 2)


class NoRenewals:
    """A database that answers everything but renewals."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    async def execute(self, query: LiteralString, *args: object) -> int:
        if query == store.RENEW:
            raise Retryable("database_unavailable")
        return await self._db.execute(query, *args)


async def test_a_lease_that_cannot_be_renewed_ends_the_run_no_later_than_the_lease(
    connect: Connect, owner: Owner
) -> None:
    cancelled = asyncio.Event()

    async def run(_: str) -> Mapping[str, object]:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return {}

    loop = Loop(job(run=run, lease=SHORT), NoRenewals(await connect(ROLE)), tick_s=3600.0)  # type: ignore[arg-type]  # stands in for it
    await asyncio.wait_for(cancelled.wait(), 10)
    await loop.end()


async def test_a_retryable_failure_comes_again_after_a_minute_doubling_to_an_hour(
    connect: Connect, owner: Owner, clock: Clock
) -> None:
    failures = 9

    async def run(_: str) -> Mapping[str, object]:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise Retryable("gate_closed", "processor")
        return {"done": True}

    loop = Loop(job(run=run, lease=timedelta(days=1)), await connect(ROLE))
    waits: list[int] = []
    for attempt in range(1, 10):

        async def put_back(attempt: int = attempt) -> timedelta | None:
            left: timedelta | None = await owner.fetchval(
                "select next_attempt_at - rowclaim_now() from job_runs where edge = 'put_back' and attempt = $1",
                attempt,
            )
            return left

        left = await wait_until(put_back, within_s=10, what=f"put back after attempt {attempt}")
        waits.append(round(left.total_seconds() / 60))
        await clock.shift(left + timedelta(milliseconds=1))
    await until_state(owner, "done")
    await loop.end()
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize("error", [Invariant("row_shape"), ValueError("a bug")], ids=["invariant", "bug"])
async def test_any_other_error_gives_the_period_back_and_ends_the_loop(
    connect: Connect, owner: Owner, error: Exception
) -> None:
    async def run(_: str) -> Mapping[str, object]:
        raise error

    with pytest.raises(type(error)):
        await asyncio.wait_for(run_job(job(run=run), await connect(ROLE), asyncio.Event()), 10)
    assert await owner.fetchrow("select state, edge from job_runs") == ("due", "put_back")


async def test_a_report_that_is_no_json_is_a_bug_not_a_lost_period(connect: Connect, owner: Owner) -> None:
    async def run(_: str) -> Mapping[str, object]:
        return {"when": datetime.now(UTC)}

    with pytest.raises(TypeError):
        await asyncio.wait_for(run_job(job(run=run), await connect(ROLE), asyncio.Event()), 10)
    assert await state(owner) == "due"


async def test_at_the_stop_a_run_may_finish_within_its_grace(connect: Connect, owner: Owner) -> None:
    may_end = asyncio.Event()

    async def run(_: str) -> Mapping[str, object]:
        await may_end.wait()
        return {"count": 7}

    loop = Loop(job(run=run), await connect(ROLE), stop_grace_s=60.0)
    await until_state(owner, "running")
    loop.stop.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not loop.task.done()
    may_end.set()
    await asyncio.wait_for(loop.task, 10)
    assert json.loads(await owner.fetchval("select report from job_runs where state = 'done'")) == {"count": 7}


async def test_after_the_grace_it_is_cancelled_and_claimable_at_once(connect: Connect, owner: Owner) -> None:
    cancelled = False

    async def run(_: str) -> Mapping[str, object]:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise
        return {}

    db = await connect(ROLE)
    loop = Loop(job(run=run), db, stop_grace_s=0.05)
    await until_state(owner, "running")
    await loop.end()
    assert cancelled
    assert (await claimed(db, job())).attempt == 2


async def test_a_cancelled_loop_gives_its_period_back(connect: Connect, owner: Owner) -> None:
    started = asyncio.Event()

    async def run(_: str) -> Mapping[str, object]:
        started.set()
        await asyncio.Event().wait()
        return {}

    loop = Loop(job(run=run), await connect(ROLE))
    await started.wait()
    loop.task.cancel()
    await asyncio.wait({loop.task}, timeout=10)
    assert loop.task.cancelled()
    assert await state(owner) == "due"


async def test_the_first_job_keeps_event_partitions_ahead(connect: Connect, owner: Owner, clock: Clock) -> None:
    """What a slice does with this: a weekly job over a function of the database."""
    db = await connect(ROLE)

    async def make_partitions(_: str) -> Mapping[str, object]:
        return {"made": await db.value("select make_event_partitions(8)")}

    await clock.shift(timedelta(weeks=5))
    ahead = await owner.fetchval("select event_weeks_ahead()")
    assert ahead < 4
    loop = Loop(job(name="event_partitions", schedule=weekly(weekday=0, hour=4), run=make_partitions), db)
    await until_state(owner, "done")
    await loop.end()
    assert json.loads(await owner.fetchval("select report from job_runs")) == {"made": 5}
    assert await owner.fetchval("select event_weeks_ahead()") >= 8
