"""``rowclaim gate`` and ``rowclaim pages``: what a person opens, closes and resolves by hand, the reason kept."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated, Final, TypeVar

import typer

from services.kernel.db import Database, Tx
from services.kernel.errors import Refusal
from services.kernel.gate import Gates
from services.kernel.pager import Pager
from services.operations.store import Gate, OpenPage, list_gates, list_open_pages, open_gate, record_action
from services.operations.terminal import Terminal, run_async

T = TypeVar("T")

OPERATOR_ROLE: Final = "rowclaim_operator"
LISTED_MAX: Final = 100

gate = typer.Typer(help="Pause and resume calls to a vendor.", no_args_is_help=True)
pages = typer.Typer(help="What somebody was woken for.", no_args_is_help=True)

Reason = Annotated[str, typer.Option("--reason", help="Why; kept with who and when.")]
AsJson = Annotated[bool, typer.Option("--json", help="The answer as JSON.")]
Vendor = Annotated[str, typer.Argument(help="As `rowclaim gate list` names it.")]


def as_operator(terminal: Terminal, work: Callable[[Database], Awaitable[T]]) -> T:
    """Do the work under the operators' login role."""

    async def connected() -> T:
        async with terminal.connected(terminal.load().settings.database_url_as(OPERATOR_ROLE)) as database:
            return await work(database)

    return run_async(connected())


@gate.command("list")
def list_all(context: typer.Context, as_json: AsJson = False) -> None:
    """Every vendor that was called, and until when its gate is closed."""
    terminal: Terminal = context.obj
    terminal.show(as_operator(terminal, list_gates), as_json=as_json)


@gate.command("close")
def close(
    context: typer.Context,
    vendor: Vendor,
    reason: Reason,
    minutes: Annotated[float, typer.Option("--minutes", min=0.1, max=60 * 24 * 7, help="For how long.")] = 15.0,
    as_json: AsJson = False,
) -> None:
    """Make no call to a vendor for a while. A gate that is closed for longer stays as it is."""
    terminal: Terminal = context.obj

    async def closed(tx: Tx) -> None:
        await Gates(tx).close(vendor, timedelta(minutes=minutes), reason, terminal.actor)

    terminal.show(as_operator(terminal, _acting(terminal, "close_gate", vendor, reason, closed)), as_json=as_json)


@gate.command("open")
def open_(context: typer.Context, vendor: Vendor, reason: Reason, as_json: AsJson = False) -> None:
    """Call a vendor again at once. What closed the gate will close it again if it still stands."""
    terminal: Terminal = context.obj

    async def opened(tx: Tx) -> None:
        if not await open_gate(tx, vendor):
            raise Refusal("gate_not_closed", vendor)

    terminal.show(as_operator(terminal, _acting(terminal, "open_gate", vendor, reason, opened)), as_json=as_json)


def _acting(
    terminal: Terminal, verb: str, vendor: str, reason: str, act: Callable[[Tx], Awaitable[None]]
) -> Callable[[Database], Awaitable[Gate]]:
    """The act and its record in one commit; answers the gate as it then stands."""

    async def work(database: Database) -> Gate:
        async with database.transaction() as tx:
            before = await _find(tx, vendor)
            await act(tx)
            after = await _find(tx, vendor)
            await record_action(
                tx,
                actor=terminal.actor,
                verb=verb,
                target=f"gate {vendor}",
                reason=reason,
                before=_recorded(before),
                after=_recorded(after),
            )
        return after or Gate(vendor, None, None, None, 0)

    return work


async def _find(tx: Tx, vendor: str) -> Gate | None:
    return next((gate for gate in await list_gates(tx) if gate.vendor == vendor), None)


def _recorded(gate: Gate | None) -> dict[str, str | None]:
    until = gate.closed_until.isoformat() if gate and gate.closed_until else None
    return {"closed_until": until, "reason": gate.reason if gate else None}


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
