"""What the commands ask the database about itself, and what a person's hand leaves there."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString

from services.kernel.db import Tx
from services.kernel.pager import Severity


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
    """A login role that is missing, or cannot log in, or is wanted in the services' group and is not in it."""

    name: str
    exists: bool
    can_login: bool
    wants_service: bool


ROLES_AMISS: Final[LiteralString] = """
select w.name, r.oid is not null as exists, coalesce(r.rolcanlogin, false) as can_login, w.wants_service
from unnest($1::text[], $2::boolean[]) as w (name, wants_service)
left join pg_roles r on r.rolname = w.name
left join pg_roles g on g.rolname = 'rowclaim_service'
where r.oid is null or not r.rolcanlogin
   or (w.wants_service and not coalesce(pg_has_role(r.oid, g.oid, 'member'), false))
order by w.name"""


async def list_roles_amiss(tx: Tx, wanted: Mapping[str, bool]) -> list[RoleAmiss]:
    """Which of the ``wanted`` roles (by name: is it one of the services' group) are not as they must be."""
    return await tx.rows(RoleAmiss, ROLES_AMISS, list(wanted), list(wanted.values()))


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


RECORD_ACTION: Final[LiteralString] = """
insert into admin_actions (actor, verb, target, reason, before, after)
values ($1, $2, $3, $4, $5::jsonb, $6::jsonb)"""


async def record_action(
    tx: Tx, *, actor: str, verb: str, target: str, reason: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    """Keep who did what by hand, and why."""
    await tx.execute(RECORD_ACTION, actor, verb, target, reason, json.dumps(before), json.dumps(after))
