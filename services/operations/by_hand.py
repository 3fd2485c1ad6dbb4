"""``rowclaim gate``, ``pause`` and ``pages``: what a person opens, closes and resolves by hand, the reason kept."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Final, TypeVar

import typer

from schemas.gates import MINUTES, MINUTES_MAX, MINUTES_MIN
from services.kernel.db import Database
from services.kernel.errors import Refusal
from services.kernel.pager import Pager
from services.operations import gates
from services.operations.store import Gate, OpenPage, list_open_pages, record_action
from services.operations.terminal import Terminal, run_async, said

T = TypeVar("T")

OPERATOR_ROLE: Final = "rowclaim_operator"
LISTED_MAX: Final = 100

gate = typer.Typer(help="Pause and resume calls to a vendor.", no_args_is_help=True)
pages = typer.Typer(help="What somebody was woken for.", no_args_is_help=True)

Reason = Annotated[str, typer.Option("--reason", callback=said, help="Why; kept with who and when.")]
AsJson = Annotated[bool, typer.Option("--json", help="The answer as JSON.")]
Vendor = Annotated[str, typer.Argument(help="As `rowclaim gate list` names it.")]
Minutes = Annotated[float, typer.Option("--minutes", min=MINUTES_MIN, max=MINUTES_MAX, help="For how long.")]


def as_operator(terminal: Terminal, work: Callable[[Database], Awaitable[T]]) -> T:
    """Do the work under the operators' login role."""

    async def connected() -> T:
        async with terminal.connected(terminal.load().settings.database_url_as(OPERATOR_ROLE)) as database:
            return await work(database)

    return run_async(connected())


@gate.command("list")
def list_all(context: typer.Context, as_json: AsJson = False) -> None:
    """Every vendor that this installation calls or ever called, and until when its gate is closed."""
    terminal: Terminal = context.obj
    terminal.show(as_operator(terminal, gates.list_known), as_json=as_json)


@gate.command("close")
def close(
    context: typer.Context, vendor: Vendor, reason: Reason, minutes: Minutes = MINUTES, as_json: AsJson = False
) -> None:
    """Make no call to a vendor for a while. A gate that is closed for longer stays as it is."""
    terminal: Terminal = context.obj
    person = gates.Person(terminal.actor, reason)
    (closed,) = as_operator(terminal, lambda database: gates.close(database, [vendor], person, minutes=minutes))
    terminal.show(closed, as_json=as_json)


@gate.command("open")
def open_(context: typer.Context, vendor: Vendor, reason: Reason, as_json: AsJson = False) -> None:
    """Call a vendor again at once. What closed the gate will close it again if it still stands."""
    terminal: Terminal = context.obj
    person = gates.Person(terminal.actor, reason)
    (opened,) = as_operator(terminal, lambda database: gates.reopen(database, [vendor], person))
    terminal.show(opened, as_json=as_json)


def pause(
    context: typer.Context,
    reason: Reason,
    vendors: Annotated[list[str] | None, typer.Argument(metavar="VENDOR...", help="None: all of them.")] = None,
    minutes: Minutes = MINUTES,
    resume: Annotated[bool, typer.Option("--resume", help="Open again what was closed by hand.")] = False,
    as_json: AsJson = False,
) -> None:
    """Call no vendor, or none of those named, for a while. Unnamed, the pager and the issuer's keys are called on."""
    terminal: Terminal = context.obj
    person = gates.Person(terminal.actor, reason)

    async def acted(database: Database) -> list[Gate]:
        if resume:
            await gates.reopen(database, vendors or (), person)
        else:
            await gates.close(database, vendors or (), person, minutes=minutes)
        return await gates.list_known(database)

    terminal.show(as_operator(terminal, acted), as_json=as_json)


@pages.command("list")
def list_pages(context: typer.Context, as_json: AsJson = False) -> None:
    """Pages whose cause stands, oldest first."""
    terminal: Terminal = context.obj

    async def listed(database: Database) -> list[OpenPage]:
        return await list_open_pages(database, limit=LISTED_MAX)

    terminal.show(as_operator(terminal, listed), as_json=as_json)


@pages.command("resolve")
def resolve(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="As `rowclaim pages list` shows it.")],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Close a page whose cause is gone; the pager is told by the next sweep. A cause that stands opens it again."""
    terminal: Terminal = context.obj

    async def resolved(database: Database) -> dict[str, str]:
        async with database.transaction() as tx:
            if not await Pager(tx).resolve(key):
                raise Refusal("page_not_open", key)
            await record_action(
                tx,
                actor=terminal.actor,
                verb="resolve_page",
                target=f"page {key}",
                reason=reason,
                before={"open": True},
                after={"open": False},
            )
        return {"resolved": key}

    terminal.show(as_operator(terminal, resolved), as_json=as_json)
