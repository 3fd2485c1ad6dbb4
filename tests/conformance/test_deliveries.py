"""Deliveries of events keep the law of claims."""

from datetime import UTC, datetime, timedelta

from services.kernel import deliveries
from services.kernel.claim import WORKER
from services.kernel.db import Tx
from services.kernel.deliveries import ClaimedDelivery, Delivery, Done, NotOurs, Parked, PutBack, Verdict
from services.operations.store import reap_deliveries
from tests.conformance.claims import Claims
from tests.conformance.kind import Held, Kind

CONSUMER = "fulfillment"
LEASE = timedelta(seconds=30)


async def claim(tx: Tx, limit: int) -> list[Held]:
    claimed = await deliveries.claim_deliveries(tx, CONSUMER, limit=limit, lease=LEASE, floor=None)
    return [Held((delivery.event_id, CONSUMER), delivery.claim_token) for delivery in claimed]


async def write(tx: Tx, held: Held, verdict: Verdict) -> bool:
    event_id, consumer = held.key
    assert isinstance(event_id, int)
    delivery = Delivery(event_id, held.token, 1, "stripe", "evt", "paid", b"{}")
    return await deliveries.finish_deliveries(tx, str(consumer), [(delivery, verdict)]) == 1


async def finish(tx: Tx, held: Held) -> bool:
    return await write(tx, held, Done())


async def disown(tx: Tx, held: Held) -> bool:
    return await write(tx, held, NotOurs())


async def park(tx: Tx, held: Held) -> bool:
    return await write(tx, held, Parked("unmarked_object"))


async def put_back(tx: Tx, held: Held) -> bool:
    return await write(tx, held, PutBack())


async def renew(tx: Tx, held: Held) -> bool:
    event_id, consumer = held.key
    assert isinstance(event_id, int)
    claimed = ClaimedDelivery(event_id, held.token, 1, datetime.now(UTC))
    return await deliveries.renew_deliveries(tx, str(consumer), [claimed], LEASE) == 1


async def reap(tx: Tx) -> int:
    return len(await reap_deliveries(tx))


DELIVERIES = Kind(
    machine=deliveries.DELIVERIES,
    role="rowclaim_fulfillment",
    key=("event_id", "consumer"),
    seed=f"""
with event as (
  insert into event_ids (source, external_id, kind, received_at)
  select 'stripe', 'evt_' || n, 'paid', rowclaim_now() - interval '1 day' + n * interval '1 s'
  from generate_series($1::int, 1, -1) n
  on conflict (source, external_id) do update set kind = excluded.kind
  returning id, received_at)
insert into webhook_deliveries (event_id, consumer, received_at, state, edge, next_attempt_at)
select id, '{CONSUMER}', received_at, 'pending', 'arrive', received_at from event order by received_at desc""",
    ages="next_attempt_at, event_id",
    claim=claim,
    claim_query=deliveries.CLAIM_DELIVERIES,
    claim_arguments=(CONSUMER, 1, WORKER, LEASE, None),
    claim_index="webhook_deliveries_pending",
    lease=LEASE,
    outcomes={"finish": finish, "disown": disown, "park": park, "put_back": put_back},
    batch=True,
    renew=renew,
    reap=reap,
    columns={
        "pending": "lease_until = null, parked_reason = null",
        "in_progress": "lease_until = rowclaim_now() + interval '30 s', parked_reason = null",
        "done": "lease_until = null, parked_reason = null",
        "not_ours": "lease_until = null, parked_reason = null",
        "parked": "lease_until = null, parked_reason = 'unmarked_object'",
    },
    withheld={
        "not due yet": "next_attempt_at = rowclaim_now() + interval '1 minute'",
        "another consumer's": "consumer = 'rewards'",
    },
)


class TestDeliveries(Claims):
    kind = DELIVERIES
