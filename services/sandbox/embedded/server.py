"""What the embedded servers share: ports of their own, one child process, a start that is ready or leaves nothing."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from services.sandbox.embedded import packages
from services.sandbox.embedded.process import Command, ExitedEarly, ServerProcess, free_ports, spawn, until_ready

_START_ATTEMPTS: Final = 3


class Server(ABC):
    """A server on 127.0.0.1. Its ports are drawn at the first start unless given, and kept: addresses were handed out.

    `start` after `stop` or `kill` brings it back under the same address. Start from the main thread (process.py).
    """

    name: ClassVar[str]
    ready_within_s: ClassVar[float]

    def __init__(self, *, log_path: Path, ports: Sequence[int] = (), ports_needed: int = 1) -> None:
        self.log_path = log_path
        self._ports = tuple(ports)
        self._ports_kept = bool(ports)
        self._ports_needed = ports_needed
        self._process: ServerProcess | None = None

    @property
    def port(self) -> int:
        """The port that clients use."""
        if not self._ports:
            raise RuntimeError(f"{self.name} has no port before its first start")
        return self._ports[0]

    @property
    def process(self) -> ServerProcess:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process

    async def start(self) -> None:
        """Return when it answers. Raises `UnsupportedPlatform` or `StartFailed`; then nothing of it runs."""
        if self._process is not None and self._process.alive:
            raise RuntimeError(f"{self.name} runs already")
        packages.check_platform()
        await self._prepare()
        for attempt in range(1, _START_ATTEMPTS + 1):
            if not self._ports:
                self._ports = tuple(free_ports(self._ports_needed))
            try:
                await self._boot()
            except ExitedEarly:
                # somebody may have taken a port between our test and the server's bind
                if self._ports_kept or attempt == _START_ATTEMPTS:
                    raise
                self._ports = ()
            else:
                self._ports_kept = True
                return

    async def stop(self) -> None:
        """Stop in the way the server wants, by force if need be. Nothing when it does not run."""
        if self._process is not None:
            await self._process.stop()

    def kill(self) -> None:
        """SIGKILL it, as a crash would."""
        self.process.kill()

    async def _boot(self) -> None:
        process = self._process = spawn(self._command())
        try:
            await until_ready(process, self._is_ready, within_s=self.ready_within_s)
        except BaseException:
            await process.stop()
            raise

    async def _prepare(self) -> None:  # noqa: B027 - nothing to prepare is a good answer
        """What comes before the first spawn of a start."""

    @abstractmethod
    def _command(self) -> Command:
        """The child to spawn on `_ports`."""

    @abstractmethod
    async def _is_ready(self) -> bool:
        """Whether OUR child answers: on a port that was taken, somebody else's server would. Bounded; never raises."""
