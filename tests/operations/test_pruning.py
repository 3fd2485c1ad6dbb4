"""``rowclaim prune``: what is old enough goes, what is unfinished stays, nobody else may, and it is said who did it."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from services.ingress import store as ingress_store
from services.ingress.store import Arrival
from services.kernel import inbox
from services.kernel.db import Database
from services.kernel.errors import Retryable
from services.kernel.inbox import Subscription
from services.operations import pruning, retention_store
from services.operations.pruning import Pruned, prune, prune_all
from services.operations.retention_store import OldWeek
from tests.fixtures.database import Clock, Connect, Connection, DatabaseUrl
from tests.house.database import LOGIN_ROLES
from tests.operations.conftest import MakeTerminal, RunCommand
from tests.waiting import wait_until

KIND = "paid"
NOTHING = Pruned(False, 0, 0, 0, 0, 0, 0, True)
FINISHED = ("done", "not_ours")
UNFINISHED = ("pending", "in_progress", "parked")


@pytest.fixture
async def retention(connect: Connect) -> Database:
    return await connect("rowclaim_retention")


class Rows:
    """Rows as time and work leave them, arranged past the guard."""

    def __init__(self, owner: Connection, ingress: Database) -> None:
        self._owner = owner
        self._ingress = ingress

    async def past(self, statement: str, *arguments: Any) -> Any:
        async with self._owner.transaction():
            await self._owner.execute("set local session_replication_role = replica")
            return await self._owner.fetchval(statement, *arguments)

    async def arrive(self, *ids: str, parked: str | None = None) -> list[int]:
        """Events of today, owed to fulfillment."""
        arrived = await ingress_store.arrive(
            self._ingress, [Arrival("stripe", one, KIND, b"{}", parked) for one in ids]
        )
        return [arrived["stripe", one].event_id or 0 for one in ids]

    async def stand(self, state: str, *ids: int, finished_ago: timedelta | None = None) -> None:
        """Set deliveries' state; ``finished_ago``: by the database's clock."""
        await self.past(
            """
            update webhook_deliveries set state = $1, finished_at = rowclaim_now() - $2::interval,
              lease_until = case when $1 = 'in_progress' then rowclaim_now() end,
              parked_reason = case when $1 = 'parked' then 'unmarked_object' end
            where event_id = any($3::bigint[])""",
            state,
            finished_ago,
            list(ids),
        )

    async def left(self, table: str, column: str = "id") -> list[Any]:
        return [row[0] for row in await self._owner.fetch(f"select {column} from {table} order by 1")]


@pytest.fixture
async def rows(owner: Connection, connect: Connect) -> Rows:
    await inbox.subscribe(await connect("rowclaim_fulfillment"), "fulfillment", [Subscription("stripe", KIND)])
    return Rows(owner, await connect("rowclaim_ingress"))


async def ran(db: Database, *, dry_run: bool = False, **bounds: int) -> Pruned:
    return await prune_all(db, actor="ann@desk", dry_run=dry_run, **bounds)


def counted(done: Pruned, name: str) -> int:
    """Of the name alone; nothing else was dropped."""
    count: int = getattr(done, name)
    assert done == Pruned(
        **{**{k: getattr(NOTHING, k) for k in NOTHING.__slots__}, name: count, "dry_run": done.dry_run}
    )
    return count


# ---------------------------------------------------------------------------------------------------------- deliveries
@pytest.mark.parametrize("chunk", [1, 2, 100])
async def test_a_finished_delivery_goes_ninety_days_after_it_was_finished(
    rows: Rows, retention: Database, chunk: int
) -> None:
    ids = await rows.arrive(*"abcdef")
    for state, event_id, days in zip((*FINISHED * 2, *UNFINISHED[:2]), ids, (91, 91, 89, 89, 400, 400), strict=True):
        await rows.stand(state, event_id, finished_ago=timedelta(days=days))
    await rows.past("update webhook_deliveries set received_at = received_at - interval '100 days'")
    assert counted(await ran(retention, dry_run=True, chunk=chunk), "deliveries") == 2
    assert await rows.left("webhook_deliveries", "event_id") == ids
    assert counted(await ran(retention, chunk=chunk), "deliveries") == 2
    assert await rows.left("webhook_deliveries", "event_id") == ids[2:]


@pytest.mark.parametrize("state", UNFINISHED)
async def test_an_unfinished_delivery_stays_however_old_and_keeps_its_event(
    rows: Rows, retention: Database, clock: Clock, state: str
) -> None:
    ids = await rows.arrive("a", "b")
    await rows.stand(state, *ids, finished_ago=timedelta(days=1))
    await clock.shift(timedelta(days=500))
    done = await ran(retention)
    assert (done.deliveries, done.event_ids, done.weeks_of_bodies, done.weeks_needed) == (0, 0, 8, 1)
    assert await rows.left("webhook_deliveries", "event_id") == ids
    assert await rows.left("event_ids") == ids
    assert await rows.left("event_bodies", "event_id") == ids


async def test_only_the_consumer_that_finished_loses_its_delivery(
    rows: Rows, retention: Database, connect: Connect, clock: Clock
) -> None:
    await inbox.subscribe(await connect("rowclaim_fulfillment"), "rewards", [Subscription("stripe", KIND)])
    (event_id,) = await rows.arrive("a")
    await rows.past("update webhook_deliveries set state = 'done', finished_at = rowclaim_now() where consumer <= 'g'")
    await clock.shift(timedelta(days=91))
    for chunk in (1, 2):
        assert (await ran(retention, chunk=chunk)).deliveries == 2 - chunk
    assert await rows.left("webhook_deliveries", "consumer") == ["rewards"]
    assert await rows.left("event_ids") == [event_id]


async def test_what_is_young_ends_the_search(rows: Rows, retention: Database, owner: Connection) -> None:
    """A daily run reads what became old, and not every delivery there is."""
    ids = await rows.arrive(*"abcdef")
    await rows.stand("done", *ids, finished_ago=timedelta(days=1))
    await rows.past(
        "update webhook_deliveries set received_at = received_at - interval '91 days' where event_id = $1", ids[0]
    )
    first = await retention_store.prune_deliveries(
        retention, after=(0, ""), chunk=2, kept=pruning.DELIVERIES_KEPT, dry_run=False
    )
    assert first is not None
    assert (first.looked_at, first.young, first.last_event_id) == (2, False, ids[1])
    second = await retention_store.prune_deliveries(
        retention, after=(ids[1], "fulfillment"), chunk=2, kept=pruning.DELIVERIES_KEPT, dry_run=False
    )
    assert second is not None
    assert (second.looked_at, second.young) == (2, True)
    assert counted(await ran(retention, chunk=2, rows_max=5), "deliveries") == 0, "the third chunk was not looked at"


async def test_a_replay_in_between_keeps_its_delivery(
    rows: Rows, retention: Database, connect: Connect, owner: Connection, clock: Clock
) -> None:
    """What is finished is asked once more of the row that is deleted."""
    (event_id,) = await rows.arrive("a")
    await rows.stand("done", event_id, finished_ago=timedelta(0))
    await clock.shift(timedelta(days=91))
    async with (await connect("rowclaim_operator")).transaction() as tx:
        await tx.execute(
            "update webhook_deliveries set state = 'pending', edge = 'replay', claim_token = claim_token + 1, "
            "outcome_token = null, finished_at = null"
        )
        pruned = asyncio.create_task(
            retention_store.prune_deliveries(
                retention, after=(0, ""), chunk=9, kept=pruning.DELIVERIES_KEPT, dry_run=False
            )
        )
        waiting = "select exists (select from pg_locks where not granted)"
        await wait_until(lambda: owner.fetchval(waiting), within_s=5, what="the pruning to wait")
    done = await pruned
    assert done is not None
    assert done.pruned == 0
    assert await rows.left("webhook_deliveries", "state") == ["pending"]


# ----------------------------------------------------------------------------------------------------------- event ids
@pytest.mark.parametrize("chunk", [1, 2, 100])
async def test_an_id_is_recognised_for_four_hundred_days(rows: Rows, retention: Database, chunk: int) -> None:
    ids = await rows.arrive(*"abcde")
    await rows.past("delete from webhook_deliveries where event_id <> $1", ids[1])
    await rows.past("delete from event_bodies")
    await rows.past("update event_ids set received_at = received_at - interval '401 days' where id <= $1", ids[2])
    await rows.past("update event_ids set received_at = received_at - interval '399 days' where id > $1", ids[2])
    assert counted(await ran(retention, dry_run=True, chunk=chunk), "event_ids") == 2
    assert await rows.left("event_ids") == ids
    assert counted(await ran(retention, chunk=chunk), "event_ids") == 2
    assert await rows.left("event_ids") == ids[1:2] + ids[3:], "the one that a delivery names stays"


@pytest.mark.parametrize(
    ("state", "days", "stays"), [("done", 91, False), ("not_ours", 91, False), ("done", 89, True), ("parked", 91, True)]
)
async def test_an_id_goes_with_its_deliveries_and_not_before(
    rows: Rows, retention: Database, state: str, days: int, stays: bool
) -> None:
    """So that a dry run, which leaves the deliveries, counts what the real one drops."""
    ids = await rows.arrive("a")
    await rows.past("delete from event_bodies")
    await rows.past("update event_ids set received_at = received_at - interval '401 days'")
    await rows.past("update webhook_deliveries set received_at = received_at - interval '401 days'")
    await rows.stand(state, *ids, finished_ago=timedelta(days=days))
    dry, real = await ran(retention, dry_run=True), await ran(retention)
    assert (dry.deliveries, dry.event_ids) == (real.deliveries, real.event_ids) == (0 if stays else 1,) * 2


# ------------------------------------------------------------------------------------------------- job runs, and pages
@pytest.mark.parametrize("chunk", [1, 2, 100])
async def test_a_finished_run_goes_after_four_hundred_days_and_a_jobs_latest_stays(
    rows: Rows, retention: Database, chunk: int
) -> None:
    periods = [
        ("daily", "2025-01-01", "done", 402),
        ("daily", "2025-01-02", "done", 401),
        ("daily", "2025-01-03", "due", 401),
        ("daily", "2025-01-04", "running", 401),
        ("daily", "2025-01-05", "done", 399),
        ("daily", "2026-01-06", "done", 1),
        ("later", "2025-01-02", "done", 399),
        ("rare", "2024-01-01", "done", 800),
    ]
    for job, period, state, days in periods:
        await rows.past(
            "insert into job_runs (job, period, state, edge, next_attempt_at, finished_at) "
            "values ($1, $2, $3, 'plan', rowclaim_now(), rowclaim_now() - $4::interval)",
            *(job, period, state, timedelta(days=days)),
        )
    assert counted(await ran(retention, dry_run=True, chunk=chunk), "job_runs") == 2
    assert len(await rows.left("job_runs", "period")) == len(periods)
    assert counted(await ran(retention, chunk=chunk), "job_runs") == 2
    assert await rows.left("job_runs", "period") == sorted(period for _, period, _, _ in periods[2:])


@pytest.mark.parametrize("chunk", [1, 2, 100])
async def test_a_page_goes_four_hundred_days_after_it_was_over_and_told(
    rows: Rows, retention: Database, chunk: int
) -> None:
    pages = [
        ("old", 401, 401, 401),
        ("older", 500, 500, 500),
        ("young", 500, 399, 399),
        ("open", 500, None, None),
        ("untold", None, 401, None),
        ("end untold", 500, 401, None),
    ]
    for key, sent, resolved, told in pages:
        await rows.past(
            "insert into pages (dedup_key, severity, summary, opened_at, seen_at, sent_at, resolved_at, "
            "resolve_sent_at) values ($1, 'error', 's', now() - interval '600 days', now() - interval '600 days', "
            "now() - $2::interval, now() - $3::interval, now() - $4::interval)",
            key,
            *[None if days is None else timedelta(days=days) for days in (sent, resolved, told)],
        )
    assert counted(await ran(retention, dry_run=True, chunk=chunk), "pages") == 2
    assert len(await rows.left("pages")) == len(pages)
    assert counted(await ran(retention, chunk=chunk), "pages") == 2
    assert await rows.left("pages", "dedup_key") == ["end untold", "open", "untold", "young"]


# -------------------------------------------------------------------------------------------------------------- bodies
async def weeks(owner: Connection) -> list[str]:
    query = "select inhrelid::regclass::text from pg_inherits where inhparent = 'event_bodies'::regclass order by 1"
    return [row[0] for row in await owner.fetch(query)]


async def test_bodies_go_by_whole_weeks_ninety_days_after_the_weeks_end(
    rows: Rows, retention: Database, owner: Connection, clock: Clock
) -> None:
    ids = await rows.arrive("a", "b")
    await rows.stand("done", *ids, finished_ago=timedelta(0))
    made = await weeks(owner)
    day = 7 - await owner.fetchval("select extract(isodow from rowclaim_now() at time zone 'UTC')::integer")
    await clock.shift(timedelta(days=90 + day))
    assert await retention_store.list_old_weeks(retention, pruning.BODIES_KEPT) == []
    await clock.shift(timedelta(days=1))
    assert await retention_store.list_old_weeks(retention, pruning.BODIES_KEPT) == [OldWeek(made[0], 0)]
    dry = await ran(retention, dry_run=True)
    assert (dry.weeks_of_bodies, await weeks(owner)) == (1, made)
    assert (await ran(retention)).weeks_of_bodies == 1
    assert await weeks(owner) == made[1:]
    assert await rows.left("event_bodies", "event_id") == []
    assert await rows.left("event_ids") == ids
    await clock.shift(timedelta(weeks=2))
    assert [week.partition_name for week in await retention_store.list_old_weeks(retention, pruning.BODIES_KEPT)] == (
        made[1:3]
    ), "oldest first"


async def test_a_week_in_which_nobody_can_work_any_more_is_not_needed(
    rows: Rows, retention: Database, owner: Connection, clock: Clock
) -> None:
    """What is only shown has no consumer, and what was forgotten has no content: neither ever ends."""
    await rows.arrive("thin", parked="thin_event")
    (forgotten,) = await rows.arrive("forgotten")
    await rows.stand("parked", forgotten)
    await clock.shift(timedelta(days=98))
    (week, *_) = await retention_store.list_old_weeks(retention, pruning.BODIES_KEPT)
    assert week.needed == 1
    assert not await retention_store.drop_week(retention, week, pruning.BODIES_KEPT)
    await owner.execute("update event_bodies set body = '' where event_id = $1", forgotten)
    (week, *_) = await retention_store.list_old_weeks(retention, pruning.BODIES_KEPT)
    assert week.needed == 0
    assert await retention_store.drop_week(retention, week, pruning.BODIES_KEPT)
    assert not await retention_store.drop_week(retention, week, pruning.BODIES_KEPT), "it is gone already"


async def test_each_week_is_judged_by_its_own_bodies(rows: Rows, retention: Database, clock: Clock) -> None:
    done, *_ = await rows.arrive("a")
    await rows.stand("done", done, finished_ago=timedelta(0))
    await clock.shift(timedelta(weeks=1))
    await rows.arrive("b")
    await clock.shift(timedelta(weeks=1))
    done, *_ = await rows.arrive("c")
    await rows.stand("done", done, finished_ago=timedelta(0))
    await clock.shift(timedelta(days=98))
    listed = await retention_store.list_old_weeks(retention, pruning.BODIES_KEPT)
    assert [week.needed for week in listed] == [0, 1, 0]
    pruned = await ran(retention)
    assert (pruned.weeks_of_bodies, pruned.weeks_needed) == (2, 1)


async def test_whatever_is_asked_for_ninety_days_are_kept_and_nothing_else_is_dropped(
    retention: Database, owner: Connection, clock: Clock
) -> None:
    await clock.shift(timedelta(days=50))
    made = await weeks(owner)
    for name in (made[0], "purchases", "event_ids", "event_bodies"):
        assert not await retention_store.drop_week(retention, OldWeek(name, 0), timedelta(0))
    assert await weeks(owner) == made


async def test_webhooks_do_not_queue_for_long_behind_a_week_that_is_in_use(
    retention: Database, connect: Connect, owner: Connection, clock: Clock
) -> None:
    await clock.shift(timedelta(days=98))
    made = await weeks(owner)
    async with (await connect("rowclaim_fulfillment")).transaction() as tx:
        await tx.value("select count(*) from event_bodies")
        with pytest.raises(Retryable, match="database_busy: LockNotAvailableError"):
            await asyncio.wait_for(ran(retention), 1.5)
    assert await weeks(owner) == made
    assert (await ran(retention)).weeks_of_bodies == 1


# ------------------------------------------------------------------------------------------------------------- the run
async def test_a_run_is_bounded_and_says_that_there_is_more(rows: Rows, retention: Database, clock: Clock) -> None:
    ids = await rows.arrive(*"abcd")
    await rows.stand("done", *ids, finished_ago=timedelta(0))
    await clock.shift(timedelta(days=401))
    first = await ran(retention, chunk=1, rows_max=2)
    assert (first.deliveries, first.event_ids, first.complete) == (2, 2, False)
    second = await ran(retention, chunk=1, rows_max=3)
    assert (second.deliveries, second.event_ids, second.complete) == (2, 2, True)


async def test_who_pruned_is_kept_before_and_after(rows: Rows, retention: Database, clock: Clock, owner: Any) -> None:
    (event_id,) = await rows.arrive("a")
    await rows.stand("done", event_id, finished_ago=timedelta(0))
    await clock.shift(timedelta(days=91))
    await ran(retention, dry_run=True)
    assert await owner.fetchval("select count(*) from admin_actions") == 0
    await ran(retention)
    kept = await owner.fetch("select actor, verb, target, reason, after from admin_actions order by id")
    assert [tuple(row)[:4] for row in kept] == [
        ("ann@desk", verb, "what was kept long enough", "retention") for verb in ("prune", "pruned")
    ]
    assert (json.loads(kept[0]["after"]), json.loads(kept[1]["after"])["deliveries"]) == ({}, 1)
    await owner.execute("revoke insert on admin_actions from rowclaim_retention")
    await rows.past(
        "insert into pages (dedup_key, severity, summary, opened_at, seen_at) values ('a','info','b',now(),now())"
    )
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await ran(retention)


async def test_the_command_shows_what_went(
    make_terminal: MakeTerminal, run_command: RunCommand, rows: Rows, clock: Clock, owner: Connection
) -> None:
    (event_id,) = await rows.arrive("a")
    await rows.stand("done", event_id, finished_ago=timedelta(0))
    await clock.shift(timedelta(days=401))
    line = make_terminal()
    dry = await run_command(line, "prune", "--dry-run", "--json")
    real = await run_command(line, "prune", "--json")
    assert (dry.code, real.code, real.err) == (0, 0, "")
    shown = json.loads(real.out)
    assert shown == {
        "dry_run": False,
        "deliveries": 1,
        "event_ids": 1,
        "job_runs": 0,
        "pages": 0,
        "weeks_of_bodies": 9,
        "weeks_needed": 0,
        "complete": True,
    }
    assert json.loads(dry.out) == shown | {"dry_run": True}
    assert await owner.fetchval("select count(*) from admin_actions where actor = $1", line.actor) == 2


def test_the_help_names_the_periods() -> None:
    text = " ".join((prune.__doc__ or "").split())
    assert {kept.days for kept in (pruning.BODIES_KEPT, pruning.DELIVERIES_KEPT)} == {90}
    assert {kept.days for kept in (pruning.EVENT_IDS_KEPT, pruning.JOB_RUNS_KEPT, pruning.PAGES_KEPT)} == {400}
    assert (text.count("90 days"), text.count("400 days")) == (2, 1)


async def test_nobody_else_may(database_url: DatabaseUrl) -> None:
    statements = (
        "delete from event_ids",
        "delete from webhook_deliveries",
        "delete from job_runs",
        "delete from pages",
        "update event_bodies set body = ''",
        "select drop_event_partition('event_bodies_2026w49', interval '90 days')",
        "select partition_name from old_event_partitions(interval '90 days')",
    )
    for role in set(LOGIN_ROLES) - {"rowclaim_retention"}:
        connection = await asyncpg.connect(database_url(role))
        for statement in statements:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
        await connection.close()


async def test_it_may_touch_no_business_row(database_url: DatabaseUrl) -> None:
    connection = await asyncpg.connect(database_url("rowclaim_retention"))
    for statement in (
        "delete from purchases",
        "update purchases set email = null",
        "delete from admin_actions",
        "update webhook_deliveries set state = 'done'",
        "insert into event_bodies (event_id, received_at, body) values (1, now(), '')",
        "update event_bodies set event_id = 1",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)
    await connection.close()
