"""The SERVICE card: what a slice tells the processes that run it.

``services.__main__`` finds every ``services/<slice>/consumer.py`` and reads its ``SERVICE``. Adding a slice edits
nothing else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, LiteralString, Protocol, TypeVar

from services.kernel.db import Database, Tx
from services.kernel.errors import Stop
from services.kernel.inbox import Subscription
from services.kernel.transition import EdgeRow, Machine

if TYPE_CHECKING:
    import typer
    from starlette.routing import BaseRoute

    from services.kernel.auth import Auth
    from services.kernel.errors import ServiceError
    from services.kernel.gate import Gates
    from services.kernel.jobs import Job
    from services.kernel.pager import Pager
    from services.kernel.settings import Settings, SliceSettings
    from services.kernel.sweep import Sweep
    from services.kernel.triggers import Doorbell
    from services.kernel.worker import Worker

OnClose = Callable[[Callable[[], Awaitable[None]]], None]
"""Registers what runs at the end of the process."""
SliceSettingsT = TypeVar("SliceSettingsT", bound="SliceSettings")


class Runtime(Protocol):
    """What a process lends its slices. Everything here outlives every unit of work, and is closed by the process."""

    @property
    def settings(self) -> "Settings": ...
    @property
    def stopping(self) -> asyncio.Event:
        """Set at the first SIGTERM or SIGINT: claim nothing more, finish the attempt in hand."""
        ...

    @property
    def doorbell(self) -> "Doorbell": ...
    @property
    def pager(self) -> "Pager": ...
    def slice_settings(self, kind: type[SliceSettingsT]) -> SliceSettingsT: ...
    async def database(self, role: str) -> Database:
        """The process's one pool of this login role."""
        ...

    async def gates(self, role: str, *, pace_s: dict[str, float]) -> "Gates": ...
    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Run at the end of the process, after web and workers and before the pools, latest first."""
        ...


T = TypeVar("T")


class CommandLine(Protocol):
    """What a slice's command finds as ``typer.Context.obj``."""

    @property
    def actor(self) -> str:
        """Who is at the keyboard, for ``admin_actions``."""
        ...

    def run(self, service: "Service", work: Callable[[Runtime], Awaitable[T]], *, in_order: bool = False) -> T:
        """Open a process for one slice, do the work on its loop, close it. A ServiceError ends the command.

        ``in_order``: the work heeds ``runtime.stopping``, so a first signal sets that instead of ending the process.
        """
        ...

    def show(self, result: object, *, as_json: bool) -> None:
        """Print a result: a dataclass, a mapping of counts, or a list of such; JSON where a script reads."""
        ...


@dataclass(frozen=True, slots=True)
class Consumption:
    """What runs in a consuming process for one slice. A topic's ring wakes every worker of the slice."""

    workers: Sequence["Worker"] = ()
    sweeps: Sequence["Sweep"] = ()
    jobs: Sequence["Job"] = ()


class Blank(Protocol):
    def __call__(self, runtime: Runtime, user_id: str, *, dry_run: bool) -> Awaitable[Mapping[str, int]]: ...


@dataclass(frozen=True, slots=True)
class Personal:
    """How a slice forgets a person. ``traces``: the id, if the slice knows it, and what else a stored body may name
    them by. ``blank``: rows blanked, by table; dry, it writes nothing and counts and refuses (Retryable
    "forget_in_progress") the same. The id, states and amounts stay, so that a second run still knows the person."""

    traces: Callable[[Runtime, str], Awaitable[frozenset[str]]]
    blank: Blank


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One slice's card."""

    name: str
    settings: type["SliceSettings"]
    machines: tuple[Machine, ...] = ()
    """Verified against the database at boot of every process that runs the slice."""
    subscriptions: tuple[Subscription, ...] = ()
    """Stored events the slice is owed a delivery of; upserted at boot of a consuming process."""
    routes: "Callable[[Runtime, Auth], Awaitable[Sequence[BaseRoute]]] | None" = None
    """What a serving process answers; every route by ``Auth.routes`` or as a ``PublicRoute``."""
    describe: "Callable[[Auth], Sequence[BaseRoute]] | None" = None
    """The same routes wired to nothing, for the API's document. Imports FastAPI when it is called, not before."""
    consume: Callable[[Runtime], Awaitable[Consumption]] | None = None
    commands: "typer.Typer | None" = None
    """Merged at the top level of ``rowclaim``; a command's ``typer.Context.obj`` is a ``CommandLine``."""
    checks: "Callable[[Runtime], Awaitable[Sequence[ServiceError]]] | None" = None
    """What ``rowclaim doctor`` asks of the slice's vendors: one error of the list for every fault."""
    topics: tuple[str, ...] = field(default=())
    """Trigger topics whose rings wake the slice's workers."""
    personal: Personal | None = None

    @property
    def role(self) -> str:
        """The login role of the slice."""
        return f"rowclaim_{self.name}"


EDGES: Final[LiteralString] = """
select edge, source, target, fence from law.state_edges where table_name = $1 order by edge"""


async def verify_machine(tx: Tx, machine: Machine) -> None:
    """Raise Stop("machine_unknown") unless the database knows every edge of the code."""
    known = set(await tx.rows(EdgeRow, EDGES, machine.table))
    missing = sorted(row.edge for row in machine.rows() - known)
    if missing:
        raise Stop("machine_unknown", f"{machine.table} lacks the edges {', '.join(missing)}")
