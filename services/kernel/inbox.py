"""The inbox: an event is stored once, with one delivery for every consumer that is owed it.

An event has no business row yet, so this is the one queue. ``arrive`` is one statement for a whole batch: duplicates
inside it, old duplicates and kinds nobody subscribed to are all answered by it. Deliveries are worked off by
``kernel.deliveries``; a delivery claim saves work, it is never the guard of an effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
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


# Looks through a window of events for pairs without a delivery: an event that was committed while its subscription
# was being made. The youngest three seconds are left to the transactions that are still storing them.
OWE_MISSING: Final[LiteralString] = """
insert into webhook_deliveries (event_id, consumer, received_at, state, edge, next_attempt_at)
select e.id, s.consumer, e.received_at, 'pending', 'arrive', rowclaim_clock()
from webhook_subscriptions s
join event_ids e on e.source = s.source and e.kind = s.kind
where e.received_at >= greatest(s.since, rowclaim_now() - $1::interval)
  and e.received_at < rowclaim_now() - interval '3 seconds'
  and not exists (select from webhook_deliveries d where d.event_id = e.id and d.consumer = s.consumer)
order by e.id, s.consumer
limit $2
on conflict do nothing
returning event_id, consumer"""


@dataclass(frozen=True, slots=True)
class Pair:
    """An event and a consumer it is owed to."""

    event_id: int
    consumer: str


async def owe_missing(tx: Tx, window: timedelta, *, limit: int = 1000) -> list[Pair]:
    """Insert the deliveries that events of the last ``window`` lack; returns the pairs, which the caller rings."""
    return await tx.rows(Pair, OWE_MISSING, window, limit)


# A subscription made while events were already there: every event since ``since`` is looked through once, in pages.
NEW_SUBSCRIPTIONS: Final[LiteralString] = """
select source, kind, consumer, since from webhook_subscriptions
where caught_up_at is null order by source, kind, consumer"""

CATCH_UP: Final[LiteralString] = """
with page as materialized (
  select e.id, e.received_at from event_ids e
  where e.source = $1 and e.kind = $2 and e.received_at >= $4 and e.id > $5
  order by e.id limit $6),
owed as (
  insert into webhook_deliveries (event_id, consumer, received_at, state, edge, next_attempt_at)
  select p.id, $3, p.received_at, 'pending', 'arrive', rowclaim_clock() from page p
  on conflict do nothing
  returning event_id)
select max(id) as last_id, count(*) as looked_at, (select count(*) from owed) as owed from page"""

CAUGHT_UP: Final[LiteralString] = """
update webhook_subscriptions set caught_up_at = rowclaim_now()
where source = $1 and kind = $2 and consumer = $3 and caught_up_at is null"""


@dataclass(frozen=True, slots=True)
class NewSubscription:
    source: str
    kind: str
    consumer: str
    since: datetime


@dataclass(frozen=True, slots=True)
class CatchUpPage:
    """One page of a catch-up: the last event id looked at (None: nothing left), how many, how many were owed."""

    last_id: int | None
    looked_at: int
    owed: int


async def catch_up(tx: Tx, *, page: int = 1000) -> int:
    """Owe new subscriptions what arrived since they began; returns how many deliveries were made. Ends by itself."""
    owed = 0
    for new in await tx.rows(NewSubscription, NEW_SUBSCRIPTIONS):
        after = 0
        while True:
            done = await tx.row(CatchUpPage, CATCH_UP, new.source, new.kind, new.consumer, new.since, after, page)
            if done is None or done.last_id is None:
                break
            owed += done.owed
            after = done.last_id
        await tx.execute(CAUGHT_UP, new.source, new.kind, new.consumer)
    return owed


BODY: Final[LiteralString] = """
select e.source, e.external_id, e.kind, b.body
from event_ids e left join event_bodies b on b.event_id = e.id and b.received_at = e.received_at
where e.id = $1"""


@dataclass(frozen=True, slots=True)
class Event:
    """A stored event. ``body`` None: it is older than bodies are kept."""

    source: str
    external_id: str
    kind: str
    body: bytes | None


async def find_event(tx: Tx, event_id: int) -> Event | None:
    """An event by its id, with its bytes as they were received."""
    return await tx.row(Event, BODY, event_id)


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
