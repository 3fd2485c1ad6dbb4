"""Child processes that cannot outlive us, and the free ports they listen on.

Every child carries `ROWCLAIM_RUN` in its environment, so that whatever a run left behind can be found by that name.
Linux ties a child's death to the THREAD that created it, not to the process: spawning happens in the main thread only.
"""

import asyncio
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from services.kernel.errors import Stop

RUN_VARIABLE: Final = "ROWCLAIM_RUN"
# All a child sees of ours: a PGPORT or an odd locale would mislead PostgreSQL, a RUST_LOG fill the disk within minutes.
BASE_ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}

# Who a child runs as (keeper.py); the third form is "uid:gid".
SAME: Final = "same"
USER_NAMESPACE: Final = "userns"

# Below 32768, where Linux starts handing out ports to clients: one of those could take the port of a restarting server.
PORT_MIN: Final = 20_000
PORT_MAX: Final = 32_000

_KEEPER: Final = Path(__file__).with_name("keeper.py")
_POLL_S: Final = 0.01
_REAP_S: Final = 10.0
_LOG_TAIL_BYTES: Final = 4_000
_PORT_DRAWS: Final = 200
_RANDOM: Final = random.SystemRandom()  # processes side by side must not draw the same ports


class StartFailed(Stop):
    """A server did not come up; the message names it, says what was seen, and ends with the tail of its log."""

    def __init__(self, name: str, reason: str, log_tail: str = "", *, code: str = "server_start_failed") -> None:
        super().__init__(code, f"{name}: {reason}" + (f"\n{log_tail}" if log_tail else ""))
        self.reason = reason


class ExitedEarly(StartFailed):
    """The child ended before it was ready. A port taken between our test and its bind looks like this."""


def run_id() -> str:
    """The name of this run: `ROWCLAIM_RUN` as inherited, else generated and put there, so that every child has it."""
    return os.environ.setdefault(RUN_VARIABLE, f"run-{secrets.token_hex(6)}")


def free_port() -> int:
    """A port in 20000..32000 of 127.0.0.1 that nobody listens on at this moment."""
    for _ in range(_PORT_DRAWS):
        port = _RANDOM.randint(PORT_MIN, PORT_MAX)
        if is_free(port):
            return port
    raise OSError(f"no free port in {PORT_MIN}..{PORT_MAX} after {_PORT_DRAWS} draws")


def free_ports(count: int) -> list[int]:
    """`count` different free ports."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@dataclass(frozen=True, slots=True)
class StopStep:
    """Send `signal`, then allow the process `grace_s` seconds before the next step (after the last one: SIGKILL)."""

    signal: signal.Signals
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run and how it dies. `identity` and `mode` are explained in keeper.py; an empty `stop` means SIGKILL."""

    name: str
    argv: Sequence[str | Path]
    death_signal: signal.Signals
    log_path: Path = Path(os.devnull)
    stop: tuple[StopStep, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    identity: str = SAME
    cwd: Path = Path("/")
    mode: Literal["exec", "hold"] = "exec" if sys.platform == "linux" else "hold"


class ServerProcess:
    """One running child. `stop` and `kill` may be called at any time and more than once."""

    def __init__(self, command: Command, popen: subprocess.Popen[bytes], pid: int) -> None:
        self.command = command
        self.pid = pid  # the server's own, also where a keeper stands between
        self._popen = popen

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._popen.poll()

    def log_tail(self) -> str:
        return read_tail(self.command.log_path)

    async def stop(self) -> None:
        """Walk the command's stop steps, then SIGKILL; returns when the process is reaped."""
        try:
            for step in self.command.stop:
                self._send(step.signal)
                if await self.gone_within(step.grace_s):
                    break
        finally:  # a cancelled stop still leaves nothing behind
            self.kill()

    def kill(self) -> None:
        self._send(signal.SIGKILL)
        self._popen.wait(_REAP_S)
        if self._popen.stdin is not None:
            self._popen.stdin.close()

    def _send(self, number: signal.Signals) -> None:
        if not self.alive:
            return
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:  # a keeper has reaped it and is about to exit
            return

    async def gone_within(self, seconds: float) -> bool:
        """Wait for its end; False when it still lives after `seconds`."""
        deadline = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True


@dataclass(frozen=True, slots=True)
class Finished:
    """How a short program ended: None when it never ran or had to be killed, and what it or the keeper said."""

    exit_code: int | None
    said: str


def spawn(command: Command) -> ServerProcess:
    """Start a child in a session of its own. Raises `StartFailed` when its program cannot be executed."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(f"{command.name}: spawn from the main thread, a server dies with the thread that made it")
    reader, writer = os.pipe()
    try:
        with command.log_path.open("ab") as log:
            popen = subprocess.Popen(
                _keeper_argv(command, writer),
                stdin=subprocess.PIPE if command.mode == "hold" else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=BASE_ENVIRONMENT | dict(command.environment) | {RUN_VARIABLE: run_id()},
                pass_fds=(writer,),
                start_new_session=True,  # a terminal's Ctrl-C reaches us alone, and we stop them in order
            )
    finally:
        os.close(writer)
    with os.fdopen(reader) as report:
        said = report.read()
    if said.startswith("pid "):
        return ServerProcess(command, popen, int(said.removeprefix("pid ")))
    process = ServerProcess(command, popen, popen.pid)
    if said:
        process.kill()
        raise StartFailed(command.name, said)
    return process


async def run_to_end(command: Command, *, within_s: float) -> Finished:
    """Run a short program to its end, or kill it when the time is over or the caller is cancelled. Keeps no log."""
    with tempfile.NamedTemporaryFile(prefix="rc-") as output:
        try:
            process = spawn(replace(command, log_path=Path(output.name)))
        except StartFailed as failed:
            return Finished(None, failed.reason)
        try:
            ended = await process.gone_within(within_s)
        finally:
            process.kill()
        if not ended:
            return Finished(None, f"killed after {within_s:g} s\n{process.log_tail()}")
        return Finished(process.exit_code, process.log_tail())


def _keeper_argv(command: Command, report_fd: int) -> list[str]:
    # -I -S: no user site, no .pth files, no PYTHON* variables; the keeper is up in some 20 ms
    keeper = [sys.executable, "-I", "-S", str(_KEEPER)]
    head = [
        str(os.getpid()),
        str(int(command.death_signal)),
        command.identity,
        command.mode,
        str(report_fd),
        str(command.cwd),
    ]
    return keeper + head + [str(argument) for argument in command.argv]


async def until_ready(process: ServerProcess, probe: Callable[[], Awaitable[bool]], *, within_s: float) -> None:
    """Poll `probe` until it holds while the child lives.

    The child is looked at after the probe as well: another server on the same port would have answered in its place.
    Raises `ExitedEarly` when the child ends, `StartFailed` when the time is over.
    """
    deadline = time.monotonic() + within_s
    while True:
        ready = await probe()
        if not process.alive:
            reason = f"it exited with code {process.exit_code}"
            raise ExitedEarly(process.command.name, reason, process.log_tail())
        if ready:
            return
        if time.monotonic() > deadline:
            raise StartFailed(process.command.name, f"not ready after {within_s:g} s", process.log_tail())
        await asyncio.sleep(_POLL_S)


def read_tail(path: Path) -> str:
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
