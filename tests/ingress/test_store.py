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
from tests.fixtures.database import Connect

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
