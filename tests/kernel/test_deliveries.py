"""Deliveries: claimed in due order, held by renewals, finished by token; a crash is counted, a slow vendor is not."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from services.ingress import store
from services.ingress.store import Arrival
from services.kernel import inbox
from services.kernel.db import Database
from services.kernel.deliveries import (
    CRASHES_MAX,
    ClaimedDelivery,
    Delivery,
    DeliveryState,
    DeliveryWorker,
    Done,
    NotOurs,
    Parked,
    PutBack,
    Verdict,
    claim_deliveries,
    finish_deliveries,
    read_deliveries,
    renew_deliveries,
)
from services.kernel.errors import Retryable
from services.kernel.inbox import Subscription
from services.operations.store import reap_deliveries
from tests.fixtures.database import Clock, Connect
from tests.waiting import wait_until

LEASE = timedelta(seconds=30)


@pytest.fixture
async def db(connect: Connect) -> Database:
    return await connect("rowclaim_fulfillment")


async def arrive(connect: Connect, db: Database, *external_ids: str) -> list[int]:
    await inbox.subscribe(db, "fulfillment", [Subscription("stripe", "paid")])
    ingress = await connect("rowclaim_ingress")
    ids = []
    for external_id in external_ids:
        arrived = await store.arrive(ingress, [Arrival("stripe", external_id, "paid", external_id.encode())])
        event_id = arrived["stripe", external_id].event_id
        assert event_id is not None
        ids.append(event_id)
    return ids


async def claim(db: Database, limit: int = 10) -> list[Delivery]:
    claimed = await claim_deliveries(db, "fulfillment", limit=limit, lease=LEASE, floor=None)
    return await read_deliveries(db, claimed)


async def states(owner: asyncpg.Connection) -> dict[int, str]:
    return {
        row["event_id"]: row["state"] for row in await owner.fetch("select event_id, state from webhook_deliveries")
    }


async def test_each_verdict_is_written_with_its_edge(connect: Connect, db: Database, owner: asyncpg.Connection) -> None:
    ids = await arrive(connect, db, "a", "b", "c", "d")
    verdicts = dict(
        zip(ids, (Done(), NotOurs(), Parked("unmarked_object"), PutBack(timedelta(minutes=5))), strict=True)
    )

    async def handle(batch: Sequence[Delivery]) -> Mapping[int, Verdict]:
        assert [(d.external_id, d.body, d.attempt) for d in batch] == [(x, x.encode(), 1) for x in "abcd"]
        return verdicts

    worker = DeliveryWorker(db, "fulfillment", handle, lease=LEASE, batch_max=10)
    assert await worker.step() == 4
    assert await states(owner) == dict(zip(ids, ("done", "not_ours", "parked", "pending"), strict=True))
    waits = await owner.fetchval(
        "select next_attempt_at > clock_timestamp() + interval '4 minutes' from webhook_deliveries where event_id = $1",
        ids[3],
    )
    assert waits is True
    assert await worker.step() == 0


async def test_a_handler_that_raises_loses_no_event_and_finishes_none(
    connect: Connect, db: Database, owner: asyncpg.Connection, clock: Clock
) -> None:
    (event_id,) = await arrive(connect, db, "a")
    fail = True

    async def handle(batch: Sequence[Delivery]) -> Mapping[int, Verdict]:
        if fail:
            raise RuntimeError("planted")
        return {delivery.event_id: Done() for delivery in batch}

    worker = DeliveryWorker(db, "fulfillment", handle, lease=LEASE, batch_max=10)
    with pytest.raises(RuntimeError, match="planted"):
        await worker.step()
    assert await states(owner) == {event_id: "pending"}
    assert await owner.fetchval("select crash_reaps from webhook_deliveries") == 0
    fail = False
    await clock.shift(timedelta(seconds=2))
    assert await worker.step() == 1
    assert await states(owner) == {event_id: "done"}


async def test_a_stale_worker_finishes_nothing(
    connect: Connect, db: Database, owner: asyncpg.Connection, clock: Clock
) -> None:
    (event_id,) = await arrive(connect, db, "a")
    (stale,) = await claim(db)
    await clock.shift(timedelta(seconds=31))
    assert [(r.event_id, r.state) for r in await reap_deliveries(db)] == [(event_id, DeliveryState.PENDING)]
    (owner_of_row,) = await claim(db)
    assert await finish_deliveries(db, "fulfillment", [(stale, Parked("late"))]) == 0
    assert await renew_deliveries(db, "fulfillment", await _as_claimed(owner, stale.claim_token), LEASE) == 0
    assert await finish_deliveries(db, "fulfillment", [(owner_of_row, Done())]) == 1
    assert await states(owner) == {event_id: "done"}


async def _as_claimed(owner: asyncpg.Connection, token: int) -> list[ClaimedDelivery]:
    row = await owner.fetchrow("select event_id, attempt, next_attempt_at from webhook_deliveries")
    assert row is not None
    return [ClaimedDelivery(row["event_id"], token, row["attempt"], row["next_attempt_at"])]


async def test_a_lease_that_is_not_over_is_never_reaped(connect: Connect, db: Database, clock: Clock) -> None:
    await arrive(connect, db, "a")
    await claim(db)
    await clock.shift(timedelta(seconds=29))
    assert await reap_deliveries(db) == []


async def test_five_crashes_park_a_delivery_and_a_worker_that_renewed_never_counts_as_one(
    connect: Connect, db: Database, owner: asyncpg.Connection, clock: Clock
) -> None:
    (event_id,) = await arrive(connect, db, "a")
    for _ in range(3):
        claimed = await claim_deliveries(db, "fulfillment", limit=1, lease=LEASE, floor=None)
        assert await renew_deliveries(db, "fulfillment", claimed, LEASE) == 1
        await clock.shift(timedelta(seconds=61))
        assert [r.state for r in await reap_deliveries(db)] == [DeliveryState.PENDING]
    assert await owner.fetchval("select crash_reaps from webhook_deliveries") == 0
    for nth in range(1, CRASHES_MAX + 1):
        assert len(await claim(db)) == 1
        await clock.shift(timedelta(seconds=31))
        (reaped,) = await reap_deliveries(db)
        assert reaped.state == (DeliveryState.PARKED if nth == CRASHES_MAX else DeliveryState.PENDING)
    why = await owner.fetchrow("select id, why from desk.ingress_parked")
    assert why is not None
    assert tuple(why) == (f"{event_id}:fulfillment", "kills_workers")
    assert await claim(db) == []


async def test_a_slow_handler_keeps_its_batch_by_renewing(
    connect: Connect, db: Database, owner: asyncpg.Connection
) -> None:
    await arrive(connect, db, "a", "b")

    async def renewed_twice() -> bool:
        return bool(await owner.fetchval("select min(renewals) >= 2 from webhook_deliveries"))

    async def handle(batch: Sequence[Delivery]) -> Mapping[int, Verdict]:
        await wait_until(renewed_twice, within_s=10, what="two renewals")
        return {delivery.event_id: Done() for delivery in batch}

    worker = DeliveryWorker(db, "fulfillment", handle, lease=timedelta(seconds=0.3), batch_max=10)
    assert await worker.step() == 2
    assert set((await states(owner)).values()) == {"done"}


async def test_the_floor_never_hides_a_delivery_made_due_below_it(
    connect: Connect, db: Database, owner: asyncpg.Connection
) -> None:
    seen: list[str] = []

    async def handle(batch: Sequence[Delivery]) -> Mapping[int, Verdict]:
        seen.extend(delivery.external_id for delivery in batch)
        return {delivery.event_id: Done() for delivery in batch}

    await arrive(connect, db, "a", "b")
    worker = DeliveryWorker(db, "fulfillment", handle, lease=LEASE, batch_max=1)
    assert await worker.step() == 1
    await owner.execute("update webhook_deliveries set next_attempt_at = '2000-01-01' where state = 'pending'")
    assert await worker.step() == 1
    assert sorted(seen) == ["a", "b"]


async def test_another_consumers_deliveries_are_not_touched(
    connect: Connect, db: Database, owner: asyncpg.Connection
) -> None:
    (event_id,) = await arrive(connect, db, "a")
    await inbox.subscribe(db, "other", [Subscription("stripe", "paid")])
    (second,) = await arrive(connect, db, "b")
    claimed = await claim(db)
    assert {d.event_id for d in claimed} == {event_id, second}
    await finish_deliveries(db, "fulfillment", [(d, Done()) for d in claimed])
    left = await owner.fetch("select event_id, consumer from webhook_deliveries where state = 'pending'")
    assert [tuple(row) for row in left] == [(second, "other")]


async def test_a_batch_whose_events_cannot_be_read_goes_back_at_once(
    connect: Connect, db: Database, owner: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    (event_id,) = await arrive(connect, db, "a")

    async def busy(*_: object) -> list[Delivery]:
        raise Retryable("database_busy")

    async def handle(batch: Sequence[Delivery]) -> Mapping[int, Verdict]:
        raise AssertionError(batch)

    monkeypatch.setattr("services.kernel.deliveries.read_deliveries", busy)
    with pytest.raises(Retryable):
        await DeliveryWorker(db, "fulfillment", handle, lease=LEASE, batch_max=10).step()
    assert await states(owner) == {event_id: "pending"}


async def test_an_outage_shorter_than_its_patience_costs_a_worker_nothing(
    connect: Connect, db: Database, owner: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    (event_id,) = await arrive(connect, db, "a")
    outages = [Retryable("database_unavailable")] * 2

    async def finish(*args: Any) -> int:
        if outages:
            raise outages.pop()
        return await finish_deliveries(*args)

    async def handle(batch: Sequence[Delivery]) -> Mapping[int, Verdict]:
        return {delivery.event_id: Done() for delivery in batch}

    monkeypatch.setattr("services.kernel.deliveries.finish_deliveries", finish)
    monkeypatch.setattr("services.kernel.worker.BACKOFF_MIN_S", 0.001)
    assert await DeliveryWorker(db, "fulfillment", handle, lease=LEASE, batch_max=10).step() == 1
    assert await states(owner) == {event_id: "done"}


async def test_an_event_that_nobody_can_handle_costs_its_neighbours_nothing_and_is_parked_in_the_end(
    connect: Connect, db: Database, owner: asyncpg.Connection, clock: Clock
) -> None:
    before, poison, behind = await arrive(connect, db, "before", "poison", "behind")

    async def handle(batch: Sequence[Delivery]) -> Mapping[int, Verdict]:
        if any(delivery.external_id == "poison" for delivery in batch):
            raise RuntimeError("planted")
        return {delivery.event_id: Done() for delivery in batch}

    for nth in range(1, CRASHES_MAX + 1):
        # Anew each time: the error ends the process.
        with pytest.raises(RuntimeError, match="planted"):
            await DeliveryWorker(db, "fulfillment", handle, lease=LEASE, batch_max=10).step()
        stands = "parked" if nth == CRASHES_MAX else "pending"
        assert await states(owner) == {before: "done", poison: stands, behind: "done"}
        await clock.shift(timedelta(seconds=2))
    assert await owner.fetchval("select why from desk.ingress_parked") == "handler_fails"
    assert await DeliveryWorker(db, "fulfillment", handle, lease=LEASE, batch_max=10).step() == 0


async def test_a_forgotten_event_reaches_no_handler_and_stands_in_sight(
    db: Database, connect: Connect, owner: asyncpg.Connection
) -> None:
    """Beside others, and alone: then nobody is asked at all."""
    ids = await arrive(connect, db, "a", "b", "c")
    seen: list[bytes | None] = []

    async def handle(batch: Sequence[Delivery]) -> Mapping[int, Verdict]:
        seen.append(*[delivery.body for delivery in batch])
        return {delivery.event_id: Done() for delivery in batch}

    worker = DeliveryWorker(db, "fulfillment", handle, lease=LEASE, batch_max=2)
    await owner.execute("update event_bodies set body = '' where event_id = any($1::bigint[])", ids[1:])
    assert [await worker.step() for _ in range(3)] == [2, 1, 0]
    assert seen == [b"a"]
    rows = await owner.fetch("select state, parked_reason from webhook_deliveries order by event_id")
    assert [tuple(row) for row in rows] == [("done", None), ("parked", "forgotten"), ("parked", "forgotten")]
