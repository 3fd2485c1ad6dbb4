"""The statements of retention, under the one role that may blank bodies and delete rows: what a person's forgetting
looks for and blanks, and what pruning drops. Periods are told by their callers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, LiteralString

from services.kernel.db import Tx

RETENTION_ROLE: Final = "rowclaim_retention"


# -------------------------------------------------------------------------------------------------- forgetting a person
LAST_OF_PAGE: Final[LiteralString] = """
select max(p.event_id) from (select event_id from event_bodies where event_id > $1 order by event_id limit $2) p"""


async def find_last_of_page(tx: Tx, *, after: int, page: int) -> int | None:
    """The last of the next ``page`` events whose body is kept; None: there is none left."""
    last: int | None = await tx.value(LAST_OF_PAGE, after, page)
    return last


@dataclass(frozen=True, slots=True)
class Naming:
    """A body in which one of the texts was found."""

    event_id: int
    received_at: datetime
    body: bytes


NAMING: Final[LiteralString] = """
select event_id, received_at, body from event_bodies
where event_id > $1 and event_id <= $2
  and exists (select from unnest($3::bytea[]) as t (form) where position(t.form in body) > 0)
order by event_id"""


async def list_naming(tx: Tx, forms: Sequence[bytes], *, after: int, last: int) -> list[Naming]:
    """The bodies of a page in which one of ``forms`` is found, as a text of its own or as a part of another."""
    return await tx.rows(Naming, NAMING, after, last, forms)


BLANK: Final[LiteralString] = """
update event_bodies b set body = '' from unnest($1::bigint[], $2::timestamptz[]) as u (event_id, received_at)
where b.event_id = u.event_id and b.received_at = u.received_at"""


async def blank_bodies(tx: Tx, naming: Sequence[Naming]) -> int:
    """Blank these bodies; how many there were. An empty body is a forgotten one, to whoever reads it."""
    return await tx.execute(BLANK, [one.event_id for one in naming], [one.received_at for one in naming])


@dataclass(frozen=True, slots=True)
class Held:
    """A delivery that somebody is working on, and the body they read."""

    event_id: int
    consumer: str
    body: bytes


HELD: Final[LiteralString] = """
select d.event_id, d.consumer, b.body
from webhook_deliveries d join event_bodies b on b.event_id = d.event_id and b.received_at = d.received_at
where d.state = 'in_progress'
  and exists (select from unnest($1::bytea[]) as t (form) where position(t.form in b.body) > 0)
order by d.event_id, d.consumer"""


async def list_held(tx: Tx, forms: Sequence[bytes]) -> list[Held]:
    """The deliveries in progress in whose body one of ``forms`` is found."""
    return await tx.rows(Held, HELD, forms)


FORGOTTEN_AND_HELD: Final[LiteralString] = """
select d.event_id || ':' || d.consumer
from webhook_deliveries d join event_bodies b on b.event_id = d.event_id and b.received_at = d.received_at
where d.state = 'in_progress' and b.body = '' order by d.event_id, d.consumer limit 1"""


async def find_forgotten_and_held(tx: Tx) -> str | None:
    """A delivery in progress whose body is blank, by its name; None: there is none."""
    held: str | None = await tx.value(FORGOTTEN_AND_HELD)
    return held


# ------------------------------------------------------------------------------------------------------------- pruning
@dataclass(frozen=True, slots=True)
class DeliveriesChunk:
    """``last_event_id``, ``last_consumer``: the end of what was looked at; None: there was nothing. ``young``: nothing
    of it is old enough, and neither is what comes after."""

    pruned: int
    looked_at: int
    young: bool
    last_event_id: int | None
    last_consumer: str | None


# By the primary key, so that no chunk reads again what an earlier one passed over: ids come with time. What is finished
# is asked of the row as it is deleted: a replay may have come between.
PRUNE_DELIVERIES: Final[LiteralString] = """
with chunk as materialized (
  select event_id, consumer, received_at,
         state in ('done', 'not_ours') and finished_at < rowclaim_now() - $4::interval as spent
  from webhook_deliveries where (event_id, consumer) > ($1, $2) order by event_id, consumer limit $3),
gone as (
  delete from webhook_deliveries d using chunk c
  where $5 and d.event_id = c.event_id and d.consumer = c.consumer
    and d.state in ('done', 'not_ours') and d.finished_at < rowclaim_now() - $4::interval
  returning d.event_id)
select case when $5 then (select count(*) from gone) else count(*) filter (where spent) end as pruned,
       count(*) as looked_at, coalesce(min(received_at) >= rowclaim_now() - $4::interval, true) as young,
       (array_agg(event_id order by event_id desc, consumer desc))[1] as last_event_id,
       (array_agg(consumer order by event_id desc, consumer desc))[1] as last_consumer
from chunk"""


async def prune_deliveries(
    tx: Tx, *, after: tuple[int, str], chunk: int, kept: timedelta, dry_run: bool
) -> DeliveriesChunk | None:
    """Delete, of the ``chunk`` deliveries behind ``after``, those that were finished longer ago than ``kept``."""
    return await tx.row(DeliveriesChunk, PRUNE_DELIVERIES, *after, chunk, kept, not dry_run)


@dataclass(frozen=True, slots=True)
class EventIdsChunk:
    """As of deliveries; ``last_received_at`` and ``last_id`` None: there was nothing."""

    pruned: int
    looked_at: int
    last_received_at: datetime | None
    last_id: int | None


# One that a delivery still names is kept, unless that goes as well: a delivery that is unfinished, or was lately.
PRUNE_EVENT_IDS: Final[LiteralString] = """
with chunk as materialized (
  select id, received_at, not exists (
           select from webhook_deliveries d where d.event_id = e.id
             and not (d.state in ('done', 'not_ours') and d.finished_at < rowclaim_now() - $6::interval)) as spent
  from event_ids e
  where (received_at, id) > ($1, $2) and received_at < rowclaim_now() - $4::interval
  order by received_at, id limit $3),
gone as (
  delete from event_ids e using chunk c where $5 and e.id = c.id and c.spent
  returning e.id)
select case when $5 then (select count(*) from gone) else count(*) filter (where spent) end as pruned,
       count(*) as looked_at, max(received_at) as last_received_at,
       (array_agg(id order by received_at desc, id desc))[1] as last_id
from chunk"""


FIRST: Final = (datetime(2000, 1, 1, tzinfo=UTC), 0)
"""Before every event."""


async def prune_event_ids(
    tx: Tx, *, after: tuple[datetime, int], chunk: int, kept: timedelta, deliveries_kept: timedelta, dry_run: bool
) -> EventIdsChunk | None:
    """Delete, of the ``chunk`` ids behind ``after`` that are older than ``kept``, those that no delivery names but one
    that was finished longer ago than ``deliveries_kept``."""
    return await tx.row(EventIdsChunk, PRUNE_EVENT_IDS, *after, chunk, kept, not dry_run, deliveries_kept)


# A job's latest period stays: by it the next one is known.
PRUNE_JOB_RUNS: Final[LiteralString] = """
with chunk as materialized (
  select job, period from job_runs r
  where state = 'done' and finished_at < rowclaim_now() - $2::interval
    and exists (select from job_runs later where later.job = r.job and later.period > r.period)
  order by finished_at limit case when $3 then $1::bigint end),
gone as (
  delete from job_runs r using chunk c where $3 and r.job = c.job and r.period = c.period
  returning r.job)
select case when $3 then (select count(*) from gone) else count(*) end from chunk"""


async def prune_job_runs(tx: Tx, *, chunk: int, kept: timedelta, dry_run: bool) -> int:
    """Delete up to ``chunk`` periods that were done longer ago than ``kept``; how many. Dry: all there are."""
    pruned: int = await tx.value(PRUNE_JOB_RUNS, chunk, kept, not dry_run)
    return pruned


PRUNE_PAGES: Final[LiteralString] = """
with chunk as materialized (
  select id from pages
  where resolved_at < rowclaim_now() - $2::interval and resolve_sent_at is not null
  order by id limit case when $3 then $1::bigint end),
gone as (
  delete from pages p using chunk c where $3 and p.id = c.id
  returning p.id)
select case when $3 then (select count(*) from gone) else count(*) end from chunk"""


async def prune_pages(tx: Tx, *, chunk: int, kept: timedelta, dry_run: bool) -> int:
    """Delete up to ``chunk`` pages that were over, and told as over, longer ago than ``kept``; how many. Dry: all."""
    pruned: int = await tx.value(PRUNE_PAGES, chunk, kept, not dry_run)
    return pruned


@dataclass(frozen=True, slots=True)
class OldWeek:
    """A week of event bodies that is old enough; ``needed``: bodies in it that somebody may still work on."""

    partition_name: str
    needed: int


OLD_WEEKS: Final[LiteralString] = """
select partition_name, needed from old_event_partitions($1)"""


async def list_old_weeks(tx: Tx, kept: timedelta) -> list[OldWeek]:
    """Weeks of event bodies that ended longer ago than ``kept``, oldest first."""
    return await tx.rows(OldWeek, OLD_WEEKS, kept)


DROP_WEEK: Final[LiteralString] = """select drop_event_partition($1, $2)"""


async def drop_week(tx: Tx, week: OldWeek, kept: timedelta) -> bool:
    """Drop a week of event bodies; False: it became needed meanwhile, or somebody else dropped it."""
    dropped: bool = await tx.value(DROP_WEEK, week.partition_name, kept)
    return dropped
