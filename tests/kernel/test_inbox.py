"""The inbox: one statement stores a batch, whatever it holds; nothing is owed twice and nothing is forgotten."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from services.ingress.store import Arrival, arrive
from services.kernel import inbox
from services.kernel.inbox import Subscription
from services.operations.store import Pair, catch_up, owe_missing
from tests.fixtures.database import Clock, Connect, DatabaseUrl
from tests.waiting import wait_until

PAID = Subscription("stripe", "checkout.session.completed")


def arrival(
    external_id: str, *, kind: str = PAID.kind, body: bytes = b"{}", parked_reason: str | None = None
) -> Arrival:
    return Arrival("stripe", external_id, kind, body, parked_reason)


async def deliveries(owner: asyncpg.Connection) -> list[tuple[int, str, str]]:
    rows = await owner.fetch("select event_id, consumer, state from webhook_deliveries order by event_id, consumer")
    return [tuple(row) for row in rows]


async def test_a_batch_with_duplicates_inside_and_outside_is_stored_once(
    connect: Connect, owner: asyncpg.Connection
) -> None:
    db = await connect("rowclaim_ingress")
    await inbox.subscribe(await connect("rowclaim_fulfillment"), "fulfillment", [PAID])

    first = await arrive(db, [arrival("a", body=b"first"), arrival("b"), arrival("a", body=b"second"), arrival("c")])
    again = await arrive(db, [arrival("b"), arrival("d"), arrival("d")])

    assert {key[1]: (a.is_new, a.unfinished) for key, a in first.items()} == dict.fromkeys("abc", (True, True))
    assert again["stripe", "b"].is_new is False
    assert again["stripe", "b"].unfinished is True
    assert again["stripe", "b"].event_id == first["stripe", "b"].event_id
    assert again["stripe", "d"].is_new is True
    assert await owner.fetchval("select count(*) from event_ids") == 4
    bodies = await owner.fetch(
        "select e.external_id, b.body from event_ids e join event_bodies b on b.event_id = e.id order by 1"
    )
    assert [tuple(row) for row in bodies] == [("a", b"first"), ("b", b"{}"), ("c", b"{}"), ("d", b"{}")]
    assert len(await deliveries(owner)) == 4


async def test_an_event_nobody_subscribed_to_is_stored_and_owed_to_nobody(
    connect: Connect, owner: asyncpg.Connection
) -> None:
    db = await connect("rowclaim_ingress")
    arrived = await arrive(db, [arrival("a", kind="invoice.paid")])
    assert arrived["stripe", "a"].is_new
    assert await deliveries(owner) == []
    assert not (await arrive(db, [arrival("a", kind="invoice.paid")]))["stripe", "a"].unfinished


async def test_a_parked_arrival_is_shown_and_owed_to_nobody_else(connect: Connect, owner: asyncpg.Connection) -> None:
    db = await connect("rowclaim_ingress")
    await inbox.subscribe(await connect("rowclaim_fulfillment"), "fulfillment", [PAID])
    arrived = await arrive(db, [arrival("thin", parked_reason="thin_event")])
    event_id = arrived["stripe", "thin"].event_id
    assert await deliveries(owner) == [(event_id, "ingress", "parked")]
    shown = await owner.fetchrow("select id, state, why from desk.ingress_parked")
    assert shown is not None
    assert tuple(shown) == (f"{event_id}:ingress", "parked", "thin_event")


async def test_the_loser_of_a_race_learns_no_id_and_need_not_ring(
    connect: Connect, database_url: DatabaseUrl, owner: asyncpg.Connection
) -> None:
    db = await connect("rowclaim_ingress")
    winner = await asyncpg.connect(database_url("rowclaim_ingress"))
    try:
        block = winner.transaction()
        await block.start()
        await winner.execute(
            "insert into event_ids (source, external_id, kind, received_at) values ('stripe', 'a', 'k', rowclaim_now())"
        )
        loser = asyncio.create_task(arrive(db, [arrival("a", kind="k")]))
        waits = "select exists (select from pg_locks where not granted)"
        await wait_until(lambda: owner.fetchval(waits), within_s=30, what="the loser waits for the winner's commit")
        assert not loser.done()
        await block.commit()
        arrived = (await loser)["stripe", "a"]
        assert (arrived.event_id, arrived.is_new) == (None, False)
    finally:
        await winner.close()


async def test_batches_with_the_same_keys_in_opposite_order_never_deadlock(
    connect: Connect, owner: asyncpg.Connection
) -> None:
    db = await connect("rowclaim_ingress")
    for nth in range(30):
        keys = [f"{nth}-{key}" for key in range(60)]
        both = await asyncio.gather(
            arrive(db, [arrival(key) for key in keys]), arrive(db, [arrival(key) for key in reversed(keys)])
        )
        assert all(sum(answers["stripe", key].is_new for answers in both) == 1 for key in keys)
    assert await owner.fetchval("select count(*) from event_ids") == 30 * 60


async def test_an_event_stored_while_its_subscription_was_made_is_owed_by_the_sweep(
    connect: Connect, owner: asyncpg.Connection, clock: Clock
) -> None:
    db = await connect("rowclaim_fulfillment")
    await inbox.subscribe(db, "fulfillment", [PAID])
    arrived = await arrive(await connect("rowclaim_ingress"), [arrival("a")])
    await owner.execute("alter table webhook_deliveries disable trigger all; delete from webhook_deliveries")
    await owner.execute("alter table webhook_deliveries enable trigger all")

    assert await owe_missing(db, timedelta(seconds=30)) == [], "the youngest three seconds are left alone"
    await clock.shift(timedelta(seconds=4))
    event_id = arrived["stripe", "a"].event_id
    assert event_id is not None
    assert await owe_missing(db, timedelta(seconds=30)) == [Pair(event_id, "fulfillment")]
    assert await owe_missing(db, timedelta(seconds=30)) == []
    assert await deliveries(owner) == [(event_id, "fulfillment", "pending")]


async def test_the_sweep_owes_nothing_from_before_the_subscription(connect: Connect, clock: Clock) -> None:
    db = await connect("rowclaim_fulfillment")
    await arrive(await connect("rowclaim_ingress"), [arrival("a")])
    await clock.shift(timedelta(seconds=10))
    await inbox.subscribe(db, "fulfillment", [PAID])
    assert await owe_missing(db, timedelta(hours=1)) == []
    assert await catch_up(db) == 0


@pytest.mark.parametrize("count", [1, 5, 10, 11])
async def test_a_new_subscription_is_caught_up_from_its_instant_in_pages(
    connect: Connect, owner: asyncpg.Connection, count: int
) -> None:
    db = await connect("rowclaim_fulfillment")
    await arrive(await connect("rowclaim_ingress"), [arrival(f"e{nth}") for nth in range(count)])
    await inbox.subscribe(db, "fulfillment", [PAID])
    await owner.execute("update webhook_subscriptions set since = since - interval '1 hour'")
    assert await catch_up(db, page=5) == count
    assert await catch_up(db, page=5) == 0
    assert len(await deliveries(owner)) == count


async def test_a_second_boot_keeps_the_subscription_as_it_was(
    connect: Connect, owner: asyncpg.Connection, clock: Clock
) -> None:
    db = await connect("rowclaim_fulfillment")
    assert await inbox.subscribe(db, "fulfillment", [PAID]) == 1
    since = await owner.fetchval("select since from webhook_subscriptions")
    await clock.shift(timedelta(days=1))
    assert await inbox.subscribe(db, "fulfillment", [PAID, Subscription("stripe", "x")]) == 1
    assert await owner.fetchval("select since from webhook_subscriptions where kind = $1", PAID.kind) == since


async def test_events_are_stored_eight_weeks_ahead_and_refused_beyond_until_partitions_are_made(
    connect: Connect, clock: Clock
) -> None:
    db = await connect("rowclaim_ingress")
    assert await inbox.weeks_ahead(db) == 8
    await clock.shift(timedelta(days=60))
    assert await inbox.weeks_ahead(db) == 0
    await clock.shift(timedelta(days=14))
    with pytest.raises(asyncpg.CheckViolationError):
        await arrive(db, [arrival("late")])
    assert await inbox.make_partitions(db) > 0
    assert await inbox.make_partitions(db) == 0
    assert (await arrive(db, [arrival("late")]))["stripe", "late"].is_new
    assert await inbox.weeks_ahead(db) == 8


async def test_two_senders_may_use_one_id_and_each_is_answered_for_its_own(
    connect: Connect, owner: asyncpg.Connection
) -> None:
    db = await connect("rowclaim_ingress")
    await inbox.subscribe(await connect("rowclaim_fulfillment"), "fulfillment", [PAID])
    pair = [Arrival("clerk", "a", PAID.kind, b"clerk's"), arrival("a", body=b"stripe's")]
    first = await arrive(db, pair)
    assert {key: answer.unfinished for key, answer in first.items()} == {("clerk", "a"): False, ("stripe", "a"): True}
    again = await arrive(db, pair)
    assert {key: (answer.event_id, answer.unfinished) for key, answer in again.items()} == {
        key: (answer.event_id, answer.unfinished) for key, answer in first.items()
    }
    assert await deliveries(owner) == [(first["stripe", "a"].event_id, "fulfillment", "pending")]


async def test_an_event_is_unfinished_while_work_on_it_is_owed_and_on_no_other(
    connect: Connect, owner: asyncpg.Connection
) -> None:
    """What the answer says about one event of a batch, no other event of it may change."""
    db = await connect("rowclaim_ingress")
    await inbox.subscribe(await connect("rowclaim_fulfillment"), "fulfillment", [PAID])
    first = await arrive(db, [arrival("paid"), arrival("nobodys", kind="invoice.paid")])
    assert {key[1]: answer.unfinished for key, answer in first.items()} == {"paid": True, "nobodys": False}
    again = await arrive(db, [arrival("paid"), arrival("nobodys", kind="invoice.paid"), arrival("new")])
    assert {key[1]: answer.unfinished for key, answer in again.items()} == {
        "paid": True,
        "nobodys": False,
        "new": True,
    }
    await owner.execute("set session_replication_role = replica")
    await owner.execute("update webhook_deliveries set state = 'done'")
    assert {answer.unfinished for answer in (await arrive(db, [arrival("paid"), arrival("new")])).values()} == {False}
