"""The inbox: an event is stored once, with one delivery for every consumer that is owed it.

An event has no business row yet, so this is the one queue. ``arrive`` is one statement for a whole batch: duplicates
inside it, old duplicates and kinds nobody subscribed to are all answered by it. Deliveries are worked off by
``kernel.deliveries``; a delivery claim saves work, it is never the guard of an effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from services.kernel.db import Tx

INGRESS_CONSUMER: Final = "ingress"
"""Who keeps the delivery of an event that was stored only to be shown: verified, but of a shape nobody can read."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A verified event at the door. ``parked_reason`` set: store it and show it, nobody can work on it."""

    source: str
    external_id: str
    kind: str
    body: bytes
    parked_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Arrived:
    """What became of an arrival. ``event_id`` None: another transaction is storing the same event at this moment; its
    winner rings, the delivery sweep stands behind it. ``unfinished``: work on it is still owed, ring (again)."""

    source: str
    external_id: str
    event_id: int | None
    is_new: bool
    unfinished: bool


@dataclass(frozen=True, slots=True)
class Subscription:
    """Events of this source and kind are owed to a consumer."""

    source: str
    kind: str


# The order in ``fresh`` is the lock order: two batches with the same keys in opposite order would deadlock without it.
# ``unfinished`` of an old event is read from the snapshot; a new one's deliveries are made here, if anybody is owed
# one: most kinds that a sender sends are nobody's, and ring for nobody.
ARRIVE: Final[LiteralString] = """
with arrived as materialized (
  select distinct on (source, external_id) source, external_id, kind, body, parked_reason
  from unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::text[]) with ordinality
    as a (source, external_id, kind, body, parked_reason, nth)
  order by source, external_id, nth),
fresh as (
  insert into event_ids (source, external_id, kind, received_at)
  select source, external_id, kind, rowclaim_now() from arrived order by source, external_id
  on conflict (source, external_id) do nothing
  returning id, source, external_id, kind, received_at),
bodies as (
  insert into event_bodies (received_at, event_id, body)
  select f.received_at, f.id, a.body from fresh f join arrived a using (source, external_id)),
owed as (
  insert into webhook_deliveries (event_id, consumer, received_at, state, edge, next_attempt_at)
  select f.id, s.consumer, f.received_at, 'pending', 'arrive', rowclaim_clock()
  from fresh f
  join arrived a using (source, external_id)
  join webhook_subscriptions s on s.source = f.source and s.kind = f.kind
  where a.parked_reason is null
  returning event_id),
shown as (
  insert into webhook_deliveries (event_id, consumer, received_at, state, edge, next_attempt_at, parked_reason)
  select f.id, 'ingress', f.received_at, 'parked', 'arrive_parked', rowclaim_clock(), a.parked_reason
  from fresh f join arrived a using (source, external_id)
  where a.parked_reason is not null)
select a.source, a.external_id, coalesce(f.id, e.id) as event_id, f.id is not null as is_new,
       exists (select from owed o where o.event_id = f.id) or exists (
         select from webhook_deliveries d
         where d.event_id = e.id and d.state in ('pending', 'in_progress')) as unfinished
from arrived a
left join fresh f using (source, external_id)
left join event_ids e on f.id is null and e.source = a.source and e.external_id = a.external_id"""


async def arrive(tx: Tx, arrivals: Sequence[Arrival]) -> dict[tuple[str, str], Arrived]:
    """Store a batch in one statement; the answers by (source, external_id). In autocommit the return is the commit."""
    rows = await tx.rows(
        Arrived,
        ARRIVE,
        [a.source for a in arrivals],
        [a.external_id for a in arrivals],
        [a.kind for a in arrivals],
        [a.body for a in arrivals],
        [a.parked_reason for a in arrivals],
    )
    return {(row.source, row.external_id): row for row in rows}


# A changed card must not owe a consumer what was received before it subscribed: ``since`` keeps its first value.
SUBSCRIBE: Final[LiteralString] = """
insert into webhook_subscriptions (source, kind, consumer, since)
select source, kind, $3, rowclaim_now() from unnest($1::text[], $2::text[]) as s (source, kind)
order by source, kind
on conflict do nothing"""


async def subscribe(tx: Tx, consumer: str, subscriptions: Sequence[Subscription]) -> int:
    """Owe ``consumer`` these events from now on; returns how many subscriptions are new. Removing one is a migration's
    business: a process of the older release may still rely on it."""
    return await tx.execute(SUBSCRIBE, [s.source for s in subscriptions], [s.kind for s in subscriptions], consumer)


MAKE_PARTITIONS: Final[LiteralString] = """select make_event_partitions($1)"""
WEEKS_AHEAD: Final[LiteralString] = """select event_weeks_ahead()"""
PARTITION_WEEKS: Final = 8


async def make_partitions(tx: Tx, weeks: int = PARTITION_WEEKS) -> int:
    """Make the weekly partitions of event bodies up to ``weeks`` ahead; returns how many were made."""
    made: int = await tx.value(MAKE_PARTITIONS, weeks)
    return made


async def weeks_ahead(tx: Tx) -> int:
    """Whole weeks for which events can still be stored."""
    weeks: int = await tx.value(WEEKS_AHEAD)
    return weeks
