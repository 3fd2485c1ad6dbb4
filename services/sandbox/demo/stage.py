"""The stage of a demo: embedded servers, the vendors' process, and rowclaim's services, each as a process of its own.

A service is started with the command an operator types and with settings alone; what it prints goes to a log file.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import asyncpg
import httpx

from services.sandbox.control import SandboxControl
from services.sandbox.embedded.process import (
    Command,
    ServerProcess,
    StartFailed,
    StopStep,
    free_ports,
    read_tail,
    run_id,
    spawn,
    until_ready,
)
from services.sandbox.embedded.stack import Part, Stack, embedded_stack

T = TypeVar("T")

ROOT: Final = Path(__file__).resolve().parents[3]
READY_WITHIN_S: Final = 30.0
STOP_WITHIN_S: Final = 15.0
COMMAND_WITHIN_S: Final = 60.0
POLL_S: Final = 0.03
WEBHOOK_SECRET: Final = "whsec_demo_of_this_run_only"  # noqa: S105 - both ends are ours and live as long as the run
GITHUB_PACE_S: Final = 0.1

Note = Callable[[str], None]
"""Told in a few words what is going on."""


class TooLate(Exception):
    """Something the story waits for did not happen in time; the message names it."""


async def until(probe: Callable[[], Awaitable[T]], *, within_s: float, what: str) -> T:
    """Ask ``probe`` until what it says is true, and return that. Raises TooLate."""
    deadline = time.monotonic() + within_s
    while True:
        said = await probe()
        if said:
            return said
        if time.monotonic() > deadline:
            raise TooLate(f"{what}: not within {within_s:g} s (last seen: {said!r})")
        await asyncio.sleep(POLL_S)


@dataclass(slots=True)
class Service:
    """One running ``rowclaim`` process and where it answers."""

    name: str
    arguments: Sequence[str]
    process: ServerProcess
    port: int


@dataclass(slots=True)
class Stage:
    """Everything that runs, while it runs."""

    stack: Stack
    control: SandboxControl
    database: "asyncpg.Pool[asyncpg.Record]"
    vendors: Mapping[str, str]
    logs: Path
    services: dict[str, Service] = field(default_factory=dict)
    stopped_badly: list[str] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """What a service of this run is told, as an operator would set it."""
        return self.stack.settings() | {
            "ROWCLAIM_LOG_LEVEL": "info",
            "ROWCLAIM_SMTP_URL": self.vendors["smtp_url"],
            "ROWCLAIM_INGRESS_STRIPE_SECRETS": WEBHOOK_SECRET,
            "ROWCLAIM_FULFILLMENT_STRIPE_API_KEY": self.vendors["stripe_api_key"],
            "ROWCLAIM_FULFILLMENT_STRIPE_API_URL": self.vendors["stripe_url"],
            "ROWCLAIM_FULFILLMENT_GITHUB_API_URL": self.vendors["github_url"],
            "ROWCLAIM_FULFILLMENT_GITHUB_TOKEN": self.vendors["github_token"],
            "ROWCLAIM_FULFILLMENT_GITHUB_REPOSITORY": self.vendors["github_repository"],
            "ROWCLAIM_FULFILLMENT_GITHUB_PACE_S": str(GITHUB_PACE_S),
            "ROWCLAIM_FULFILLMENT_DELIVERY_LEASE_S": "6",
            "ROWCLAIM_FULFILLMENT_MAIL_FROM": "shop@example.com",
            "ROWCLAIM_FULFILLMENT_PRODUCT_NAME": "The Repository",
        }

    async def run(self, *arguments: str) -> tuple[int, str]:
        """One command to its end; its exit status and what it printed."""
        process = await asyncio.create_subprocess_exec(
            *_rowclaim(arguments),
            cwd=ROOT,
            env=_environ(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(COMMAND_WITHIN_S):
                printed, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise TooLate(f"rowclaim {' '.join(arguments)}: not within {COMMAND_WITHIN_S:g} s") from None
        return process.returncode or 0, printed.decode(errors="replace")

    async def must_run(self, *arguments: str) -> str:
        """One command that has to succeed. Raises StartFailed with what it printed."""
        status, printed = await self.run(*arguments)
        if status != 0:
            raise StartFailed(f"rowclaim {' '.join(arguments)}", f"exit {status}", printed)
        return printed

    async def start(self, name: str, *arguments: str, port_setting: str, port: int) -> None:
        """Start a service and return when it says that it is ready."""
        process = spawn(
            Command(
                name=name,
                argv=_rowclaim(arguments),
                log_path=self.logs / f"{name}.log",
                death_signal=signal.SIGKILL,
                stop=(StopStep(signal.SIGTERM, STOP_WITHIN_S),),
                environment=_environ(self.environment | {port_setting: str(port)}),
                cwd=ROOT,
            )
        )
        self.services[name] = Service(name, arguments, process, port)
        try:
            await until_ready(process, lambda: _answers(port), within_s=READY_WITHIN_S)
        except BaseException:
            await process.stop()
            raise

    async def stop_services(self) -> None:
        """SIGTERM to all at once; whoever does not end with 0 is remembered."""
        running = [service for service in self.services.values() if service.process.alive]
        await asyncio.gather(*(service.process.stop() for service in running))
        self.stopped_badly += [
            f"{service.name} ended with {service.process.exit_code}"
            for service in running
            if service.process.exit_code != 0
        ]

    def log_tail(self, name: str) -> str:
        return read_tail(self.logs / f"{name}.log")


@asynccontextmanager
async def set_up(directory: Path, note: Note) -> AsyncIterator[Stage]:
    """Servers, vendors, schema, topics, one web process and two consumers; all gone at the end of the block."""
    async with AsyncExitStack() as closing:
        note("starting PostgreSQL, the broker and the vendors")
        vendors_process = _spawn_vendors(directory)
        closing.push_async_callback(vendors_process.stop)
        stack = await closing.enter_async_context(
            embedded_stack(directory / "servers", parts=[Part.POSTGRES, Part.BROKER])
        )
        vendors = await _vendors_ready(vendors_process, directory)
        control = await closing.enter_async_context(SandboxControl(vendors["control_url"]))
        pool = await asyncpg.create_pool(stack.settings()["ROWCLAIM_DATABASE_URL"], min_size=1, max_size=2)
        closing.push_async_callback(pool.close)
        stage = Stage(stack, control, pool, vendors, directory)
        closing.push_async_callback(stage.stop_services)

        note("migrating, making topics")
        await stage.must_run("migrate")
        await stage.must_run("topics")
        note("starting serve, consume and a second consume")
        web, first, second = free_ports(3)
        await asyncio.gather(
            stage.start("serve", "serve", port_setting="ROWCLAIM_HTTP_PORT", port=web),
            stage.start("consume-1", "consume", port_setting="ROWCLAIM_HEALTH_PORT", port=first),
            stage.start("consume-2", "consume", port_setting="ROWCLAIM_HEALTH_PORT", port=second),
        )
        yield stage


def _rowclaim(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "services", *arguments]


def _environ(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of this run alone: a ROWCLAIM_ variable of the shell must not decide what the demo shows."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROWCLAIM_")}
    return inherited | {"ROWCLAIM_RUN": run_id()} | dict(settings)


def _spawn_vendors(directory: Path) -> ServerProcess:
    return spawn(
        Command(
            name="vendors",
            argv=[sys.executable, "-m", "services.sandbox", "--smtp-port", "0"],
            log_path=directory / "vendors.log",
            death_signal=signal.SIGKILL,
            stop=(StopStep(signal.SIGTERM, STOP_WITHIN_S),),
            environment=_environ({}),
            cwd=ROOT,
        )
    )


async def _vendors_ready(process: ServerProcess, directory: Path) -> dict[str, str]:
    """The line of JSON that the vendors' process prints when it listens."""
    said: dict[str, str] = {}

    async def ready() -> bool:
        for line in (directory / "vendors.log").read_text(errors="replace").splitlines(keepends=True):
            if line.startswith("{") and line.endswith("\n"):
                said.update(json.loads(line))
        return bool(said)

    await until_ready(process, ready, within_s=READY_WITHIN_S)
    return said


async def _answers(port: int) -> bool:
    async with httpx.AsyncClient(trust_env=False, timeout=2) as http:
        try:
            ready = await http.get(f"http://127.0.0.1:{port}/health/ready")
            live = await http.get(f"http://127.0.0.1:{port}/health/live")
        except httpx.HTTPError:
            return False
    return ready.status_code == 200 and live.status_code == 200
