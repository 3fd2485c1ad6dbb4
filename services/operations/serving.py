"""``rowclaim serve``: every slice's HTTP routes in one process."""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import structlog
import typer
from starlette.routing import BaseRoute

from services.kernel.clock import database_now
from services.kernel.db import Tx
from services.kernel.errors import Invariant, Retryable
from services.kernel.inbox import weeks_ahead
from services.kernel.pager import Severity
from services.kernel.service import Service
from services.operations import web
from services.operations.process import Process, Task, run_tasks
from services.operations.terminal import Terminal

if TYPE_CHECKING:
    from services.operations.access import MakeKeys

log = structlog.get_logger()

WEEKS_AHEAD_MIN: Final = 1


def serve(
    context: typer.Context,
    slice_name: Annotated[str | None, typer.Option("--slice", help="Only this slice's routes.")] = None,
) -> None:
    """Answer HTTP: webhooks, API, /health and /metrics."""
    terminal: Terminal = context.obj
    services = terminal.chosen(slice_name, lambda service: service.routes)

    async def main(process: Process) -> None:
        listener = web.bind(process.settings.http_host, process.settings.http_port)
        app = web.make_app(
            await routes_of(process, services, terminal.make_keys),
            await readiness(process, services),
            lambda error: page_invariant(process, error),
        )
        tasks: dict[str, Task] = {
            "http": lambda stopping: web.serve_http(app, listener, stopping),
            "doorbell": process.doorbell.run,
        }
        log.info("process.serving", host=process.settings.http_host, port=process.settings.http_port)
        await run_tasks(process, tasks)
        log.info("process.stopped")

    terminal.run_process("serve", services, main, own_signals=True)


async def routes_of(process: Process, services: Iterable[Service], make_keys: "MakeKeys | None") -> list[BaseRoute]:
    """The slices' routes and the operators', behind one guard."""
    # They bring FastAPI along, which a consuming process spares.
    from services.operations import gate_routes
    from services.operations.access import open_guard

    guard = await open_guard(process, make_keys)
    database = await process.database(process.own_role)
    routes = list(gate_routes.routes(lambda: database, guard))
    for service in services:
        if service.routes is not None:
            routes += await service.routes(process, guard)
    return routes


async def readiness(process: Process, services: Iterable[Service]) -> web.Checks:
    """Ready: every login role reaches the database, and events can be stored for a week to come."""
    databases = {service.role: await process.database(service.role) for service in services}

    async def stored_ahead() -> str | None:
        weeks = await weeks_ahead(next(iter(databases.values())))
        return (
            None
            if weeks >= WEEKS_AHEAD_MIN
            else f"event bodies can be stored for {weeks} more weeks; run `rowclaim migrate`"
        )

    async def not_stopping() -> str | None:
        return "stopping" if process.stopping.is_set() else None

    reached = {f"database:{role}": partial(_reached, database) for role, database in databases.items()}
    return {"process": not_stopping, **reached, "events": stored_ahead}


async def _reached(tx: Tx) -> str | None:
    await database_now(tx)
    return None


async def page_invariant(process: Process, error: Invariant) -> None:
    """Wake somebody for a broken law met by a request; the request's answer does not wait for a lost database."""
    try:
        await process.pager.page(f"invariant:{error.code.name}", Severity.CRITICAL, str(error))
    except Retryable:
        log.warning("page.not_recorded", code=error.code.name)
