"""``rowclaim replay``, ``unpark`` and ``backfill``: an operator has events worked on once more, or at all."""

import asyncio
import getpass
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from services.ingress.flow import backfill, intake, repair
from services.ingress.machine import Source
from services.kernel.db import Database
from services.kernel.service import CommandLine, Runtime, Service

OPERATOR: Final = "rowclaim_operator"
PARKED_SHOWN_MAX: Final = 200
PAGE: Final = 1000

UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
AGO: Final = re.compile(r"(\d{1,6})([smhdw])", re.ASCII)

Json = Annotated[bool, typer.Option("--json", help="For scripts.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; kept with your name.")]


OpenHistory = Callable[[Runtime], Awaitable[backfill.History]]


def make_commands(card: Callable[[], Service], open_history: OpenHistory) -> typer.Typer:
    """The slice's commands; ``card`` gives its SERVICE, which holds them, ``open_history`` what Stripe lists."""
    app = typer.Typer()
    app.add_typer(_make_backfill(card, open_history), name="backfill")

    @app.command()
    def replay(
        context: typer.Context,
        consumer: Annotated[str, typer.Option(help="Whose deliveries, for example fulfillment.")],
        since: Annotated[str, typer.Option(help="An instant (2026-11-30T12:00Z), or how long ago (90m, 12h, 3d).")],
        kind: Annotated[str, typer.Option("--type", help="The events' type, for example checkout.session.completed.")],
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and write nothing.")] = False,
        page: Annotated[int, typer.Option(min=1, max=10_000, help="Events looked at in one commit.")] = PAGE,
        reason: Reason = None,
        as_json: Json = False,
    ) -> None:
        """Have a consumer work on finished or never owed events once more."""
        line: CommandLine = context.obj
        wanted = repair.Replay(
            consumer=consumer,
            kind=kind,
            since=parse_when(since, "--since"),
            page=page,
            actor=actor(),
            reason="" if dry_run else _required(reason),
        )
        total = line.run(card(), lambda runtime: replay_all(runtime, wanted, dry_run=dry_run))
        line.show(_shown(total, dry_run=dry_run), as_json=as_json)

    @app.command()
    def unpark(
        context: typer.Context,
        deliveries: Annotated[list[str] | None, typer.Argument(metavar="EVENT:CONSUMER", help="Those named.")] = None,
        reason_code: Annotated[str | None, typer.Option(help="All that were parked for this code.")] = None,
        reason: Reason = None,
        as_json: Json = False,
    ) -> None:
        """Give parked deliveries back to their consumers; without a name or a code, list them."""
        line: CommandLine = context.obj
        named = [parse_delivery(text) for text in deliveries or ()]
        if named and reason_code is not None:
            raise typer.BadParameter("give names, or a code, not both", param_hint="--reason-code")
        if not named and reason_code is None:
            line.show(line.run(card(), list_parked), as_json=as_json)
            return
        why = _required(reason)
        done = line.run(card(), lambda runtime: unpark_now(runtime, named, reason_code, reason=why))
        line.show({"unparked": done.unparked}, as_json=as_json)

    return app


def _make_backfill(card: Callable[[], Service], open_history: OpenHistory) -> typer.Typer:
    backfills = typer.Typer(help="Store events that their sender lists and the inbox lacks.", no_args_is_help=True)

    @backfills.command("stripe")
    def backfill_stripe(
        context: typer.Context,
        since: Annotated[str, typer.Option(help="An instant (2026-11-30T12:00Z), or how long ago (90m, 12h, 3d).")],
        until: Annotated[str | None, typer.Option(help="The same; unset: now.")] = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and write nothing.")] = False,
        reason: Reason = None,
        as_json: Json = False,
    ) -> None:
        """Store what Stripe lists of 30 days, of the types that some consumer is owed, as if it had arrived."""
        line: CommandLine = context.obj
        wanted = backfill.Backfill(
            since=parse_when(since, "--since"),
            until=None if until is None else parse_when(until, "--until"),
            actor=actor(),
            reason=(reason or "").strip() or "to store what did not arrive",
        )

        async def work(runtime: Runtime) -> backfill.Backfilled:
            db, history = await runtime.database(card().role), await open_history(runtime)
            return await backfill_all(runtime, backfill.backfill(db, history, wanted, dry_run=dry_run), dry_run=dry_run)

        total = line.run(card(), work)
        line.show(_shown_backfill(total, dry_run=dry_run), as_json=as_json)

    return backfills


async def backfill_all(
    runtime: Runtime, pages: AsyncIterator[backfill.Backfilled], *, dry_run: bool
) -> backfill.Backfilled:
    """Every page, one after another. Whatever ends it early, the operator is told what was stored before."""
    total = backfill.Backfilled()
    try:
        async for page in pages:
            total += page
            _progress(f"{total.stored} of {total.looked_at} stored so far")
    except BaseException:
        typer.echo(f"stopped; {total.stored} stored so far, run it again to go on", err=True)
        raise
    if total.unfinished is not None:
        typer.echo(f"too many for one run; go on with --until {total.unfinished.isoformat()}", err=True)
    if not dry_run:
        await _ring(runtime, total.rings)
    return total


def _progress(text: str) -> None:
    """Where somebody watches; a pipe sees nothing."""
    if sys.stderr.isatty():
        typer.echo(f"\r{text}", err=True, nl=False)


async def replay_all(runtime: Runtime, what: repair.Replay, *, dry_run: bool) -> repair.Replayed | None:
    """Every page, one after another. Whatever ends it early, the operator is told how to go on."""
    total: repair.Replayed | None = None
    try:
        async for page in repair.replay(await _operators(runtime), what, dry_run=dry_run):
            total = page if total is None else total + page
            _progress(f"{total.put_back + total.made} so far, up to {total.resume.isoformat()}")
    except BaseException:
        if total is not None:
            typer.echo(f"stopped; go on with --since {total.resume.isoformat()}", err=True)
        raise
    if total is not None and not dry_run:
        await _ring(runtime, total.rings)
    return total


async def list_parked(runtime: Runtime) -> list[dict[str, object]]:
    """What waits for a person, named as ``unpark`` takes it."""
    parked = await repair.list_parked(await _operators(runtime), limit=PARKED_SHOWN_MAX)
    return [
        {
            "delivery": f"{p.event_id}:{p.consumer}",
            "reason_code": p.parked_reason,
            "source": p.source,
            "type": p.kind,
            "sender_id": p.external_id,
            "attempts": p.attempt,
            "since": p.since,
        }
        for p in parked
    ]


async def unpark_now(
    runtime: Runtime, named: list[tuple[int, str]], reason_code: str | None, *, reason: str
) -> repair.Unparked:
    """Those named, or all of one code."""
    db = await _operators(runtime)
    if reason_code is None:
        done = await repair.unpark(db, named, actor=actor(), reason=reason)
    else:
        done = await repair.unpark_all(db, reason_code, actor=actor(), reason=reason)
    await _ring(runtime, done.rings)
    return done


def parse_when(text: str, option: str) -> datetime | timedelta:
    """An instant (UTC where it names no zone), or how long ago."""
    ago = AGO.fullmatch(text)
    if ago is not None:
        return timedelta(**{UNITS[ago[2]]: int(ago[1])})
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter("neither an instant nor a duration such as 90m, 12h, 3d", param_hint=option) from None
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def parse_delivery(text: str) -> tuple[int, str]:
    """``EVENT:CONSUMER``, as the list of parked deliveries names them."""
    event_id, _, consumer = text.partition(":")
    if not (event_id.isascii() and event_id.isdigit() and len(event_id) <= 18 and consumer):
        raise typer.BadParameter(f"{text} is not EVENT:CONSUMER", param_hint="EVENT:CONSUMER")
    return int(event_id), consumer


def actor() -> str:
    """Who types, for the list of admin actions."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user id without a name
        name = f"uid {os.getuid()}"
    return f"{name}@{socket.gethostname()}"


def _required(reason: str | None) -> str:
    if reason is None or not reason.strip():
        raise typer.BadParameter("say why; it is kept with your name", param_hint="--reason")
    return reason.strip()


def _shown(total: repair.Replayed | None, *, dry_run: bool) -> Mapping[str, object]:
    if total is None:
        return {"dry_run": dry_run, "events": 0}
    return {
        "dry_run": dry_run,
        "put_back": total.put_back,
        "made": total.made,
        "waiting_already": total.waiting,
        "parked": total.parked,
        "without_body": total.without_body,
        "resume": total.resume,
    }


def _shown_backfill(total: backfill.Backfilled, *, dry_run: bool) -> Mapping[str, object]:
    return {
        "dry_run": dry_run,
        "looked_at": total.looked_at,
        "stored": total.stored,
        "already_there": total.already_there,
        "owed": total.owed,
        "unreadable": total.unreadable,
        "complete": total.unfinished is None,
        "resume_until": total.unfinished,
    }


async def _operators(runtime: Runtime) -> Database:
    return await runtime.database(OPERATOR)


async def _ring(runtime: Runtime, rings: Mapping[str, int]) -> None:
    """Ring once a source, within the doorbell's own bounds; without a broker the workers' tick finds the rows."""
    for source, event_id in rings.items():
        runtime.doorbell.ring(intake.TOPICS[Source(source)], [event_id])
    at_once = asyncio.Event()
    at_once.set()
    await runtime.doorbell.run(at_once)
