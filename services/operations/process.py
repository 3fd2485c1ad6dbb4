"""One process: its settings, its pools, its signals, and the order in which it stops.

    first SIGTERM or SIGINT   ``stopping`` is set: nothing more is claimed, the attempt in hand is finished
    graceful stop over        what still runs is cancelled (an outcome's write is not cut off), the process fails
    second signal             out at once, exit 130; the rows are as a crash leaves them
    at the end                what slices opened is closed, latest first, then the pools

A task that fails takes the process down: the orchestrator starts it anew, and rows say what was in hand.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar, cast

import asyncpg
import structlog

from services.kernel.db import POOL_SIZE_MAX, Database
from services.kernel.deliveries import DELIVERIES
from services.kernel.errors import Invariant, Retryable, ServiceError, Stop
from services.kernel.gate import Gates
from services.kernel.jobs import JOB_RUNS
from services.kernel.pager import Pager, Severity
from services.kernel.service import Service, verify_machine
from services.kernel.settings import SliceSettings
from services.kernel.triggers import Doorbell, Kafka, Publisher
from services.operations.environment import Loaded
from services.operations.paging import PageSender

log = structlog.get_logger()

SECOND_SIGNAL_EXIT: Final = 130
KERNEL_MACHINES: Final = (DELIVERIES, JOB_RUNS)
SliceSettingsT = TypeVar("SliceSettingsT", bound=SliceSettings)
MakeSender = Callable[["Process"], Awaitable[PageSender]]
"""How a process gets its page sender; wired where vendors are known."""


async def open_database(url: str, *, application: str, size_max: int = POOL_SIZE_MAX) -> Database:
    """A pool, or Retryable("database_unavailable") for no server, Stop("database_refused") for one that says no."""
    try:
        return await Database.connect(url, application=application, size_max=size_max)
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
        raise Stop("database_refused", str(error)) from error


class Process:
    """What a process lends its slices (``kernel.service.Runtime``).

    What belongs to no slice (pages, missing deliveries, the process's jobs) is written under ``own_role``, the role of
    its first slice: a process of one slice needs one password.
    """

    def __init__(self, name: str, services: Sequence[Service], loaded: Loaded) -> None:
        self.name = name
        self.own_role = services[0].role
        self.settings = loaded.settings
        self.stopping = asyncio.Event()
        self.kafka = Kafka(
            bootstrap=self.settings.kafka_bootstrap,
            fetch_wait_ms=self.settings.kafka_fetch_wait_ms,
            session_timeout_ms=self.settings.kafka_session_timeout_ms,
            heartbeat_ms=self.settings.kafka_heartbeat_ms,
            idempotent=self.settings.kafka_idempotent,
        )
        self.doorbell = Doorbell(Publisher(self.kafka))
        self._own = loaded.own
        self.pager: Pager
        self.page_sender: PageSender
        self._databases: dict[str, Database] = {}
        self._opening = asyncio.Lock()
        self._closing = AsyncExitStack()

    def slice_settings(self, kind: type[SliceSettingsT]) -> SliceSettingsT:
        """The settings of a slice. All were loaded before anything else ran."""
        return cast(SliceSettingsT, self._own[kind])

    async def database(self, role: str) -> Database:
        """The process's one pool of this login role."""
        async with self._opening:
            if role not in self._databases:
                url = self.settings.database_url_as(role)
                self._databases[role] = await open_database(url, application=f"rowclaim-{self.name}")
            return self._databases[role]

    async def gates(self, role: str, *, pace_s: dict[str, float]) -> Gates:
        return Gates(await self.database(role), pace_s=pace_s)

    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        self._closing.push_async_callback(close)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, name: str, services: Sequence[Service], loaded: Loaded, make_sender: MakeSender
    ) -> AsyncIterator["Process"]:
        """Open what every process needs and verify that the database knows the edges of ``services`` (one at least).

        Raises Retryable("database_unavailable"), Stop("database_refused" | "machine_unknown").
        """
        process = cls(name, services, loaded)
        try:
            process.pager = Pager(await process.database(process.own_role))
            process.page_sender = await make_sender(process)
            for service in services:
                database = await process.database(service.role)
                for machine in (*KERNEL_MACHINES, *service.machines):
                    await verify_machine(database, machine)
            yield process
        finally:
            await process._closing.aclose()
            for database in process._databases.values():
                await database.close()


@contextmanager
def signals(stopping: asyncio.Event) -> Iterator[None]:
    """The first SIGTERM or SIGINT sets ``stopping``, a second one ends the process at once."""

    def on_signal() -> None:
        if stopping.is_set():
            os._exit(SECOND_SIGNAL_EXIT)
        log.info("process.stopping")
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


Task = Callable[[asyncio.Event], Awaitable[None]]
"""Runs until the event is set, finishes what it has in hand, and returns."""


async def run_tasks(process: Process, tasks: Mapping[str, Task]) -> None:
    """Run all tasks until the process is told to stop; they then have the graceful stop's time to return.

    One that fails, or returns before it was told to, stops all and is raised at the end: a ServiceError as it is,
    anything else as Invariant("task_crashed"). Raises Retryable("stop_overdue") when a task had to be cancelled.
    """
    running: dict[asyncio.Future[Any], str] = {
        asyncio.ensure_future(task(process.stopping)): name for name, task in tasks.items()
    }
    told: asyncio.Future[Any] = asyncio.ensure_future(process.stopping.wait())
    try:
        await asyncio.wait({told, *running}, return_when=asyncio.FIRST_COMPLETED)
        early = [name for task, name in running.items() if task.done() and not process.stopping.is_set()]
        process.stopping.set()
        _, overdue = await asyncio.wait({told, *running}, timeout=process.settings.graceful_stop_s)
    finally:
        for task in (told, *running):
            task.cancel()
        await asyncio.wait({told, *running})
    errors = [
        await _crash(process, name, error)
        for task, name in running.items()
        if not task.cancelled() and (error := task.exception()) is not None
    ]
    if errors:
        raise errors[0]
    if early:
        raise Invariant("task_crashed", f"{early[0]} ended without being told to")
    if overdue:
        raise Retryable("stop_overdue", ", ".join(sorted(running[task] for task in overdue)))


async def _crash(process: Process, name: str, error: BaseException) -> ServiceError:
    """Tell of a task's death, wake somebody unless it is a passing trouble, and make it an error of ours."""
    log.critical("process.task_crashed", task=name, exc_info=error)
    ours = error if isinstance(error, ServiceError) else Invariant("task_crashed", f"{name}: {type(error).__name__}")
    if isinstance(ours, Invariant):
        try:
            await process.pager.page(f"crashed:{process.name}:{name}", Severity.CRITICAL, str(ours))
        except Retryable:
            log.warning("page.not_recorded", task=name)
    return ours
