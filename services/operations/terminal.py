"""What every command shares: how its process is opened, how its result is shown, how its end is told.

Results go to standard output, everything else to standard error. A failure of the list of codes is one line with the
code and what to do, and the exit status of the list; a traceback is shown for what nobody foresaw, and for that alone.
"""

import asyncio
import dataclasses
import getpass
import json
import os
import platform
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer
import uvloop
from rich.console import Console
from rich.table import Table
from rich.text import Text

from schemas.http import REASON_CHARACTERS_MAX
from services.kernel.db import Database
from services.kernel.errors import ServiceError, Stop
from services.kernel.service import Runtime, Service
from services.operations.environment import Loaded, load
from services.operations.logs import configure_logging
from services.operations.process import MakeSender, Process, open_database, signals

if TYPE_CHECKING:
    from services.operations.access import MakeKeys

T = TypeVar("T")

# Lines are never folded: who reads them in a pipe, or copies an address, gets them whole.
PIPED_WIDTH: Final = 1_000
OUT: Final = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPED_WIDTH)
ERR: Final = Console(highlight=False, soft_wrap=True, stderr=True)
REFUSED_EXIT: Final = 2
INTERRUPTED_EXIT: Final = 130


@dataclass(frozen=True, slots=True)
class Terminal:
    """The command line as a command finds it: the cards of this installation, and how its outside is wired."""

    services: tuple[Service, ...]
    make_sender: MakeSender
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    make_keys: "MakeKeys | None" = None
    """None: no token can be checked."""

    @property
    def actor(self) -> str:
        """Who is at the keyboard, for the record of what was done by hand."""
        return f"{getpass.getuser()}@{platform.node()}"

    def chosen(self, name: str | None, able: Callable[[Service], object]) -> tuple[Service, ...]:
        """All cards that are ``able``, or the one of them that is named. Raises Stop("slice_unknown")."""
        known = [service for service in self.services if able(service)]
        chosen = tuple(service for service in known if name in (None, service.name))
        if not chosen:
            raise Stop("slice_unknown", f"{name or 'none'}; there are: {', '.join(s.name for s in known) or 'none'}")
        return chosen

    def load(self, needed: Sequence[Service] = ()) -> Loaded:
        """The settings of this environment, and those of the slices a command runs."""
        return load(self.services, needed, self.environ)

    @asynccontextmanager
    async def connected(self, url: str) -> AsyncIterator[Database]:
        """A short-lived pool for one command. Raises what ``open_database`` raises."""
        database = await open_database(url, application="rowclaim", size_max=2)
        try:
            yield database
        finally:
            await database.close()

    def run(self, service: Service, work: Callable[[Runtime], Awaitable[T]], *, in_order: bool = False) -> T:
        """Open a process for one slice, do the work on its loop, close it."""

        async def one(process: Process) -> T:
            return await work(process)

        return self.run_process(service.name, (service,), one, own_signals=in_order)

    def run_process(
        self,
        name: str,
        services: Sequence[Service],
        main: Callable[[Process], Awaitable[T]],
        *,
        own_signals: bool = False,
    ) -> T:
        """``main`` in a process of ``services``; ``own_signals``: SIGTERM asks it to stop instead of ending it."""
        loaded = self.load(services)
        configure_logging(loaded.settings.log_level, process=name, run=loaded.settings.run)

        async def opened() -> T:
            async with Process.open(name, services, loaded, self.make_sender) as process:
                if not own_signals:
                    return await main(process)
                with signals(process.stopping):
                    return await main(process)

        return run_async(opened())

    def show(self, result: object, *, as_json: bool) -> None:
        show(result, as_json=as_json)


def run_async(work: Awaitable[T]) -> T:
    """Run a command's work on a loop of its own."""

    async def awaited() -> T:
        return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(awaited())


@contextmanager
def working(what: str) -> Iterator[Callable[[], None]]:
    """Show that something long goes on, where somebody watches; a pipe sees nothing. Call what is yielded to end it."""
    if not ERR.is_terminal:
        yield lambda: None
        return
    with ERR.status(what) as status:
        yield status.stop


def show(result: object, *, as_json: bool) -> None:
    """Print a result: JSON, a table for a list, ``name value`` lines for one thing."""
    if as_json:
        sys.stdout.write(json.dumps(_plain(result), default=_text) + "\n")
        return
    if isinstance(result, Sequence) and not isinstance(result, str):
        _table([_plain(row) for row in result])
        return
    named = dict(_plain(result))
    width = max(map(len, named), default=0)
    for name, value in named.items():
        OUT.print(f"{name:{width}}  {_text(value)}", markup=False)


def _table(rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        OUT.print("none")
        return
    table = Table(*rows[0], box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(_text(value)) for value in row.values()))
    OUT.print(table, soft_wrap=False)


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return value


def _text(value: object) -> str:
    match value:
        case None:
            return "-"
        case datetime():
            return value.isoformat(timespec="seconds")
        case StrEnum():
            return value.value
        case Mapping():
            return " ".join(f"{name}={_text(one)}" for name, one in value.items())
        case list() | tuple():
            return ", ".join(_text(one) for one in value) or "-"
        case _:
            return str(value)


def said(reason: str) -> str:
    """A reason as it is kept, for ``typer.Option(callback=said)``. Raises BadParameter for none, or a long story."""
    if not reason.strip():
        raise typer.BadParameter("say why; it is kept with your name")
    if len(reason.strip()) > REASON_CHARACTERS_MAX:
        raise typer.BadParameter(f"say it in {REASON_CHARACTERS_MAX} characters")
    return reason.strip()


def finish(app: typer.Typer, terminal: Terminal, arguments: Sequence[str] | None = None) -> int:
    """Run one command line to its end and return its exit status."""
    if any("\udc80" <= character <= "\udcff" for one in arguments or sys.argv[1:] for character in one):
        # So Python writes bytes that it cannot read; neither a database nor a file takes them as text.
        ERR.print("rowclaim: the command line holds bytes that are no text in this terminal's encoding", markup=False)
        return REFUSED_EXIT
    try:
        app(args=arguments, obj=terminal)
    except ServiceError as error:
        tell(error)
        return error.code.exit or REFUSED_EXIT
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT
    except SystemExit as end:  # how typer ends a command, a wrong option included
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def tell(error: ServiceError) -> None:
    """One failure: its code and instance, and what to do."""
    line = f"rowclaim: {error.code.name}" + (f": {error.detail}" if error.detail else "")
    ERR.print(line, markup=False)
    ERR.print(f"  {error.code.sentence}", markup=False)
