"""``rowclaim doctor``: everything that must hold before and while rowclaim runs, one sentence for each fault.

A check says what it saw, or raises the error of the list that names the fault; following that error's sentence repairs
it. A check whose ground is missing (no database, no schema) is not asked. The exit status is the first fault's.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final

import typer

from services.kernel.clock import database_now, wall_time
from services.kernel.db import Database
from services.kernel.errors import Retryable, ServiceError, Stop
from services.kernel.inbox import weeks_ahead
from services.kernel.service import Service, verify_machine
from services.kernel.settings import Settings
from services.operations import store
from services.operations.environment import Loaded
from services.operations.migrating import pending_migrations
from services.operations.process import KERNEL_MACHINES, Process
from services.operations.terminal import OUT, REFUSED_EXIT, Terminal, run_async, show, tell

SERVER_VERSION_MIN: Final = 170_000
WEEKS_AHEAD_MIN: Final = 2
SKEW_MAX_S: Final = 2.0
TRANSACTION_AGE_MAX: Final = timedelta(minutes=10)
PAGES_SHOWN: Final = 5
SERVICE_ROLES: Final = ("rowclaim_operator",)
ROLE_BOUNDS: Final = {
    "timezone": "UTC",
    "lock_timeout": "2s",
    "statement_timeout": "5s",
    "idle_in_transaction_session_timeout": "10s",
}
"""What the migrations set for each login role; without them a session waits for ever."""
OTHER_LOGIN_ROLES: Final = ("rowclaim_reader", "rowclaim_cdc", "rowclaim_retention")


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was seen, or the code, instance and advice of the fault."""

    check: str
    ok: bool
    seen: str
    code: str | None = None
    advice: str | None = None


Check = tuple[str, Callable[[], Awaitable[str]]]
"""A name, and a look: what it saw, or the ServiceError that names the fault."""


def doctor(
    context: typer.Context,
    slice_name: Annotated[str | None, typer.Option("--slice", help="As a machine that runs only this slice.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The findings as JSON.")] = False,
) -> None:
    """Look at everything that must hold, and say for each fault what to do."""
    terminal: Terminal = context.obj
    services = terminal.chosen(slice_name, lambda service: service.routes or service.consume)
    findings, faults = run_async(examine(terminal, services))
    if as_json:
        show({"ok": not faults, "findings": findings}, as_json=True)
    else:
        for finding in findings:
            if finding.ok:
                OUT.print(f"ok     {finding.check}: {finding.seen}", markup=False)
        for error in faults:
            tell(error)
    if faults:
        raise typer.Exit(faults[0].code.exit or REFUSED_EXIT)


async def examine(terminal: Terminal, services: Sequence[Service]) -> tuple[list[Finding], list[ServiceError]]:
    """All findings in order, and the faults among them."""
    findings: list[Finding] = []
    faults: list[ServiceError] = []

    async def asked(*checks: Check) -> bool:
        """Whether all of these were well."""
        before = len(faults)
        for name, look in checks:
            try:
                findings.append(Finding(name, ok=True, seen=await look()))
            except ServiceError as error:
                faults.append(error)
                findings.append(Finding(name, False, error.detail, error.code.name, error.code.sentence))
        return len(faults) == before

    try:
        loaded = terminal.load(services)
    except Stop as error:
        return [Finding("settings", False, error.detail, error.code.name, error.code.sentence)], [error]
    findings.append(Finding("settings", ok=True, seen="all known and valid"))
    settings = loaded.settings
    try:
        async with terminal.connected(settings.database_url_own) as database:
            if await asked(*server_checks(database, settings)):
                await asked(*schema_checks(terminal, services, database, settings))
    except (Retryable, Stop) as error:
        gone = Stop("database_unreachable", error.detail)
        faults.append(gone)
        findings.append(Finding("database", False, gone.detail, gone.code.name, gone.code.sentence))
    whole = not faults
    await asked(*outside_checks(settings))
    if whole:
        for service in services:
            await asked(
                *[
                    (f"{service.name}: {error.code.name}", raising(error))
                    for error in await own_checks(terminal, loaded, service)
                ]
            )
    return findings, faults


def raising(error: ServiceError) -> Callable[[], Awaitable[str]]:
    async def look() -> str:
        raise error

    return look


async def own_checks(terminal: Terminal, loaded: Loaded, service: Service) -> Sequence[ServiceError]:
    """What the slice itself finds amiss with its vendors."""
    if service.checks is None:
        return ()
    async with Process.open("doctor", (service,), loaded, terminal.make_sender) as process:
        return await service.checks(process)


def server_checks(database: Database, settings: Settings) -> list[Check]:
    async def version() -> str:
        server = await store.read_server(database)
        if server.version < SERVER_VERSION_MIN:
            raise Stop("server_too_old", f"PostgreSQL {server.version // 10_000}")
        return f"PostgreSQL {server.version // 10_000}.{server.version % 10_000}"

    async def wal_level() -> str:
        server = await store.read_server(database)
        if server.wal_level != "logical":
            raise Stop("wal_level_low", f"wal_level is {server.wal_level}")
        return server.wal_level

    async def migrations() -> str:
        pending = await pending_migrations(settings)
        if pending:
            raise Stop("migrations_pending", ", ".join(pending))
        return "all applied"

    return [("server version", version), ("write-ahead log", wal_level), ("migrations", migrations)]


def schema_checks(
    terminal: Terminal, services: Sequence[Service], database: Database, settings: Settings
) -> list[Check]:
    async def roles() -> str:
        wanted = {service.role: True for service in services} | dict.fromkeys(SERVICE_ROLES, True)
        others = dict.fromkeys(OTHER_LOGIN_ROLES, False)
        amiss = await store.list_roles_amiss(database, wanted | others, ROLE_BOUNDS)
        if amiss:
            raise Stop("role_amiss", "; ".join(remedy(role) for role in amiss))
        for service in services:
            async with terminal.connected(settings.database_url_as(service.role)):
                pass
        return f"{len(wanted) + len(OTHER_LOGIN_ROLES)} roles"

    async def machines() -> str:
        every = (*KERNEL_MACHINES, *(machine for service in services for machine in service.machines))
        known = tuple(dict.fromkeys(every))
        for machine in known:
            await verify_machine(database, machine)
        return ", ".join(machine.table for machine in known)

    async def weeks() -> str:
        ahead = await weeks_ahead(database)
        if ahead < WEEKS_AHEAD_MIN:
            raise Stop("event_weeks_few", f"{ahead} weeks")
        return f"{ahead} weeks"

    async def clock() -> str:
        before = wall_time()
        theirs = (await database_now(database)).timestamp()
        after = wall_time()
        skew_s = max(before - theirs, theirs - after, 0.0)
        if skew_s > SKEW_MAX_S:
            raise Stop("clock_skew", f"{skew_s:.1f} s")
        return f"{skew_s:.1f} s apart"

    return [
        ("roles", roles),
        ("state machines", machines),
        ("weeks for events", weeks),
        ("clocks", clock),
        *attention_checks(database),
    ]


def remedy(role: store.RoleAmiss) -> str:
    """The statements that repair a role; its name is one of ours."""
    bounds = [f"alter role {role.name} set {name} = '{value}'" for name, value in ROLE_BOUNDS.items()]
    if not role.exists:
        group = " in role rowclaim_service" if role.wants_service else ""
        return "; ".join([f"create role {role.name} login{group}", *bounds])
    if not role.can_login:
        return f"alter role {role.name} login"
    return f"grant rowclaim_service to {role.name}" if role.bounded else "; ".join(bounds)


def attention_checks(database: Database) -> list[Check]:
    """What waits for a person: nothing of it stops the machine."""

    async def gates() -> str:
        all_gates = await store.list_gates(database)
        closed = [
            f"{g.vendor} until {g.closed_until:%Y-%m-%d %H:%M:%S%z} ({g.reason})" for g in all_gates if g.closed_until
        ]
        if closed:
            raise Retryable("gate_closed", "; ".join(closed))
        return "all open"

    async def open_pages() -> str:
        pages = await store.list_open_pages(database, limit=PAGES_SHOWN)
        if pages:
            raise Stop("pages_open", "; ".join(f"{page.dedup_key} ({page.severity})" for page in pages))
        return "none open"

    async def parked() -> str:
        counts = await store.count_parked(database)
        if counts:
            raise Stop("deliveries_parked", "; ".join(f"{c.deliveries} of {c.consumer}: {c.reason}" for c in counts))
        return "none parked"

    async def transactions() -> str:
        old = await store.list_old_transactions(database, TRANSACTION_AGE_MAX)
        if old:
            raise Stop(
                "transaction_old",
                "; ".join(f"pid {t.pid} ({t.role}, {t.application}) since {t.since:%Y-%m-%d %H:%M:%S%z}" for t in old),
            )
        return f"none older than {TRANSACTION_AGE_MAX}"

    return [("vendor gates", gates), ("pages", open_pages), ("deliveries", parked), ("transactions", transactions)]


def outside_checks(settings: Settings) -> list[Check]:
    """The servers beside the database. Those without an address are not used, and not asked."""
    # Imported here: the object store's and Valkey's clients take a second, which no other command should pay.
    from services.operations.probes import probe_mail, probe_objects, probe_topics, probe_valkey

    checks: list[Check] = [
        ("broker", lambda: probe_topics(settings)),
        ("mail", lambda: probe_mail(settings.smtp_url)),
    ]
    if (valkey := settings.valkey_url) is not None:
        checks.append(("valkey", lambda: probe_valkey(valkey)))
    if (objects := settings.s3_url) is not None:
        checks.append(("object store", lambda: probe_objects(settings, objects)))
    return checks
