"""The database behind four verbs: shapes, enums, commits, and what a refused write or a lost server becomes."""

import asyncio
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, cast

import asyncpg
import pytest

from services.kernel import db
from services.kernel.db import Database, in_transaction
from services.kernel.errors import Invariant, Retryable
from tests.fixtures.database import Connect, Connection, DatabaseUrl, Server
from tests.waiting import wait_until

ROLE = "rowclaim_fulfillment"


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Pot:
    id: int
    colour: Colour
    lid: Colour | None
    label: str


POTS = """
select id::bigint, colour, lid, label
from (values (1, 'red', null, 'a'), (2, 'blue', 'red', 'b')) p (id, colour, lid, label)"""
KILL = """
select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = $1 and datname = current_database()"""


@pytest.fixture
async def database(connect: Connect, owner: Connection) -> Database:
    await owner.execute(
        "create table pots (id bigint primary key, label text not null constraint pots_label check (label <> ''));"
        f"grant select, insert, update on pots to {ROLE}"
    )
    return await connect(ROLE, size_max=2)


async def labels(owner: Connection) -> list[str]:
    return [row["label"] for row in await owner.fetch("select label from pots order by id")]


# ----------------------------------------------------------------------------------------------------------- the verbs
async def test_rows_become_shapes_with_their_enums(database: Database) -> None:
    red, blue = Pot(1, Colour.RED, None, "a"), Pot(2, Colour.BLUE, Colour.RED, "b")
    rows = await database.rows(Pot, POTS)
    assert rows == [red, blue]
    assert all(isinstance(pot.colour, Colour) for pot in rows)
    assert isinstance(rows[1].lid, Colour)
    assert await database.row(Pot, POTS) == red
    assert (
        await database.row(Pot, "select 1::bigint as id, 'red' as colour, null as lid, 'x' as label where false")
        is None
    )
    assert await database.rows(Pot, "select 1 as anything where false") == []
    assert await database.value("select $1::text || 'b'", "a") == "ab"


@pytest.mark.parametrize(
    "query",
    [
        "select 1 as id, 'red' as colour, 'red' as lid",
        "select 1 as id, 'red' as colour, 'red' as lid, 'x' as label, 2 as more",
        "select 1 as id, 'red' as lid, 'red' as colour, 'x' as label",
        "select 1 as id, 'red' as colour, 'red' as lid, 'x' as name",
    ],
)
async def test_a_row_of_another_shape_is_our_own_mistake(database: Database, query: Any) -> None:
    with pytest.raises(Invariant, match="row_shape: Pot expects"):
        await database.row(Pot, query)
    with pytest.raises(Invariant, match="row_shape: Pot expects"):
        await database.rows(Pot, query)


async def test_a_state_the_code_does_not_know_is_never_passed_on(database: Database) -> None:
    with pytest.raises(ValueError, match="green"):
        await database.row(Pot, "select 1 as id, 'green' as colour, null as lid, 'x' as label")


async def test_execute_counts_the_rows_it_changed(database: Database) -> None:
    assert await database.execute("insert into pots values (1, 'a'), (2, 'b')") == 2
    assert await database.execute("update pots set label = 'c' where id = $1", 1) == 1
    assert await database.execute("update pots set label = 'c' where id = $1", 7) == 0
    assert await database.execute("set lock_timeout = '1s'") == 0


async def test_a_database_knows_its_role(database: Database) -> None:
    assert database.role == ROLE


# -------------------------------------------------------------------------------------------------------- transactions
async def test_a_transaction_is_one_commit(database: Database, owner: Connection) -> None:
    async with database.transaction() as tx:
        await tx.execute("insert into pots values (1, 'a')")
        assert await tx.execute("insert into pots values (2, 'b')") == 1
        assert await labels(owner) == []
    assert await labels(owner) == ["a", "b"]


async def test_an_error_or_a_cancellation_rolls_all_of_it_back(database: Database, owner: Connection) -> None:
    inside = asyncio.Event()

    async def insert_then(wait: bool) -> None:
        async with database.transaction() as tx:
            await tx.execute("insert into pots values (1, 'a')")
            inside.set()
            if wait:
                await asyncio.Event().wait()
            raise LookupError

    with pytest.raises(LookupError):
        await insert_then(wait=False)
    inside.clear()
    task = asyncio.create_task(insert_then(wait=True))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await labels(owner) == []
    assert await database.execute("insert into pots values (1, 'a')") == 1, "the connection went back clean"


async def test_what_the_body_raises_is_its_own(database: Database) -> None:
    """A time-out of the body is no word of the database's."""
    with pytest.raises(TimeoutError):
        async with database.transaction():
            raise TimeoutError
    with pytest.raises(FileNotFoundError):
        async with database.transaction():
            raise FileNotFoundError


async def test_a_snapshot_agrees_with_itself_and_writes_nothing(database: Database, owner: Connection) -> None:
    async with database.transaction(snapshot=True) as tx:
        assert await tx.value("select count(*) from pots") == 0
        await owner.execute("insert into pots values (1, 'a')")
        assert await tx.value("select count(*) from pots") == 0
        with pytest.raises(Retryable, match="database_busy: ReadOnlySQLTransactionError"):
            await tx.execute("insert into pots values (2, 'b')")
    assert await labels(owner) == ["a"]


async def test_a_task_knows_whether_it_stands_in_a_transaction(database: Database) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def ask() -> bool:
        return in_transaction()

    async def hold() -> None:
        async with database.transaction():
            entered.set()
            await leave.wait()

    holding = asyncio.create_task(hold())
    await entered.wait()
    assert not in_transaction(), "another task's transaction is not ours"
    leave.set()
    await holding
    async with database.transaction():
        assert in_transaction()
        assert await asyncio.create_task(ask()), "a task that we spawn inside holds our locks too"
    assert not in_transaction()
    with pytest.raises(LookupError):
        async with database.transaction():
            raise LookupError
    assert not in_transaction()


async def test_a_commit_that_is_refused_says_why(database: Database, owner: Connection) -> None:
    await owner.execute("alter table pots add constraint pots_once unique (label) deferrable initially deferred")
    with pytest.raises(asyncpg.UniqueViolationError):
        async with database.transaction() as tx:
            await tx.execute("insert into pots values (1, 'a'), (2, 'a')")
    assert await labels(owner) == []


# ------------------------------------------------------------------------------------------------------------- refusals
async def test_a_constraint_speaks_for_itself(database: Database) -> None:
    with pytest.raises(asyncpg.CheckViolationError) as refused:
        await database.execute("insert into pots values (1, '')")
    assert refused.value.constraint_name == "pots_label"
    with pytest.raises(asyncpg.UndefinedColumnError):
        await database.value("select no_such_column from pots")


async def test_what_a_refused_write_says_quotes_no_row(database: Database, owner: Connection) -> None:
    await owner.execute("insert into pots values (1, 'ann@example.com')")
    await owner.execute("alter table pots add constraint pots_once unique (label) deferrable initially deferred")
    for label in ("ann@example.com", "bob@example.com"):
        with pytest.raises(asyncpg.PostgresError) as refused:
            await database.execute("insert into pots values (1, $1)", label)
        assert "example.com" not in "".join(traceback.format_exception(refused.value))
    with pytest.raises(asyncpg.PostgresError) as refused:
        async with database.transaction() as tx:
            await tx.execute("insert into pots values (2, 'ann@example.com')")
    assert "example.com" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    ("write", "code"),
    [
        ("state = 'done', edge = 'finish', claim_token = claim_token", "edge_refused"),
        ("state = 'running', edge = 'no_such_edge', claim_token = claim_token + 1", "edge_refused"),
        ("state = 'running', edge = 'claim', claim_token = claim_token", "fence_refused"),
    ],
)
async def test_what_the_guard_refuses_is_an_invariant(database: Database, write: Any, code: str) -> None:
    await database.execute(
        "insert into job_runs (job, period, state, edge, next_attempt_at) "
        "values ('a', 'b', 'due', 'plan', rowclaim_now())"
    )
    with pytest.raises(Invariant, match="job_runs: ") as refused:
        await database.execute(cast(Any, "update job_runs set " + write))
    assert refused.value.code.name == code
    with pytest.raises(Invariant):
        async with database.transaction() as tx:
            await tx.execute(cast(Any, "update job_runs set " + write))


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
async def test_a_wait_that_the_server_ends_may_be_tried_again(
    database: Database, owner: Connection, database_url: DatabaseUrl, connect: Connect, setting: str
) -> None:
    name = database_url().split("/")[3].partition("?")[0]
    await owner.execute(f"alter role {ROLE} in database {name} set {setting} = '20ms'")
    impatient = await connect(ROLE)
    await owner.execute("insert into pots values (1, 'a')")
    async with owner.transaction():
        await owner.execute("update pots set label = 'b'")
        with pytest.raises(Retryable, match="database_busy"):
            await impatient.execute("update pots set label = 'c'")
    assert await impatient.execute("update pots set label = 'c'") == 1


async def test_a_deadlock_is_tried_again_by_its_victim(database: Database, owner: Connection) -> None:
    await owner.execute("insert into pots values (1, 'a'), (2, 'b')")
    first_locks = asyncio.Barrier(2)

    async def write(*ids: int) -> None:
        async with database.transaction() as tx:
            await tx.execute("set local lock_timeout = 0")
            for nth, pot in enumerate(ids):
                await tx.execute("update pots set label = label || 'x' where id = $1", pot)
                if nth == 0:
                    await first_locks.wait()

    ended = await asyncio.gather(write(1, 2), write(2, 1), return_exceptions=True)
    (victim,) = [error for error in ended if error is not None]
    assert isinstance(victim, Retryable)
    assert victim.code.name == "database_busy"
    assert await labels(owner) == ["ax", "bx"]


# --------------------------------------------------------------------------------------------------------- lost servers
async def test_a_backend_that_dies_is_lost_for_one_call_only(database: Database, owner: Connection) -> None:
    async def kill_inside(then: bool) -> None:
        async with database.transaction() as tx:
            await tx.execute("insert into pots values (1, 'a')")
            await owner.fetchval(KILL, ROLE)
            if then:
                await tx.execute("insert into pots values (2, 'b')")

    for killed_before_commit in (False, True):
        with pytest.raises(Retryable, match="database_unavailable"):
            await kill_inside(then=not killed_before_commit)
        assert not in_transaction()
    assert await labels(owner) == []

    async def inserted() -> bool:
        # Idle sessions were ended, too; one whose end is still on its way is given out once more, and costs one call.
        try:
            return await database.execute("insert into pots values (1, 'a')") == 1
        except Retryable:
            return False

    await wait_until(inserted, within_s=5, what="a living session")


async def ask(database: Database, *, times: int) -> None:
    """A backend may answer once more before it sees that its server is gone."""
    for _ in range(times):
        await database.value("select 1")


@pytest.mark.durable
async def test_a_stopped_server_is_retryable_everywhere_and_its_return_is_noticed(
    database_url: DatabaseUrl, database_server: Server
) -> None:
    database = await Database.connect(database_url(ROLE))
    try:
        assert await database.value("select 1") == 1
        await asyncio.to_thread(database_server.postgres.kill)
        with pytest.raises(Retryable, match="database_unavailable"):
            await ask(database, times=100)
        with pytest.raises(Retryable, match="database_unavailable"):
            async with database.transaction():
                raise AssertionError("a transaction began on a dead server")
        with pytest.raises(Retryable, match="database_unavailable"):
            await Database.connect(database_url(ROLE))
        await database_server.postgres.start()
        assert await database.value("select 2") == 2
    finally:
        await database.close()


async def test_waiting_for_a_connection_is_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "ACQUIRE_S", 0.05)
    async with database.transaction(), database.transaction():
        with pytest.raises(Retryable, match="TimeoutError"):
            await asyncio.create_task(database.value("select 1"))
    assert await database.value("select 1") == 1


async def test_a_busy_connection_is_cut_at_the_close(
    database_url: DatabaseUrl, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = await Database.connect(database_url(ROLE))
    busy = asyncio.create_task(database.value("select pg_sleep(4)"))
    active = "select exists (select from pg_stat_activity where usename = $1 and state = 'active')"
    await wait_until(lambda: owner.fetchval(active, ROLE), within_s=5, what="the long statement")
    monkeypatch.setattr(db, "ACQUIRE_S", 0.05)
    await database.close()
    with pytest.raises(Retryable, match="database_unavailable"):
        await busy


async def test_instants_come_with_their_zone_and_durations_as_intervals(database: Database) -> None:
    instant = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    assert await database.value("select $1::timestamptz", instant) == instant
    assert await database.value("select $1::interval", timedelta(days=3, hours=7)) == timedelta(days=3, hours=7)


async def test_a_bad_argument_is_no_outage(database: Database) -> None:
    """Retried, it would fail for ever."""
    with pytest.raises(asyncpg.DataError, match="invalid input for query argument"):
        await database.value("select $1::bigint", "seven")


async def test_an_answer_in_hand_is_not_lost_with_its_connection(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that was committed and answered, told as a failure, would be a row nobody knows of."""
    release = asyncpg.pool.Pool.release

    async def released_too_late(pool: Any, connection: Any, **named: Any) -> None:
        await release(pool, connection, **named)
        raise asyncpg.ConnectionDoesNotExistError("the server went away")

    monkeypatch.setattr(asyncpg.pool.Pool, "release", released_too_late)
    assert await database.execute("insert into pots values (1, 'a')") == 1
    assert await database.value("select label from pots") == "a"
