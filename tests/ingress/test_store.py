"""The fences of what operators do: a row that moved since it was looked at is left alone."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import asyncpg
import pytest

from services.ingress import store
from services.ingress.store import Arrival, arrive
from services.kernel import inbox
from services.kernel.deliveries import Delivery, DeliveryWorker, Done, Parked, Verdict
from services.kernel.inbox import Subscription
from tests.fixtures.database import Clock, Connect

KIND = "checkout.session.completed"


async def finished(connect: Connect, verdict: Verdict) -> int:
    db = await connect("rowclaim_fulfillment")
    await inbox.subscribe(db, "fulfillment", [Subscription("stripe", KIND)])
    await arrive(await connect("rowclaim_ingress"), [Arrival("stripe", "evt_1", KIND, b"{}")])

    async def handle(batch: Sequence[Delivery]) -> dict[int, Verdict]:
        return {delivery.event_id: verdict for delivery in batch}

    worker = DeliveryWorker(db, "fulfillment", handle, lease=timedelta(seconds=30), batch_max=10)
    assert await worker.step() == 1
    event_id: int = await db.value("select event_id from webhook_deliveries")
    return event_id


async def test_a_delivery_finished_again_since_it_was_looked_at_is_not_replayed(connect: Connect) -> None:
    event_id = await finished(connect, Done())
    operator = await connect("rowclaim_operator")
    since = await operator.value("select rowclaim_now() - interval '1 hour'")
    until = await operator.value("select rowclaim_now()")
    (seen,) = await store.list_standings(
        operator, consumer="fulfillment", kind=KIND, since=since, last_received_at=until
    )
    assert seen.claim_token is not None
    earlier = replace(seen, claim_token=seen.claim_token - 1)
    assert await store.replay_deliveries(operator, "fulfillment", [earlier]) == 0
    assert await store.replay_deliveries(operator, "another", [seen]) == 0
    assert await store.replay_deliveries(operator, "fulfillment", [seen]) == 1
    assert await store.replay_deliveries(operator, "fulfillment", [seen]) == 0
    assert await operator.value("select event_id from webhook_deliveries where state = 'pending'") == event_id


async def test_a_delivery_parked_again_since_it_was_looked_at_is_not_given_back(
    connect: Connect, owner: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await finished(connect, Parked("unreadable"))
    operator = await connect("rowclaim_operator")
    (seen,) = await store.list_parked(operator, limit=1)
    earlier = replace(seen, claim_token=seen.claim_token - 1)
    for parked, count in ((earlier, 0), (seen, 1), (seen, 0)):
        assert await store.unpark_deliveries(operator, [parked], actor="ada@desk", reason="looked at it") == count
    assert await owner.fetchval("select count(*) from admin_actions") == 1, "what was not done is not kept as done"


@pytest.mark.parametrize("role", ["rowclaim_reader", "rowclaim_cdc"])
async def test_who_only_reads_gives_nothing_back(connect: Connect, role: str) -> None:
    await finished(connect, Parked("unreadable"))
    (seen,) = await store.list_parked(await connect("rowclaim_operator"), limit=1)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await store.unpark_deliveries(await connect(role), [seen], actor="ada@desk", reason="looked at it")


# --------------------------------------------------------------------- another sender, another kind, another consumer
async def test_events_are_listed_for_the_consumer_that_is_owed_them(connect: Connect) -> None:
    operator = await connect("rowclaim_operator")
    await inbox.subscribe(operator, "fulfillment", [Subscription("stripe", KIND)])
    await inbox.subscribe(operator, "rewards", [Subscription("clerk", KIND), Subscription("stripe", "refunded")])
    ingress = await connect("rowclaim_ingress")
    ids = {}
    for source, kind in (("stripe", KIND), ("clerk", KIND), ("stripe", "refunded")):
        arrived = await arrive(ingress, [Arrival(source, "evt_1" if kind == KIND else "evt_2", kind, b"{}")])
        ((key, answer),) = arrived.items()
        ids[source, kind] = answer.event_id
        assert key[0] == source
    hour = timedelta(hours=1)
    now = await operator.value("select rowclaim_now()")

    async def standing(consumer: str, kind: str) -> list[tuple[int, str | None]]:
        listed = await store.list_standings(
            operator, consumer=consumer, kind=kind, since=now - hour, last_received_at=now + hour
        )
        return [(one.event_id, one.state) for one in listed]

    assert await standing("fulfillment", KIND) == [(ids["stripe", KIND], "pending")]
    assert await standing("rewards", KIND) == [(ids["clerk", KIND], "pending")]
    assert await standing("rewards", "refunded") == [(ids["stripe", "refunded"], "pending")]
    assert await store.list_kinds_owed(operator, "fulfillment") == [KIND]
    assert await store.list_kinds_owed(operator, "rewards") == [KIND, "refunded"]


async def test_one_consumers_delivery_says_nothing_about_anothers(connect: Connect) -> None:
    await finished(connect, Done())
    operator = await connect("rowclaim_operator")
    await inbox.subscribe(operator, "rewards", [Subscription("stripe", KIND)])
    now = await operator.value("select rowclaim_now()")
    hour = timedelta(hours=1)
    (missing,) = await store.list_standings(
        operator, consumer="rewards", kind=KIND, since=now - hour, last_received_at=now
    )
    assert (missing.state, missing.has_body) == (None, True)
    assert await store.owe_deliveries(operator, "rewards", [missing]) == 1
    assert await store.owe_deliveries(operator, "rewards", [missing]) == 0, "owed meanwhile: left as it is"


async def test_a_page_ends_before_its_end(connect: Connect, clock: Clock) -> None:
    ingress = await connect("rowclaim_ingress")
    start = await ingress.value("select rowclaim_now()")
    await arrive(ingress, [Arrival("stripe", "a", KIND, b"{}")])
    until = await ingress.value("select rowclaim_clock()")
    await clock.shift(timedelta(minutes=1))
    await arrive(ingress, [Arrival("stripe", "b", KIND, b"{}")])
    last = await store.find_page_end(ingress, since=start, until=until, page=10)
    assert last is not None
    assert start <= last < until
    assert await store.find_page_end(ingress, since=until, until=until, page=10) is None


async def test_only_the_named_delivery_is_found_and_given_back(connect: Connect, owner: asyncpg.Connection) -> None:
    """Two consumers, two events, one token: each of the four is somebody else's."""
    operator = await connect("rowclaim_operator")
    for consumer in ("fulfillment", "rewards"):
        await inbox.subscribe(operator, consumer, [Subscription("stripe", KIND)])
    ingress = await connect("rowclaim_ingress")
    for external_id in ("a", "b", "c"):
        await arrive(ingress, [Arrival("stripe", external_id, KIND, b"{}")])
    await owner.execute("set session_replication_role = replica")
    await owner.execute(
        "update webhook_deliveries set state = 'parked', parked_reason = 'unreadable' "
        "where event_id <> (select max(event_id) from webhook_deliveries)"
    )
    parked = await store.list_parked(operator, limit=10)
    named = [(one.event_id, one.consumer, one.external_id) for one in parked]
    first, second = sorted({event_id for event_id, _, _ in named})
    assert named == [
        (first, "fulfillment", "a"),
        (first, "rewards", "a"),
        (second, "fulfillment", "b"),
        (second, "rewards", "b"),
    ]
    assert await store.list_parked(operator, limit=10, after=(first, "fulfillment")) == parked[1:]
    assert await store.find_parked(operator, [(first, "rewards")]) == [parked[1]]
    assert await store.find_parked(operator, [(second + 1, "rewards")]) == [], "that one is pending"
    assert await store.unpark_deliveries(operator, [parked[1]], actor="ada@desk", reason="looked at it") == 1
    assert await store.list_parked(operator, limit=10) == [parked[0], *parked[2:]]


async def test_only_what_is_finished_is_replayed(connect: Connect, owner: asyncpg.Connection) -> None:
    event_id = await finished(connect, Done())
    operator = await connect("rowclaim_operator")
    await inbox.subscribe(operator, "rewards", [Subscription("stripe", KIND)])
    await owner.execute("set session_replication_role = replica")
    await owner.execute(
        "insert into webhook_deliveries (event_id, consumer, received_at, state, edge, claim_token, next_attempt_at) "
        "select event_id, 'rewards', received_at, state, edge, claim_token, next_attempt_at from webhook_deliveries"
    )
    now = await operator.value("select rowclaim_now()")
    hour = timedelta(hours=1)
    (seen,) = await store.list_standings(
        operator, consumer="fulfillment", kind=KIND, since=now - hour, last_received_at=now
    )
    await owner.execute(
        "update webhook_deliveries set state = 'parked', parked_reason = 'x' where consumer = 'fulfillment'"
    )
    assert await store.replay_deliveries(operator, "fulfillment", [seen]) == 0
    await owner.execute(
        "update webhook_deliveries set state = 'not_ours', parked_reason = null where consumer = 'fulfillment'"
    )
    assert await store.replay_deliveries(operator, "fulfillment", [seen]) == 1
    rows = await owner.fetch("select event_id, consumer, state from webhook_deliveries order by consumer")
    assert [tuple(row) for row in rows] == [(event_id, "fulfillment", "pending"), (event_id, "rewards", "done")]
