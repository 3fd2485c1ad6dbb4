"""Every statement of the slice: the inbox's under the door's own bounds, and what operators do with deliveries."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, LiteralString

import asyncpg

from services.kernel import inbox
from services.kernel.db import Database, Tx
from services.kernel.deliveries import DeliveryState

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


# What ``ARRIVE`` would answer, from one snapshot and without storing anything.
WOULD_ARRIVE: Final[LiteralString] = """
select a.source, a.external_id, e.id as event_id, e.id is null as is_new,
       case when e.id is null
         then exists (select from webhook_subscriptions s where s.source = a.source and s.kind = a.kind)
         else exists (
           select from webhook_deliveries d where d.event_id = e.id and d.state in ('pending', 'in_progress'))
       end as unfinished
from unnest($1::text[], $2::text[], $3::text[]) as a (source, external_id, kind)
left join event_ids e on e.source = a.source and e.external_id = a.external_id"""


async def would_arrive(tx: Tx, arrivals: Sequence[Arrival]) -> dict[tuple[str, str], Arrived]:
    """What storing these events would answer, by (source, external_id); none of them is only to be shown."""
    rows = await tx.rows(
        Arrived,
        WOULD_ARRIVE,
        [a.source for a in arrivals],
        [a.external_id for a in arrivals],
        [a.kind for a in arrivals],
    )
    return {(row.source, row.external_id): row for row in rows}


LOCK_WAIT: Final = timedelta(milliseconds=50)
"""How long a batch waits for a lock: everybody behind it waits as long. The single path has its role's patience."""

WAIT_FOR_LOCKS: Final[LiteralString] = """select set_config('lock_timeout', $1, true)"""


async def wait_briefly_for_locks(tx: Tx, wait: timedelta = LOCK_WAIT) -> None:
    """Let the rest of this transaction wait ``wait`` for a lock, instead of its role's patience."""
    await tx.value(WAIT_FOR_LOCKS, f"{wait // timedelta(milliseconds=1)}ms")


async def arrive_together(db: Database, arrivals: Sequence[Arrival]) -> dict[tuple[str, str], Arrived]:
    """Store a batch in one commit, waiting for no lock longer than everybody behind it should; the answers by key."""
    async with db.transaction() as tx:
        await wait_briefly_for_locks(tx)
        return await arrive(tx, arrivals)


async def arrive_alone(db: Database, arrival: Arrival) -> Arrived:
    """Store one event in a commit of its own. A week without a partition is repaired on the way: nobody else would
    do it where only the door runs, and every webhook would be refused until somebody looked."""
    try:
        arrived = await arrive(db, [arrival])
    except asyncpg.CheckViolationError as error:
        if error.constraint_name is not None:  # one of the tables' own: not about a missing partition
            raise
        await inbox.make_partitions(db)
        arrived = await arrive(db, [arrival])
    return arrived[arrival.source, arrival.external_id]


# The end of a page: ``page`` events of any kind from ``since`` on, so that a rare kind costs no endless statement. It
# ends between two instants, never inside one: a batch's events share theirs, and a resume begins after it.
PAGE_END: Final[LiteralString] = """
select max(p.received_at) as last_received_at
from (select received_at from event_ids
      where received_at >= $1 and received_at < $2
      order by received_at limit $3) p"""


async def find_page_end(tx: Tx, *, since: datetime, until: datetime, page: int) -> datetime | None:
    """When the last event of the next page was received; None: there is no event left."""
    last: datetime | None = await tx.value(PAGE_END, since, until, page)
    return last


@dataclass(frozen=True, slots=True)
class Standing:
    """How a stored event stands with a consumer that is subscribed to its kind. ``state`` None: it was never owed.
    ``has_body``: it is still kept, and was not forgotten."""

    event_id: int
    source: str
    received_at: datetime
    state: DeliveryState | None
    claim_token: int | None
    has_body: bool


STANDINGS: Final[LiteralString] = """
select e.id as event_id, e.source, e.received_at, d.state, d.claim_token,
       exists (select from event_bodies b
               where b.event_id = e.id and b.received_at = e.received_at and b.body <> '') as has_body
from event_ids e
join webhook_subscriptions s on s.source = e.source and s.kind = e.kind and s.consumer = $1
left join webhook_deliveries d on d.event_id = e.id and d.consumer = $1
where e.kind = $2 and e.received_at >= $3 and e.received_at <= $4
order by e.id"""


async def list_standings(
    tx: Tx, *, consumer: str, kind: str, since: datetime, last_received_at: datetime
) -> list[Standing]:
    """How the consumer stands with each event of a kind, both ends of the page included."""
    return await tx.rows(Standing, STANDINGS, consumer, kind, since, last_received_at)


KINDS_OWED: Final[LiteralString] = """
select distinct kind from webhook_subscriptions where consumer = $1 order by kind"""


@dataclass(frozen=True, slots=True)
class Kind:
    kind: str


async def list_kinds_owed(tx: Tx, consumer: str) -> list[str]:
    """The kinds of event a consumer is owed."""
    return [row.kind for row in await tx.rows(Kind, KINDS_OWED, consumer)]


KINDS_OWED_TO_ANY: Final[LiteralString] = """
select distinct kind from webhook_subscriptions where source = $1 order by kind"""


async def list_kinds_owed_to_any(tx: Tx, source: str) -> list[str]:
    """The kinds of a sender's events that some consumer is owed."""
    return [row.kind for row in await tx.rows(Kind, KINDS_OWED_TO_ANY, source)]


# By a person's edge: the claim token moves on, so that whoever finished the row once cannot finish this run of it.
REPLAY: Final[LiteralString] = """
update webhook_deliveries d
set state = 'pending', edge = case d.state when 'done' then 'replay' else 'replay_not_ours' end,
    claim_token = d.claim_token + 1, outcome_token = null, next_attempt_at = rowclaim_clock(),
    finished_at = null, crash_reaps = 0
from unnest($2::bigint[], $3::bigint[]) as u (event_id, token)
where d.event_id = u.event_id and d.consumer = $1 and d.state in ('done', 'not_ours') and d.claim_token = u.token"""


async def replay_deliveries(tx: Tx, consumer: str, finished: Sequence[Standing]) -> int:
    """Set finished deliveries back to pending; how many still were as they stood."""
    ids, tokens = [s.event_id for s in finished], [s.claim_token for s in finished]
    return await tx.execute(REPLAY, consumer, ids, tokens)


OWE: Final[LiteralString] = """
insert into webhook_deliveries (event_id, consumer, received_at, state, edge, next_attempt_at)
select u.event_id, $1, u.received_at, 'pending', 'arrive', rowclaim_clock()
from unnest($2::bigint[], $3::timestamptz[]) as u (event_id, received_at)
order by u.event_id
on conflict do nothing"""


async def owe_deliveries(tx: Tx, consumer: str, missing: Sequence[Standing]) -> int:
    """Make the deliveries that a consumer was never owed; how many were still missing."""
    return await tx.execute(OWE, consumer, [s.event_id for s in missing], [s.received_at for s in missing])


@dataclass(frozen=True, slots=True)
class ParkedDelivery:
    """A delivery that waits for a person."""

    event_id: int
    consumer: str
    source: str
    kind: str
    external_id: str
    parked_reason: str
    attempt: int
    since: datetime
    claim_token: int


# Optional filters, one statement: what stands parked is little, and the partial index holds it all.
LIST_PARKED: Final[LiteralString] = """
select d.event_id, d.consumer, e.source, e.kind, e.external_id, d.parked_reason, d.attempt,
       coalesce(d.finished_at, d.received_at) as since, d.claim_token
from webhook_deliveries d join event_ids e on e.id = d.event_id
where d.state = 'parked' and (d.event_id, d.consumer) > ($1, $2) and ($3::text is null or d.parked_reason = $3)
order by d.event_id, d.consumer limit $4"""


async def list_parked(
    tx: Tx, *, limit: int, after: tuple[int, str] = (0, ""), reason_code: str | None = None
) -> list[ParkedDelivery]:
    """Parked deliveries by event and consumer, those of ``reason_code`` alone if it is given."""
    return await tx.rows(ParkedDelivery, LIST_PARKED, *after, reason_code, limit)


FIND_PARKED: Final[LiteralString] = """
select d.event_id, d.consumer, e.source, e.kind, e.external_id, d.parked_reason, d.attempt,
       coalesce(d.finished_at, d.received_at) as since, d.claim_token
from unnest($1::bigint[], $2::text[]) as u (event_id, consumer)
join webhook_deliveries d on d.event_id = u.event_id and d.consumer = u.consumer
join event_ids e on e.id = d.event_id
where d.state = 'parked'
order by d.event_id, d.consumer"""


async def find_parked(tx: Tx, named: Sequence[tuple[int, str]]) -> list[ParkedDelivery]:
    """Those of the named deliveries that are parked."""
    return await tx.rows(ParkedDelivery, FIND_PARKED, [n[0] for n in named], [n[1] for n in named])


# One statement, so that what is written into the list of admin actions is what was done.
UNPARK: Final[LiteralString] = """
with unparked as (
  update webhook_deliveries d
  set state = 'pending', edge = 'unpark', claim_token = d.claim_token + 1, outcome_token = null,
      next_attempt_at = rowclaim_clock(), finished_at = null, crash_reaps = 0, parked_reason = null
  from unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[]) as u (event_id, consumer, token, parked_reason)
  where d.event_id = u.event_id and d.consumer = u.consumer and d.state = 'parked' and d.claim_token = u.token
  returning d.event_id, d.consumer, u.parked_reason)
insert into admin_actions (actor, verb, target, reason, before, after)
select $5, 'unpark', 'delivery ' || event_id || ':' || consumer, $6,
       jsonb_build_object('state', 'parked', 'parked_reason', parked_reason), jsonb_build_object('state', 'pending')
from unparked order by event_id, consumer"""


async def unpark_deliveries(tx: Tx, parked: Sequence[ParkedDelivery], *, actor: str, reason: str) -> int:
    """Set parked deliveries back to pending and keep who did it and why; how many still were as they stood."""
    return await tx.execute(
        UNPARK,
        [p.event_id for p in parked],
        [p.consumer for p in parked],
        [p.claim_token for p in parked],
        [p.parked_reason for p in parked],
        actor,
        reason,
    )


RECORD_REPLAY: Final[LiteralString] = """
insert into admin_actions (actor, verb, target, reason, before, after)
values ($1, 'replay', $2, $3, jsonb_build_object('finished', $4::bigint[], 'missing', $5::bigint[]),
        jsonb_build_object('put_back', $6::integer, 'made', $7::integer))"""


async def record_replay(
    tx: Tx,
    *,
    actor: str,
    target: str,
    reason: str,
    finished: Sequence[int],
    missing: Sequence[int],
    put_back: int,
    made: int,
) -> None:
    """Keep which events a page of a replay was about, who asked for it, and why."""
    await tx.execute(RECORD_REPLAY, actor, target, reason, finished, missing, put_back, made)


RECORD_BACKFILL: Final[LiteralString] = """
insert into admin_actions (actor, verb, target, reason, before, after)
values ($1, 'backfill', $2, $3, jsonb_build_object('since', $4::timestamptz, 'until', $5::timestamptz),
        jsonb_build_object('looked_at', $6::integer, 'stored', $7::integer, 'events', $8::bigint[]))"""


async def record_backfill(
    tx: Tx,
    *,
    actor: str,
    target: str,
    reason: str,
    since: datetime,
    until: datetime,
    looked_at: int,
    stored: Sequence[int],
) -> None:
    """Keep which events a page of a backfill stored, who asked for it, and for what time."""
    await tx.execute(RECORD_BACKFILL, actor, target, reason, since, until, looked_at, len(stored), stored)
