"""Jobs as rows: planned by the database's clock in UTC, each period run once, held by lease and token."""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString, TypeVar

import asyncpg
import pytest

from services.kernel import jobs
from services.kernel.db import Database
from services.kernel.errors import Invariant, Retryable
from services.kernel.jobs import JOB_RUNS, ClaimedPeriod, Job, daily, run_job, weekly
from services.kernel.service import verify_machine
from tests.fixtures.database import Clock, Connect
from tests.waiting import wait_until

Owner = asyncpg.Connection
R = TypeVar("R")
ROLE = "rowclaim_ingress"
SHORT = timedelta(milliseconds=300)


async def nothing(_: str) -> Mapping[str, object]:
    return {}


def job(**changes: Any) -> Job:
    return Job(**({"name": "tidy", "schedule": daily(hour=3), "run": nothing} | changes))


async def set_clock(clock: Clock, owner: Owner, to: datetime) -> None:
    await clock.shift(to - await owner.fetchval("select rowclaim_now()"))


async def periods(owner: Owner, name: str = "tidy") -> dict[str, tuple[str, datetime]]:
    rows = await owner.fetch("select period, state, next_attempt_at from job_runs where job = $1 order by period", name)
    return {row["period"]: (row["state"], row["next_attempt_at"]) for row in rows}


async def claimed(db: Database, a_job: Job) -> ClaimedPeriod:
    taken = await jobs.claim_period(db, a_job)
    assert taken is not None
    return taken


# ------------------------------------------------------------------------------------------------------------ planning


@pytest.mark.parametrize(
    ("now", "period"),
    [
        ("2026-12-02T02:59:00", "2026-12-01"),  # yesterday's is the latest that is due
        ("2026-12-02T03:00:05", "2026-12-02"),
        ("2026-12-02T23:59:00", "2026-12-02"),
        ("2027-01-01T00:30:00", "2026-12-31"),
    ],
)
async def test_a_daily_period_is_due_at_its_hour_in_utc(
    connect: Connect, owner: Owner, clock: Clock, now: str, period: str
) -> None:
    await set_clock(clock, owner, datetime.fromisoformat(now).replace(tzinfo=UTC))
    assert await jobs.plan(await connect(ROLE), job()) == 1
    due = datetime.fromisoformat(period).replace(hour=3, tzinfo=UTC)
    assert await periods(owner) == {period: ("due", due)}


@pytest.mark.parametrize(
    ("now", "period"),
    [
        ("2026-12-02T12:00:00", "2026-11-26"),  # a Wednesday: last week's Thursday
        ("2026-12-03T05:59:00", "2026-11-26"),
        ("2026-12-03T06:00:05", "2026-12-03"),
        ("2026-12-06T12:00:00", "2026-12-03"),
    ],
)
async def test_a_weekly_period_is_due_on_its_weekday(
    connect: Connect, owner: Owner, clock: Clock, now: str, period: str
) -> None:
    await set_clock(clock, owner, datetime.fromisoformat(now).replace(tzinfo=UTC))
    await jobs.plan(await connect(ROLE), job(schedule=weekly(weekday=3, hour=6)))
    due = datetime.fromisoformat(period).replace(hour=6, tzinfo=UTC)
    assert await periods(owner) == {period: ("due", due)}


async def test_planning_again_adds_nothing_whoever_does_it(connect: Connect, owner: Owner) -> None:
    pools = [await connect(ROLE), await connect("rowclaim_fulfillment")]
    planned = await asyncio.gather(*(jobs.plan(db, job()) for db in pools * 8))
    assert sum(planned) == 1
    assert len(await periods(owner)) == 1


@pytest.mark.parametrize(("back_fill", "kept"), [(1, 1), (3, 3), (50, 5)])
async def test_missed_periods_are_planned_up_to_the_bound(
    connect: Connect, owner: Owner, clock: Clock, back_fill: int, kept: int
) -> None:
    db = await connect(ROLE)
    await set_clock(clock, owner, datetime(2026, 12, 1, 12, tzinfo=UTC))
    await jobs.plan(db, job(back_fill=back_fill))
    await clock.shift(timedelta(days=5))
    assert await jobs.plan(db, job(back_fill=back_fill)) == kept
    latest = [f"2026-12-0{day}" for day in (2, 3, 4, 5, 6)][-kept:]
    assert list(await periods(owner)) == ["2026-12-01", *latest]


async def test_a_job_never_planned_starts_with_its_latest_period_alone(connect: Connect, owner: Owner) -> None:
    assert await jobs.plan(await connect(ROLE), job(back_fill=30)) == 1


async def test_a_zone_with_summer_time_moves_no_period(connect: Connect, owner: Owner, clock: Clock) -> None:
    """The superuser's sessions live in the Chatham Islands, where 27 September 2026 has 23 hours."""
    db = await connect()
    assert await db.value("select current_setting('timezone')") == "Pacific/Chatham"
    await set_clock(clock, owner, datetime(2026, 9, 24, 12, tzinfo=UTC))
    await jobs.plan(db, job(back_fill=9))
    await clock.shift(timedelta(days=6))
    await jobs.plan(db, job(back_fill=9))
    planned = await periods(owner)
    assert len(planned) == 7
    assert all(due == datetime.fromisoformat(day).replace(hour=3, tzinfo=UTC) for day, (_, due) in planned.items())


# ------------------------------------------------------------------------------------------- claim, lease, token, reap


async def test_the_machine_is_the_databases(connect: Connect) -> None:
    await verify_machine(await connect(ROLE), JOB_RUNS)


async def test_periods_are_claimed_longest_due_first_and_each_by_one(
    connect: Connect, owner: Owner, clock: Clock
) -> None:
    first, second = await connect(ROLE), await connect("rowclaim_fulfillment")
    three = job(back_fill=3)
    await jobs.plan(first, three)
    await clock.shift(timedelta(days=2))
    await jobs.plan(first, three)
    # Turned round, so that neither the key nor the place in the table gives the order.
    await owner.execute(
        "update job_runs set next_attempt_at = rowclaim_now() - (period::date - date '2020-01-01') * interval '1 day'"
    )
    taken = [await jobs.claim_period(db, three) for db in (first, second, first, second)]
    assert [one and one.period for one in taken] == [*sorted(await periods(owner), reverse=True), None]


async def test_a_racing_claim_takes_no_period_twice(connect: Connect, clock: Clock) -> None:
    pools = [await connect(ROLE), await connect("rowclaim_fulfillment")]
    many = job(back_fill=20)
    await jobs.plan(pools[0], many)
    await clock.shift(timedelta(days=15))
    await jobs.plan(pools[0], many)
    taken = await asyncio.gather(*(jobs.claim_period(db, many) for db in pools * 12))
    won = [one.period for one in taken if one is not None]
    assert len(won) == len(set(won)) == 16


async def test_another_jobs_period_is_left_alone(connect: Connect) -> None:
    db = await connect(ROLE)
    await jobs.plan(db, job(name="theirs"))
    assert await jobs.claim_period(db, job()) is None


async def test_a_period_put_back_is_not_claimed_before_its_time(connect: Connect, clock: Clock) -> None:
    db = await connect(ROLE)
    await jobs.plan(db, job())
    assert await jobs.put_back(db, job(), await claimed(db, job()), timedelta(minutes=5))
    assert await jobs.claim_period(db, job()) is None
    await clock.shift(timedelta(minutes=5, seconds=1))
    again = await claimed(db, job())
    assert (again.claim_token, again.attempt) == (2, 2)


async def test_the_reaper_frees_only_what_ran_out_and_fences_its_holder_off(
    connect: Connect, owner: Owner, clock: Clock
) -> None:
    db = await connect(ROLE)
    await jobs.plan(db, job())
    dead = await claimed(db, job())
    assert await jobs.reap(db, job()) == 0
    await clock.shift(timedelta(seconds=59))
    assert await jobs.renew(db, job(), dead)
    await clock.shift(timedelta(seconds=59))
    assert await jobs.reap(db, job()) == 0
    await clock.shift(timedelta(seconds=2))
    assert await jobs.reap(db, job(name="theirs")) == 0
    assert await jobs.reap(db, job()) == 1
    assert not await jobs.renew(db, job(), dead)
    assert not await jobs.finish(db, job(), dead, {})
    assert not await jobs.put_back(db, job(), dead, timedelta())
    heir = await claimed(db, job())
    assert heir.claim_token == dead.claim_token + 2
    assert not await jobs.finish(db, job(), dead, {"by": "the dead"})
    assert await jobs.finish(db, job(), heir, {"by": "the heir"})
    report = await owner.fetchval("select report from job_runs")
    assert json.loads(report) == {"by": "the heir"}


# ----------------------------------------------------------------------------------------------------------- the loop


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
    await jobs.plan(db, job())
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
        if query == jobs.RENEW:
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


async def test_another_jobs_periods_are_none_of_ours(connect: Connect, owner: Owner) -> None:
    db = await connect(ROLE)
    await owner.execute(
        "insert into job_runs (job, period, state, edge, next_attempt_at) "
        "values ('another', '9999-12-31', 'due', 'plan', rowclaim_now())"
    )
    assert await jobs.plan(db, job()) == 1


async def test_two_processes_that_plan_at_once_plan_once(connect: Connect, owner: Owner) -> None:
    """The second waits for the first one's commit, and finds the period planned."""
    db = await connect(ROLE)
    async with db.transaction() as tx:
        assert await jobs.plan(tx, job()) == 1
        second = asyncio.create_task(jobs.plan(await connect(ROLE), job()))
        waiting = "select exists (select from pg_locks where not granted)"
        await wait_until(lambda: owner.fetchval(waiting), within_s=5, what="the second to wait")
    assert await second == 0
    assert len(await periods(owner)) == 1
