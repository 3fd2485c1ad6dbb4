"""``rowclaim consume`` and ``rowclaim sweep``: workers, sweeps, jobs and pages of one slice or of all."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Annotated, Final

import structlog
import typer
from faststream.kafka import KafkaBroker

from services.kernel import inbox
from services.kernel.db import Database
from services.kernel.service import Consumption, Service
from services.kernel.sweep import Sweep, run_sweep
from services.kernel.triggers import Publisher
from services.operations import store, web
from services.operations.jobs import run_job
from services.operations.paging import send_unsent
from services.operations.process import Process, Task, run_tasks
from services.operations.serving import page_invariant, readiness
from services.operations.store import reap_deliveries
from services.operations.subscribers import Liveness, is_consuming, run_subscribers
from services.operations.subscribing import DeadLetters, make_broker, subscribe
from services.operations.terminal import Terminal

log = structlog.get_logger()

PAGES_EVERY_S: Final = 5.0
REAP_EVERY_S: Final = 2.0
# What a sweep costs is what its window holds, not what is missing: a short window often, a long one seldom.
RECENT, RECENT_EVERY_S = timedelta(seconds=30), 2.0
LAST_HOUR, LAST_HOUR_EVERY_S = timedelta(hours=1), 600.0


@dataclass(frozen=True, slots=True)
class Consuming:
    """What one slice runs in this process."""

    service: Service
    consumption: Consumption

    def ring(self, _ids: frozenset[int] = frozenset()) -> None:
        """Wake all workers of the slice: rows tell what there is to do."""
        for worker in self.consumption.workers:
            worker.ring()


def consume(
    context: typer.Context,
    slice_name: Annotated[str | None, typer.Option("--slice", help="Only this slice.")] = None,
) -> None:
    """Do the work: claim rows, call vendors, write outcomes; sweeps and jobs beside it."""
    terminal: Terminal = context.obj
    services = terminal.chosen(slice_name, lambda service: service.consume)

    async def main(process: Process) -> None:
        consuming = await begin(process, services)
        tasks: dict[str, Task] = {"doorbell": process.doorbell.run}
        tasks |= {f"sweep:{sweep.name}": partial(run_sweep, sweep) for sweep in await sweeps_of(process, consuming)}
        tasks |= {
            f"worker:{one.service.name}.{worker.name}": worker.run
            for one in consuming
            for worker in one.consumption.workers
        }
        tasks |= await job_tasks(process, consuming)
        broker = subscribed(process, consuming)
        if broker.subscribers:
            tasks["subscribers"] = partial(run_subscribers, broker)
        if process.settings.health_port is not None:
            tasks["health"] = await health(process, services, broker)
        log.info("process.consuming", slices=[service.name for service in services])
        await run_tasks(process, tasks)
        log.info("process.stopped")

    terminal.run_process("consume", services, main, own_signals=True)


def sweep(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Each sweep once, then end.")] = False,
    slice_name: Annotated[str | None, typer.Option("--slice", help="Only this slice.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Counts as JSON.")] = False,
) -> None:
    """Find what no trigger told: missing deliveries, leases whose holder died, pages nobody was told of."""
    terminal: Terminal = context.obj
    services = terminal.chosen(slice_name, lambda service: service.consume)

    async def main(process: Process) -> Mapping[str, Mapping[str, int]]:
        sweeps = await sweeps_of(process, await begin(process, services))
        if once:
            return {sweep.name: await sweep.run_once() for sweep in sweeps}
        await run_tasks(process, {f"sweep:{sweep.name}": partial(run_sweep, sweep) for sweep in sweeps})
        return {}

    counts = terminal.run_process("sweep", services, main, own_signals=not once)
    terminal.show(counts, as_json=as_json)


async def begin(process: Process, services: Iterable[Service]) -> list[Consuming]:
    """Subscribe the slices to the stored events they are owed, and let each say what it runs."""
    consuming: list[Consuming] = []
    for service in services:
        if service.consume is None:
            continue
        database = await process.database(service.role)
        await inbox.make_partitions(database)
        await inbox.subscribe(database, service.name, service.subscriptions)
        consuming.append(Consuming(service, await service.consume(process)))
    return consuming


async def sweeps_of(process: Process, consuming: Sequence[Consuming]) -> list[Sweep]:
    """The slices' own sweeps, and those of what all slices share."""
    database = await process.database(process.own_role)
    return [
        *delivery_sweeps(database, consuming),
        Sweep("pages", PAGES_EVERY_S, partial(send_unsent, database, process.page_sender)),
        *(sweep for one in consuming for sweep in one.consumption.sweeps),
    ]


def delivery_sweeps(database: Database, consuming: Sequence[Consuming]) -> list[Sweep]:
    """Missing deliveries of recent events, of the last hour, of new subscriptions; leases whose holder died."""
    by_name = {one.service.name: one for one in consuming}

    def wake(names: Iterable[str]) -> None:
        for name in names:
            if name in by_name:
                by_name[name].ring()

    async def owe(window: timedelta) -> Mapping[str, int]:
        pairs = await store.owe_missing(database, window)
        wake({pair.consumer for pair in pairs})
        return {"owed": len(pairs)}

    async def catch_up() -> Mapping[str, int]:
        owed = await store.catch_up(database)
        wake(by_name if owed else ())
        return {"owed": owed}

    async def reap() -> Mapping[str, int]:
        reaped = await reap_deliveries(database)
        wake({delivery.consumer for delivery in reaped})
        return {"reaped": len(reaped)}

    return [
        Sweep("deliveries.recent", RECENT_EVERY_S, partial(owe, RECENT)),
        Sweep("deliveries.last_hour", LAST_HOUR_EVERY_S, partial(owe, LAST_HOUR)),
        Sweep("deliveries.new_subscriptions", RECENT_EVERY_S, catch_up),
        Sweep("deliveries.reaper", REAP_EVERY_S, reap),
    ]


async def job_tasks(process: Process, consuming: Sequence[Consuming]) -> dict[str, Task]:
    """The slices' jobs, under their roles."""
    return {
        f"job:{job.name}": partial(run_job, job, await process.database(one.service.role))
        for one in consuming
        for job in one.consumption.jobs
    }


def subscribed(process: Process, consuming: Iterable[Consuming]) -> KafkaBroker:
    """Every slice is rung by its topics; none is joined yet."""
    broker = make_broker(process.kafka)
    publisher = Publisher(process.kafka)
    dead_letters = DeadLetters(publisher)
    process.on_close(publisher.close)
    for one in consuming:
        for topic in one.service.topics:
            subscribe(
                broker, process.kafka, topic=topic, group=one.service.name, ring=one.ring, dead_letters=dead_letters
            )
    return broker


async def health(process: Process, services: Sequence[Service], broker: KafkaBroker) -> Task:
    """/health and /metrics of a consuming process: alive while it consumes, ready once every group is joined."""

    async def joined() -> str | None:
        return None if is_consuming(broker) else "not joined"

    listener = web.bind(process.settings.http_host, process.settings.health_port or 0)
    checks = {**await readiness(process, services), "subscribers": joined}
    alive = Liveness(broker).alive if broker.subscribers else None
    app = web.make_app([], checks, lambda error: page_invariant(process, error), alive)
    return lambda stopping: web.serve_http(app, listener, stopping)
