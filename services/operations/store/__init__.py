"""What the commands ask the database about itself, what a person's hand leaves there, and what the sweeps owe."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString

from services.kernel.db import Tx
from services.kernel.deliveries import CRASHES_MAX, DeliveryState
from services.kernel.pager import Page, Severity


@dataclass(frozen=True, slots=True)
class Server:
    """``version`` as a number: 180004 is 18.4."""

    version: int
    wal_level: str


SERVER: Final[LiteralString] = """
select current_setting('server_version_num')::integer as version, current_setting('wal_level') as wal_level"""


async def read_server(tx: Tx) -> Server:
    """What server answers."""
    server = await tx.row(Server, SERVER)
    if server is None:
        raise LookupError("a select without a table returns a row")
    return server


@dataclass(frozen=True, slots=True)
class RoleAmiss:
    """A login role that is missing, cannot log in, is wanted in the services' group and is not in it, or waits without
    the bounds that every login role has."""

    name: str
    exists: bool
    can_login: bool
    bounded: bool
    wants_service: bool


ROLES_AMISS: Final[LiteralString] = """
select w.name, r.oid is not null as exists, coalesce(r.rolcanlogin, false) as can_login,
       b.settings = cardinality($3::text[]) as bounded, w.wants_service
from unnest($1::text[], $2::boolean[]) as w (name, wants_service)
left join pg_roles r on r.rolname = w.name
left join pg_roles g on g.rolname = 'rowclaim_service'
cross join lateral (
  select count(*) as settings from unnest(r.rolconfig) as s (line)
  where lower(split_part(s.line, '=', 1)) = any($3::text[])) b
where r.oid is null or not r.rolcanlogin or b.settings < cardinality($3::text[])
   or (w.wants_service and not coalesce(pg_has_role(r.oid, g.oid, 'member'), false))
order by w.name"""


async def list_roles_amiss(tx: Tx, wanted: Mapping[str, bool], bounds: Iterable[str]) -> list[RoleAmiss]:
    """Which of the ``wanted`` roles (by name: is it one of the services' group) are not as they must be; each has a
    setting of its own for every one of ``bounds``."""
    return await tx.rows(RoleAmiss, ROLES_AMISS, list(wanted), list(wanted.values()), list(bounds))


@dataclass(frozen=True, slots=True)
class OldTransaction:
    """A session that holds a transaction open: no dead row younger than it can be cleared away."""

    pid: int
    application: str
    role: str
    since: datetime


OLD_TRANSACTIONS: Final[LiteralString] = """
select pid, application_name as application, usename::text as role, xact_start as since
from pg_stat_activity
where xact_start < rowclaim_now() - $1::interval and backend_type = 'client backend' and pid <> pg_backend_pid()
order by xact_start limit 10"""


async def list_old_transactions(tx: Tx, older_than: timedelta) -> list[OldTransaction]:
    """Sessions whose transaction began longer ago than ``older_than``, oldest first, ten at most."""
    return await tx.rows(OldTransaction, OLD_TRANSACTIONS, older_than)


@dataclass(frozen=True, slots=True)
class ParkedCount:
    consumer: str
    reason: str
    deliveries: int


PARKED_COUNTS: Final[LiteralString] = """
select consumer, parked_reason as reason, count(*) as deliveries from webhook_deliveries
where state = 'parked' group by consumer, parked_reason order by consumer, parked_reason"""


async def count_parked(tx: Tx) -> list[ParkedCount]:
    """Parked deliveries, by consumer and reason."""
    return await tx.rows(ParkedCount, PARKED_COUNTS)


@dataclass(frozen=True, slots=True)
class OpenPage:
    """A page whose cause stands; ``sent_at`` None: nobody was told yet."""

    dedup_key: str
    severity: Severity
    summary: str
    opened_at: datetime
    seen: int
    sent_at: datetime | None


OPEN_PAGES: Final[LiteralString] = """
select dedup_key, severity, summary, opened_at, seen, sent_at from pages
where resolved_at is null order by opened_at, id limit $1"""


async def list_open_pages(tx: Tx, *, limit: int) -> list[OpenPage]:
    """Pages whose cause stands, oldest first."""
    return await tx.rows(OpenPage, OPEN_PAGES, limit)


# One sender a page at a time: a late "opened" behind a "resolved" would wake somebody for what is over and never end.
# What was refused stands behind what was not tried: pages that the pager never takes must not hold up all others.
TAKE_UNSENT: Final[LiteralString] = """
with next as materialized (
  select id from pages
  where (sent_at is null or (resolved_at is not null and resolve_sent_at is null))
    and coalesce(sending_until, '-infinity') <= rowclaim_now()
  order by sending_until nulls first, id limit $1 for no key update skip locked)
update pages p set sending_until = rowclaim_now() + $2::interval
from next where p.id = next.id
returning p.id, p.dedup_key, p.severity, p.summary, p.sent_at is not null as resolved"""


async def take_unsent(tx: Tx, *, limit: int, lease: timedelta) -> list[Page]:
    """Hold for ``lease`` up to ``limit`` pages that nobody was told of, or of whose end; oldest first."""
    return sorted(await tx.rows(Page, TAKE_UNSENT, limit, lease), key=lambda page: page.id)


LET_GO: Final[LiteralString] = """
update pages set sending_until = case when not $2 then rowclaim_now() end,
  sent_at = coalesce(sent_at, case when $2 then rowclaim_now() end),
  resolve_sent_at = case when $2 and $3 then rowclaim_now() end
where id = $1"""


async def let_go(tx: Tx, page: Page, *, taken: bool) -> None:
    """Write whether the pager took a page; what it refused is free again after those that were not tried."""
    await tx.execute(LET_GO, page.id, taken, page.resolved)


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate as operators see it."""

    vendor: str
    closed_until: datetime | None
    reason: str | None
    closed_by: str | None
    refusals: int


@dataclass(frozen=True, slots=True)
class ClosedByHand:
    vendor: str


OPEN: Final[LiteralString] = """
update vendor_gates set closed_until = null, reason = null, closed_by = null, closed_at = null, refusals = 0
where vendor = $1 and closed_until > rowclaim_now()"""

GATES: Final[LiteralString] = """
select vendor, case when closed_until > rowclaim_now() then closed_until end as closed_until,
       reason, closed_by, refusals
from vendor_gates order by vendor"""


async def list_gates(tx: Tx) -> list[Gate]:
    """Every vendor that was ever called through a gate; ``closed_until`` None: open."""
    return await tx.rows(Gate, GATES)


# By the hand that closed it last: what a vendor's refusal closed since is not a person's to open unnamed.
CLOSED_BY_HAND: Final[LiteralString] = """
select g.vendor from vendor_gates g
where g.closed_until > rowclaim_now() and exists (
  select from admin_actions a where a.verb = 'close_gate' and a.target = 'gate ' || g.vendor and a.actor = g.closed_by)
order by g.vendor"""


async def list_closed_by_hand(tx: Tx) -> list[str]:
    """The vendors whose gate a person holds closed."""
    return [row.vendor for row in await tx.rows(ClosedByHand, CLOSED_BY_HAND)]


async def open_gate(tx: Tx, vendor: str) -> bool:
    """Open a closed gate on a person's word; False: it was open."""
    return await tx.execute(OPEN, vendor) == 1


RECORD_ACTION: Final[LiteralString] = """
insert into admin_actions (actor, verb, target, reason, before, after)
values ($1, $2, $3, $4, $5::jsonb, $6::jsonb)"""


async def record_action(
    tx: Tx, *, actor: str, verb: str, target: str, reason: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    """Keep who did what by hand, and why."""
    await tx.execute(RECORD_ACTION, actor, verb, target, reason, json.dumps(before), json.dumps(after))


# One statement: a SELECT first and an UPDATE by id next would overwrite rows that finished in between.
REAP_DELIVERIES: Final[LiteralString] = """
with dead as materialized (
  select event_id, consumer, claim_token from webhook_deliveries
  where state = 'in_progress' and lease_until < rowclaim_now()
  order by claimed_at limit $1 for no key update skip locked)
update webhook_deliveries d
set state = case when d.renewals = 0 and d.crash_reaps + 1 >= $2 then 'parked' else 'pending' end,
    edge = case when d.renewals = 0 and d.crash_reaps + 1 >= $2 then 'reap_park' else 'reap' end,
    parked_reason = case when d.renewals = 0 and d.crash_reaps + 1 >= $2 then 'kills_workers' end,
    crash_reaps = d.crash_reaps + case when d.renewals = 0 then 1 else 0 end,
    claim_token = d.claim_token + 1, outcome_token = null, lease_until = null, next_attempt_at = rowclaim_clock()
from dead
where d.event_id = dead.event_id and d.consumer = dead.consumer and d.claim_token = dead.claim_token
  and d.lease_until < rowclaim_now()
returning d.event_id, d.consumer, d.state"""


@dataclass(frozen=True, slots=True)
class Reaped:
    event_id: int
    consumer: str
    state: DeliveryState


async def reap_deliveries(tx: Tx, *, limit: int = 500) -> list[Reaped]:
    """Free deliveries whose lease is over, whoever held them; one that keeps killing its workers is parked."""
    return await tx.rows(Reaped, REAP_DELIVERIES, limit, CRASHES_MAX)


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
