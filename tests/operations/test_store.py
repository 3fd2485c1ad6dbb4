"""The operators' statements at their borders: another vendor, another sender, another kind, another consumer."""

import asyncio
from datetime import timedelta
from typing import LiteralString, TypeVar

import pytest

from services.ingress import store as ingress_store
from services.ingress.store import Arrival
from services.kernel import inbox
from services.kernel.db import Database
from services.kernel.errors import Retryable
from services.kernel.gate import Gates
from services.kernel.inbox import Subscription
from services.kernel.pager import Pager, Severity
from services.operations import store
from services.operations.store import Pair
from tests.fixtures.database import Clock, Connect, Connection, DatabaseUrl
from tests.waiting import wait_until

R = TypeVar("R")
ROLE = "rowclaim_fulfillment"
KIND = "paid"
WINDOW = timedelta(minutes=5)


@pytest.fixture
async def database(connect: Connect) -> Database:
    return await connect(ROLE)


async def arrive(connect: Connect, *arrivals: tuple[str, str, str]) -> list[int]:
    """Store events of a (source, id, kind), one commit each; their ids."""
    ingress = await connect("rowclaim_ingress")
    ids = []
    for source, external_id, kind in arrivals:
        arrived = await ingress_store.arrive(ingress, [Arrival(source, external_id, kind, b"{}")])
        event_id = arrived[source, external_id].event_id
        assert event_id is not None
        ids.append(event_id)
    return ids


async def forget_deliveries(owner: Connection, *events: int) -> None:
    """As if these events had been stored at the very moment of the subscription: nothing is owed for them."""
    await owner.execute("delete from webhook_deliveries where event_id = any($1::bigint[])", list(events))


async def owed(owner: Connection) -> list[tuple[int, str]]:
    rows = await owner.fetch("select event_id, consumer from webhook_deliveries order by 1, 2")
    return [(row["event_id"], row["consumer"]) for row in rows]


# --------------------------------------------------------------------------------------------------------------- gates
async def test_a_gate_is_opened_alone(database: Database) -> None:
    gates = Gates(database)
    for vendor in ("github", "stripe"):
        await gates.close(vendor, timedelta(minutes=5), "rate_limit", "flush")
    assert await store.open_gate(database, "github")
    assert {gate.vendor: gate.closed_until is None for gate in await store.list_gates(database)} == {
        "github": True,
        "stripe": False,
    }


# ----------------------------------------------------------------------------------------------------- what is missing
async def test_only_what_a_consumer_subscribed_to_is_missing(
    database: Database, connect: Connect, owner: Connection, clock: Clock
) -> None:
    await inbox.subscribe(database, "fulfillment", [Subscription("stripe", KIND)])
    events = await arrive(connect, ("stripe", "a", KIND), ("clerk", "a", KIND), ("stripe", "b", "refunded"))
    await forget_deliveries(owner, *events)
    await clock.shift(timedelta(seconds=4))
    assert await store.owe_missing(database, WINDOW) == [Pair(events[0], "fulfillment")]


async def test_anothers_delivery_is_not_ours(
    database: Database, connect: Connect, owner: Connection, clock: Clock
) -> None:
    for consumer in ("fulfillment", "rewards"):
        await inbox.subscribe(database, consumer, [Subscription("stripe", KIND)])
    (event,) = await arrive(connect, ("stripe", "a", KIND))
    await owner.execute("delete from webhook_deliveries where consumer = 'rewards'")
    await clock.shift(timedelta(seconds=4))
    assert await store.owe_missing(database, WINDOW) == [Pair(event, "rewards")]


async def test_what_is_there_takes_no_place_of_what_is_missing(
    database: Database, connect: Connect, owner: Connection, clock: Clock
) -> None:
    await inbox.subscribe(database, "fulfillment", [Subscription("stripe", KIND)])
    _, later = await arrive(connect, ("stripe", "a", KIND), ("stripe", "b", KIND))
    await forget_deliveries(owner, later)
    await clock.shift(timedelta(seconds=4))
    assert await store.owe_missing(database, WINDOW, limit=1) == [Pair(later, "fulfillment")]


async def test_two_sweeps_at_once_are_harmless(
    database: Database, connect: Connect, owner: Connection, clock: Clock, database_url: DatabaseUrl
) -> None:
    """The second waits for the first one's commit and finds nothing left to do."""
    await inbox.subscribe(database, "fulfillment", [Subscription("stripe", KIND)])
    (event,) = await arrive(connect, ("stripe", "a", KIND))
    await forget_deliveries(owner, event)
    await clock.shift(timedelta(seconds=4))
    async with database.transaction() as tx:
        assert await store.owe_missing(tx, WINDOW) == [Pair(event, "fulfillment")]
        second = asyncio.create_task(store.owe_missing(await connect(ROLE), WINDOW))
        await until_waiting(owner)
    assert await second == []
    assert await owed(owner) == [(event, "fulfillment")]


async def until_waiting(owner: Connection) -> None:
    waiting = "select exists (select from pg_locks where not granted)"
    await wait_until(lambda: owner.fetchval(waiting), within_s=5, what="the second to wait")


# ------------------------------------------------------------------------------------------------------ a new consumer
class Dying(Database):
    """A database that is lost after ``statements`` more of its statements."""

    def __init__(self, living: Database, statements: int) -> None:
        super().__init__(living._pool, living.role)
        self.left = statements

    def _spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Retryable("database_unavailable")

    async def row(self, shape: type[R], query: LiteralString, *args: object) -> R | None:
        self._spend()
        return await super().row(shape, query, *args)

    async def execute(self, query: LiteralString, *args: object) -> int:
        self._spend()
        return await super().execute(query, *args)


async def test_a_catch_up_that_was_cut_off_marks_only_what_it_finished(
    database: Database, connect: Connect, owner: Connection
) -> None:
    """Marked too early, a subscription's older events would never be looked through."""
    neighbours = [
        ("clerk", KIND, "fulfillment"),
        ("stripe", KIND, "fulfillment"),
        ("stripe", KIND, "rewards"),
        ("stripe", "refunded", "fulfillment"),
    ]
    await arrive(connect, ("clerk", "a", KIND), ("stripe", "b", KIND), ("stripe", "c", "refunded"))
    for source, kind, consumer in neighbours:
        await inbox.subscribe(database, consumer, [Subscription(source, kind)])
    await owner.execute("update webhook_subscriptions set since = since - interval '1 hour'")
    caught_up = "select count(*) from webhook_subscriptions where caught_up_at is not null"
    for nth in range(1, len(neighbours)):
        with pytest.raises(Retryable):
            # One subscription: a page with its event, an empty one, the mark.
            await store.catch_up(Dying(database, 3))
        assert await owner.fetchval(caught_up) == nth
    assert await store.catch_up(database) == 1
    assert len(await owed(owner)) == len(neighbours)


async def test_a_catch_up_owes_what_was_subscribed_to_and_is_not_owed_yet(
    database: Database, connect: Connect, owner: Connection
) -> None:
    await inbox.subscribe(database, "fulfillment", [Subscription("stripe", KIND)])
    events = await arrive(
        connect, ("stripe", "a", KIND), ("clerk", "a", KIND), ("stripe", "b", "refunded"), ("stripe", "c", KIND)
    )
    await forget_deliveries(owner, events[0])
    assert await store.catch_up(database) == 1
    assert await owed(owner) == [(events[0], "fulfillment"), (events[3], "fulfillment")]


async def test_what_was_caught_up_with_is_looked_through_once(
    database: Database, connect: Connect, owner: Connection
) -> None:
    """From then on a missing pair is the sweep's, by its window: no boot reads years of events."""
    await inbox.subscribe(database, "fulfillment", [Subscription("stripe", KIND)])
    (event,) = await arrive(connect, ("stripe", "a", KIND))
    assert await store.catch_up(database) == 0
    await forget_deliveries(owner, event)
    assert await store.catch_up(database) == 0
    assert await owed(owner) == []


# ----------------------------------------------------------------------------------------------------------- the reads
async def test_only_what_is_parked_is_counted_as_parked(database: Database, connect: Connect) -> None:
    await inbox.subscribe(database, "fulfillment", [Subscription("stripe", KIND)])
    arrivals = [Arrival("stripe", "thin", KIND, b"{}", "thin_event"), Arrival("stripe", "a", KIND, b"{}")]
    await ingress_store.arrive(await connect("rowclaim_ingress"), arrivals)
    assert await store.count_parked(database) == [store.ParkedCount("ingress", "thin_event", 1)]


async def test_a_page_is_listed_until_its_cause_is_gone(database: Database) -> None:
    pager = Pager(database)
    for key in ("first", "second"):
        await pager.page(key, Severity.ERROR, "look")
    await pager.resolve("first")
    assert [page.dedup_key for page in await store.list_open_pages(database, limit=10)] == ["second"]


async def test_a_session_that_holds_a_transaction_open_is_named_when_it_is_old(
    connect: Connect, owner: Connection, clock: Clock
) -> None:
    # Of other roles' sessions only a superuser, or pg_read_all_stats, is told; and of every database's on the server.
    watcher = await connect()

    async def old(than: timedelta) -> set[int]:
        return {session.pid for session in await store.list_old_transactions(watcher, than)}

    async with (await connect(ROLE)).transaction() as tx:
        pid = await tx.value("select pg_backend_pid()")
        assert pid not in await old(timedelta(minutes=1))
        await clock.shift(timedelta(minutes=2))
        assert pid in await old(timedelta(minutes=1))
        assert await watcher.value("select pg_backend_pid()") not in await old(timedelta(minutes=1))
        assert pid not in await old(timedelta(minutes=3))


async def test_a_role_that_is_as_it_must_be_is_not_amiss(database: Database) -> None:
    wanted = {ROLE: True, "rowclaim_reader": True, "rowclaim_owner": False, "rowclaim_cdc": False, "nobody": True}
    amiss = await store.list_roles_amiss(database, wanted, ["lock_timeout", "statement_timeout"])
    assert [(role.name, role.exists, role.can_login) for role in amiss] == [
        ("nobody", False, False),
        ("rowclaim_owner", True, False),
        ("rowclaim_reader", True, True),
    ]


async def test_a_role_is_bounded_by_every_setting_and_by_no_other(connect: Connect) -> None:
    """Roles are the whole server's: this one is never committed."""

    async def probe(*settings: str) -> list[bool]:
        async with superuser.transaction() as tx:
            await tx.execute("create role probe login")
            for setting in settings:
                await tx.execute(f"alter role probe set {setting} = 1")
            amiss = await store.list_roles_amiss(tx, {"probe": False}, ["lock_timeout", "statement_timeout"])
            raise Told([role.bounded for role in amiss])

    superuser = await connect()
    for settings, bounded in (
        (("lock_timeout", "statement_timeout"), []),
        (("lock_timeout", "tcp_user_timeout"), [False]),
        (("lock_timeout",), [False]),
    ):
        with pytest.raises(Told) as told:
            await probe(*settings)
        assert told.value.args == (bounded,), settings


class Told(Exception):
    """Carries what was seen out of a transaction, and rolls it back."""
