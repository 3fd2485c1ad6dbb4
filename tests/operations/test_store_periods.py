"""Jobs as rows: planned by the database's clock in UTC, each period run once, held by lease and token."""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from services.kernel.db import Database
from services.kernel.jobs import Job, daily, weekly
from services.operations.store import periods as store
from tests.fixtures.database import Clock, Connect
from tests.waiting import wait_until

Owner = asyncpg.Connection
ROLE = "rowclaim_ingress"


async def nothing(_: str) -> Mapping[str, object]:
    return {}


def job(**changes: Any) -> Job:
    return Job(**({"name": "tidy", "schedule": daily(hour=3), "run": nothing} | changes))


async def set_clock(clock: Clock, owner: Owner, to: datetime) -> None:
    await clock.shift(to - await owner.fetchval("select rowclaim_now()"))


async def periods(owner: Owner, name: str = "tidy") -> dict[str, tuple[str, datetime]]:
    rows = await owner.fetch("select period, state, next_attempt_at from job_runs where job = $1 order by period", name)
    return {row["period"]: (row["state"], row["next_attempt_at"]) for row in rows}


async def claimed(db: Database, a_job: Job) -> store.ClaimedPeriod:
    taken = await store.claim_period(db, a_job)
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
    assert await store.plan(await connect(ROLE), job()) == 1
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
    await store.plan(await connect(ROLE), job(schedule=weekly(weekday=3, hour=6)))
    due = datetime.fromisoformat(period).replace(hour=6, tzinfo=UTC)
    assert await periods(owner) == {period: ("due", due)}


async def test_planning_again_adds_nothing_whoever_does_it(connect: Connect, owner: Owner) -> None:
    pools = [await connect(ROLE), await connect("rowclaim_fulfillment")]
    planned = await asyncio.gather(*(store.plan(db, job()) for db in pools * 8))
    assert sum(planned) == 1
    assert len(await periods(owner)) == 1


@pytest.mark.parametrize(("back_fill", "kept"), [(1, 1), (3, 3), (50, 5)])
async def test_missed_periods_are_planned_up_to_the_bound(
    connect: Connect, owner: Owner, clock: Clock, back_fill: int, kept: int
) -> None:
    db = await connect(ROLE)
    await set_clock(clock, owner, datetime(2026, 12, 1, 12, tzinfo=UTC))
    await store.plan(db, job(back_fill=back_fill))
    await clock.shift(timedelta(days=5))
    assert await store.plan(db, job(back_fill=back_fill)) == kept
    latest = [f"2026-12-0{day}" for day in (2, 3, 4, 5, 6)][-kept:]
    assert list(await periods(owner)) == ["2026-12-01", *latest]


async def test_a_job_never_planned_starts_with_its_latest_period_alone(connect: Connect, owner: Owner) -> None:
    assert await store.plan(await connect(ROLE), job(back_fill=30)) == 1


async def test_a_zone_with_summer_time_moves_no_period(connect: Connect, owner: Owner, clock: Clock) -> None:
    """The superuser's sessions live in the Chatham Islands, where 27 September 2026 has 23 hours."""
    db = await connect()
    assert await db.value("select current_setting('timezone')") == "Pacific/Chatham"
    await set_clock(clock, owner, datetime(2026, 9, 24, 12, tzinfo=UTC))
    await store.plan(db, job(back_fill=9))
    await clock.shift(timedelta(days=6))
    await store.plan(db, job(back_fill=9))
    planned = await periods(owner)
    assert len(planned) == 7
    assert all(due == datetime.fromisoformat(day).replace(hour=3, tzinfo=UTC) for day, (_, due) in planned.items())


# ------------------------------------------------------------------------------------------- claim, lease, token, reap


async def test_periods_are_claimed_longest_due_first_and_each_by_one(
    connect: Connect, owner: Owner, clock: Clock
) -> None:
    first, second = await connect(ROLE), await connect("rowclaim_fulfillment")
    three = job(back_fill=3)
    await store.plan(first, three)
    await clock.shift(timedelta(days=2))
    await store.plan(first, three)
    # Turned round, so that neither the key nor the place in the table gives the order.
    await owner.execute(
        "update job_runs set next_attempt_at = rowclaim_now() - (period::date - date '2020-01-01') * interval '1 day'"
    )
    taken = [await store.claim_period(db, three) for db in (first, second, first, second)]
    assert [one and one.period for one in taken] == [*sorted(await periods(owner), reverse=True), None]


async def test_a_racing_claim_takes_no_period_twice(connect: Connect, clock: Clock) -> None:
    pools = [await connect(ROLE), await connect("rowclaim_fulfillment")]
    many = job(back_fill=20)
    await store.plan(pools[0], many)
    await clock.shift(timedelta(days=15))
    await store.plan(pools[0], many)
    taken = await asyncio.gather(*(store.claim_period(db, many) for db in pools * 12))
    won = [one.period for one in taken if one is not None]
    assert len(won) == len(set(won)) == 16


async def test_another_jobs_period_is_left_alone(connect: Connect) -> None:
    db = await connect(ROLE)
    await store.plan(db, job(name="theirs"))
    assert await store.claim_period(db, job()) is None


async def test_a_period_put_back_is_not_claimed_before_its_time(connect: Connect, clock: Clock) -> None:
    db = await connect(ROLE)
    await store.plan(db, job())
    assert await store.put_back(db, job(), await claimed(db, job()), timedelta(minutes=5))
    assert await store.claim_period(db, job()) is None
    await clock.shift(timedelta(minutes=5, seconds=1))
    again = await claimed(db, job())
    assert (again.claim_token, again.attempt) == (2, 2)


async def test_the_reaper_frees_only_what_ran_out_and_fences_its_holder_off(
    connect: Connect, owner: Owner, clock: Clock
) -> None:
    db = await connect(ROLE)
    await store.plan(db, job())
    dead = await claimed(db, job())
    assert await store.reap(db, job()) == 0
    await clock.shift(timedelta(seconds=59))
    assert await store.renew(db, job(), dead)
    await clock.shift(timedelta(seconds=59))
    assert await store.reap(db, job()) == 0
    await clock.shift(timedelta(seconds=2))
    assert await store.reap(db, job(name="theirs")) == 0
    assert await store.reap(db, job()) == 1
    assert not await store.renew(db, job(), dead)
    assert not await store.finish(db, job(), dead, {})
    assert not await store.put_back(db, job(), dead, timedelta())
    heir = await claimed(db, job())
    assert heir.claim_token == dead.claim_token + 2
    assert not await store.finish(db, job(), dead, {"by": "the dead"})
    assert await store.finish(db, job(), heir, {"by": "the heir"})
    report = await owner.fetchval("select report from job_runs")
    assert json.loads(report) == {"by": "the heir"}


async def test_another_jobs_periods_are_none_of_ours(connect: Connect, owner: Owner) -> None:
    db = await connect(ROLE)
    await owner.execute(
        "insert into job_runs (job, period, state, edge, next_attempt_at) "
        "values ('another', '9999-12-31', 'due', 'plan', rowclaim_now())"
    )
    assert await store.plan(db, job()) == 1


async def test_two_processes_that_plan_at_once_plan_once(connect: Connect, owner: Owner) -> None:
    """The second waits for the first one's commit, and finds the period planned."""
    db = await connect(ROLE)
    async with db.transaction() as tx:
        assert await store.plan(tx, job()) == 1
        second = asyncio.create_task(store.plan(await connect(ROLE), job()))
        waiting = "select exists (select from pg_locks where not granted)"
        await wait_until(lambda: owner.fetchval(waiting), within_s=5, what="the second to wait")
    assert await second == 0
    assert len(await periods(owner)) == 1
