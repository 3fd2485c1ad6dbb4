"""A whole rowclaim on one machine: embedded servers, the sandbox in the vendors' place, and our own processes.

Every service is its own process, started by the command an operator types, and everything dies with us. Stopped in
order: the services (each finishes the attempt it has in hand), the sandbox, the servers. What stands in
``services/sandbox`` is imported when an installation is opened: the service itself runs without that group of packages.
"""

import asyncio
import json
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx

from services.kernel.errors import Stop
from services.kernel.settings import PREFIX, Settings, load_settings, variables
from services.operations import web
from services.operations.environment import kinds_of
from services.operations.terminal import Terminal

if TYPE_CHECKING:
    from services.sandbox.control import SandboxControl
    from services.sandbox.embedded.process import Finished, ServerProcess
    from services.sandbox.embedded.stack import Stack

ROOT: Final = Path(__file__).resolve().parents[2]
READY_S: Final = 60.0
STOP_S: Final = 60.0
SANDBOX_STOP_S: Final = 5.0
COMMAND_S: Final = 120.0
WATCH_S: Final = 0.2
DEFAULT_HTTP_PORT: Final[int] = Settings.model_fields["http_port"].default
DEFAULT_BUCKET: Final[str] = Settings.model_fields["s3_bucket"].default


@dataclass(frozen=True, slots=True)
class Plan:
    """What an installation is made of, where it differs from the usual."""

    parts: frozenset[str] | None = None
    """Names of embedded parts; None: all."""
    consumers: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings beside those that say where everything is."""
    alone: bool = False
    """Take nothing from the environment and listen on a free port: the run must show the same on every machine."""


class Installation:
    """The running whole. ``settings`` is the environment every process of it was started with."""

    def __init__(self, terminal: Terminal, stack: "Stack", plan: "Plan") -> None:
        self.stack = stack
        self.plan = plan
        self.settings: dict[str, str] = {}
        self.sandbox: Mapping[str, Any] = {}
        """What the sandbox said when it listened: its addresses and keys."""
        self.stripe_endpoint = ""
        """The sandbox's id of the webhook endpoint that is our front door."""
        self.processes: dict[str, ServerProcess] = {}
        self.ended_badly: list[str] = []
        """Services that were told to stop and did not exit 0."""
        self.log_dir = stack.data_dir / "log"
        self._terminal = terminal
        self._health_ports: dict[str, int] = {}

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.settings['ROWCLAIM_HTTP_PORT']}"

    @property
    def health_url(self) -> str:
        """Where the (first) consuming process tells of itself."""
        return f"http://127.0.0.1:{self._health_ports[_consumer(1)]}"

    def control(self) -> "SandboxControl":
        """The hand behind the scenery; close it after use."""
        from services.sandbox.control import SandboxControl

        return SandboxControl(self.sandbox["control_url"])

    async def run(self, *arguments: str) -> str:
        """Run a command of ours to its end; returns its output. Raises Stop("service_ended") unless it exits 0."""
        done = await self.end_of(*arguments)
        if done.exit_code != 0:
            raise Stop("service_ended", f"rowclaim {' '.join(arguments)} ended with exit {done.exit_code}: {done.said}")
        return done.said

    async def end_of(self, *arguments: str) -> "Finished":
        """Run a command of ours to its end, however it ends."""
        from services.sandbox.embedded.process import Command, run_to_end

        command = Command(
            name=f"rowclaim {' '.join(arguments)}",
            argv=(sys.executable, "-m", "services", *arguments),
            log_path=self.log_dir / "commands.log",
            death_signal=signal.SIGKILL,
            environment=self.settings,
            cwd=ROOT,
        )
        return await run_to_end(command, within_s=COMMAND_S)

    async def start(
        self,
        name: str,
        *,
        module: str = "services",
        arguments: Iterable[str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Start a process that stays: ``rowclaim NAME`` unless told otherwise. It is stopped with the rest."""
        from services.sandbox.embedded.process import Command, StopStep, spawn

        grace_s = STOP_S if module == "services" else SANDBOX_STOP_S
        self.processes[name] = spawn(
            Command(
                name=name,
                argv=(sys.executable, "-m", module, *(arguments if arguments is not None else (name,))),
                log_path=self.log_dir / f"{name}.log",
                death_signal=signal.SIGKILL,
                stop=(StopStep(signal.SIGTERM, grace_s),),
                environment=self.settings | dict(settings or {}),
                cwd=ROOT,
            )
        )

    async def start_consumer(self, name: str) -> None:
        """Start one consuming process, again under the address it had, and return when it is ready."""
        from services.sandbox.embedded.process import free_port

        port = self._health_ports.setdefault(name, free_port())
        await self.start(name, arguments=("consume",), settings={"ROWCLAIM_HEALTH_PORT": str(port)})
        await self.ready(name, f"http://127.0.0.1:{port}")

    async def ready(self, name: str, url: str) -> None:
        """Wait until the process answers ``/health/ready``. Raises Stop("server_start_failed") with its log's tail."""
        from services.sandbox.embedded.process import until_ready

        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
            await until_ready(self.processes[name], _answers(client, f"{url}/health/ready"), within_s=READY_S)

    async def watch(self, stopping: asyncio.Event) -> None:
        """Return when ``stopping`` is set. Raises Stop("service_ended") as soon as a process ends by itself."""
        while not stopping.is_set():
            for name, process in self.processes.items():
                if not process.alive:
                    raise Stop("service_ended", f"{name} ended with exit {process.exit_code}:\n{process.log_tail()}")
            try:
                async with asyncio.timeout(WATCH_S):
                    await stopping.wait()
            except TimeoutError:
                continue

    async def open(self) -> None:
        """Bring everything up that stands on the servers: sandbox, schema, topics, bucket, HTTP, consumers."""
        from services.sandbox.embedded.process import free_port, run_id
        from services.sandbox.embedded.stack import Part

        await self.start("sandbox", module="services.sandbox", arguments=("--port", "0", "--smtp-port", "0"))
        self.sandbox = await self._said_by_sandbox()
        given = {name: value for name, value in self._terminal.environ.items() if name.startswith(PREFIX)}
        first = {"ROWCLAIM_HTTP_PORT": str(DEFAULT_HTTP_PORT)} | given
        if self.plan.alone:
            first = {"ROWCLAIM_HTTP_PORT": str(free_port())}
        ours = self.stack.settings() | {"ROWCLAIM_RUN": run_id()}
        self.settings = first | ours | self._of_sandbox() | self._known(self.plan.settings)
        self.settings |= self._known(await self._webhooks())
        self._write_settings()
        # Asked for here: another program that listens there would answer our probes as if it were ours.
        web.bind("127.0.0.1", load_settings(Settings, self.settings).http_port).close()
        preparing: list[Coroutine[Any, Any, object]] = [self.run("migrate"), self.run("topics")]
        if Part.OBJECTS in self.stack.parts:
            bucket = self.settings.get("ROWCLAIM_S3_BUCKET", DEFAULT_BUCKET)
            preparing.append(self.stack.objects.create_locked_bucket(bucket))
        await together(*preparing)
        await self.start("serve")
        consumers = [self.start_consumer(_consumer(number)) for number in range(1, self.plan.consumers + 1)]
        await together(self.ready("serve", self.http_url), *consumers)

    async def close(self) -> None:
        """Stop our processes: the services side by side, then the sandbox they speak to."""
        await self.stop_services()
        if "sandbox" in self.processes:
            await self.processes["sandbox"].stop()

    async def stop_services(self) -> None:
        """SIGTERM to all services at once; whoever does not end in order is remembered."""
        services = {name: process for name, process in self.processes.items() if name != "sandbox" and process.alive}
        await asyncio.gather(*(process.stop() for process in services.values()))
        self.ended_badly += [f"{name}: exit {p.exit_code}" for name, p in services.items() if p.exit_code != 0]

    @property
    def settings_file(self) -> Path:
        """The settings as a shell reads them, so that every other command can be typed against this installation."""
        return self.stack.data_dir / "settings.sh"

    def _write_settings(self) -> None:
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(self.settings.items())]
        self.settings_file.touch(mode=0o600)
        self.settings_file.write_text("".join(lines), encoding="utf-8")

    async def _said_by_sandbox(self) -> Mapping[str, Any]:
        from services.sandbox.embedded.process import until_ready

        log = self.log_dir / "sandbox.log"

        async def said() -> bool:
            return first_json(log) is not None

        await until_ready(self.processes["sandbox"], said, within_s=READY_S)
        return first_json(log) or {}

    def _of_sandbox(self) -> dict[str, str]:
        """The settings that put the sandbox in the vendors' place."""
        said = self.sandbox
        return self._known(
            {
                "ROWCLAIM_SANDBOX_URL": said["control_url"],
                "ROWCLAIM_SMTP_URL": said["smtp_url"],
                "ROWCLAIM_AUTH_ISSUER": said["clerk_issuer"],
                "ROWCLAIM_AUTH_JWKS_URL": f"{said['clerk_issuer']}/.well-known/jwks.json",
                "ROWCLAIM_INGRESS_STRIPE_API_URL": said["stripe_url"],
                "ROWCLAIM_INGRESS_STRIPE_API_KEY": said["stripe_api_key"],
                "ROWCLAIM_FULFILLMENT_STRIPE_API_URL": said["stripe_url"],
                "ROWCLAIM_FULFILLMENT_STRIPE_API_KEY": said["stripe_api_key"],
                "ROWCLAIM_FULFILLMENT_GITHUB_API_URL": said["github_url"],
                "ROWCLAIM_FULFILLMENT_GITHUB_TOKEN": said["github_token"],
                "ROWCLAIM_FULFILLMENT_GITHUB_REPOSITORY": said["github_repository"],
                "ROWCLAIM_FULFILLMENT_MAIL_FROM": "orders@rowclaim.example",
                "ROWCLAIM_FULFILLMENT_PRODUCT_NAME": "The Product",
                "ROWCLAIM_FULFILLMENT_CHECKOUT_PRICE": said["stripe_price"],
                "ROWCLAIM_FULFILLMENT_CHECKOUT_SUCCESS_URL": "https://shop.rowclaim.example/thanks",
                "ROWCLAIM_FULFILLMENT_CHECKOUT_CANCEL_URL": "https://shop.rowclaim.example/",
            }
        )

    async def _webhooks(self) -> dict[str, str]:
        """Point the sandbox's senders at our HTTP process, and let it know their secrets."""
        from services.sandbox.wire import AddClerkEndpoint, AddStripeEndpoint

        async with self.control() as control:
            stripe = await control.do(AddStripeEndpoint(f"{self.http_url}/webhooks/stripe"))
            clerk = await control.do(AddClerkEndpoint(f"{self.http_url}/webhooks/clerk"))
        self.stripe_endpoint = stripe.id
        return {
            "ROWCLAIM_INGRESS_STRIPE_SECRETS": ",".join(stripe.secrets),
            "ROWCLAIM_INGRESS_CLERK_SECRETS": ",".join(clerk.secrets),
        }

    def _known(self, named: Mapping[str, str]) -> dict[str, str]:
        """Of these settings, those that a slice of this release has."""
        known = {variable for kind in kinds_of(self._terminal.services) for variable in variables(kind)}
        return {name: value for name, value in named.items() if name in known}


@asynccontextmanager
async def installation(terminal: Terminal, data_dir: Path, plan: "Plan | None" = None) -> AsyncIterator[Installation]:
    """Everything up, and down again at the end of the block. Raises Stop when a part does not come up."""
    from services.sandbox.embedded.stack import Part, embedded_stack

    plan = plan or Plan()
    # The sandbox takes the mail itself, where its request log and its mails can be read over one wire.
    parts = [part for part in Part if part is not Part.MAIL and (plan.parts is None or part.value in plan.parts)]
    async with embedded_stack(data_dir, parts=parts) as stack:
        whole = Installation(terminal, stack, plan)
        try:
            await whole.open()
            yield whole
        finally:
            await whole.close()


async def together(*work: Coroutine[Any, Any, object]) -> None:
    """Do all at once; the first that fails cancels the others, and its error is the one to tell."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


def _consumer(number: int) -> str:
    return f"consume-{number}"


def _answers(client: httpx.AsyncClient, url: str) -> Callable[[], Awaitable[bool]]:
    async def probe() -> bool:
        try:
            return (await client.get(url)).is_success
        except httpx.TransportError:
            return False

    return probe


def first_json(log: Path) -> dict[str, Any] | None:
    """The line of JSON by which the sandbox tells that it listens."""
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
    # A line without its end is still being written.
    return next((json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")), None)
