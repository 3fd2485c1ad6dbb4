"""PostgreSQL 18 as a child process: over TCP on loopback, or over a Unix socket alone."""

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import asyncpg

from services.sandbox.embedded import packages
from services.sandbox.embedded.leftovers import command_line
from services.sandbox.embedded.process import (
    Command,
    ExitedEarly,
    ServerProcess,
    StartFailed,
    StopStep,
    free_port,
    run_to_end,
    spawn,
    until_ready,
)
from services.sandbox.embedded.unprivileged import give, identity_for

SUPERUSER: Final = "postgres"
SOCKET_PORT: Final = 5432  # only names the socket's file: without TCP no port is taken

_NAME: Final = "PostgreSQL"
_CONF: Final = "rowclaim.conf"
_READY_WITHIN_S: Final = 30.0  # a crash recovery may come first
_INITDB_WITHIN_S: Final = 60.0
_EARLIER_GONE_WITHIN_S: Final = 10.0
_START_ATTEMPTS: Final = 3
_POLL_S: Final = 0.01
# Fast shutdown first. A replication client that does not read can hold it up to wal_sender_timeout (5 s below).
_STOP: Final = (StopStep(signal.SIGINT, 10.0), StopStep(signal.SIGQUIT, 5.0))
_SETTINGS: Final = {
    "wal_level": "logical",
    "max_wal_senders": "8",
    "max_replication_slots": "8",
    "max_slot_wal_keep_size": "1GB",
    "wal_sender_timeout": "5s",
    "shared_buffers": "64MB",
    "max_connections": "200",  # a dozen services with a pool each
}
# What a machine's power cut could lose is not worth waiting for in a test; a killed process loses nothing all the same.
_NOT_DURABLE: Final = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


class AlreadyRunning(StartFailed):
    """A live PostgreSQL works in the same data directory."""


class Postgres:
    """One server over one data directory, initialised at the first start. The superuser is `postgres`, without a password.

    With `socket_only` it listens on a Unix socket in a fresh short directory and on no port; else on 127.0.0.1:`port`
    (drawn at the first start when not given) and on no socket. `durable=False` turns fsync off. `settings` are further
    lines of postgresql.conf and win over ours.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        log_path: Path,
        socket_only: bool = False,
        port: int | None = None,
        durable: bool = True,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.data_dir = data_dir.resolve()
        self.log_path = log_path
        self.socket_only = socket_only
        self.socket_dir: Path | None = None
        self._fixed_port = SOCKET_PORT if socket_only else port
        self._port: int | None = self._fixed_port
        self._settings = (_SETTINGS if durable else _SETTINGS | _NOT_DURABLE) | dict(settings or {})
        self._process: ServerProcess | None = None

    @property
    def port(self) -> int:
        if self._port is None:
            raise RuntimeError(f"{_NAME} has no port before its first start")
        return self._port

    @property
    def process(self) -> ServerProcess:
        if self._process is None:
            raise RuntimeError(f"{_NAME} was not started")
        return self._process

    def url(self, database: str = "postgres", *, user: str = SUPERUSER) -> str:
        """The address as asyncpg, psycopg2 and dbmate read it."""
        if self.socket_only:
            return f"postgres://{user}@/{database}?host={self.socket_dir}&port={self.port}"
        return f"postgres://{user}@127.0.0.1:{self.port}/{database}?sslmode=disable"

    async def start(self) -> None:
        """Initialise if new, start, and return when it accepts connections. Raises `StartFailed`."""
        packages.check_platform()
        binary = packages.postgres_binary()
        if not (self.data_dir / "PG_VERSION").exists():
            await asyncio.to_thread(self._initialise)
        await self._outlive_earlier()
        identity = await asyncio.to_thread(identity_for, self.data_dir, binary)
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._configure(identity)
            try:
                await self._spawn(binary, identity)
            except ExitedEarly:
                # someone may have taken the port between its test and PostgreSQL's bind
                if self._fixed_port is not None or attempt == _START_ATTEMPTS:
                    raise
                self._port = None
                continue
            self._fixed_port = self._port  # addresses were handed out: later starts keep it
            return

    async def stop(self) -> None:
        """Fast shutdown: open sessions are ended, everything is written. Does nothing when not running."""
        if self._process is not None:
            await self._process.stop()
        if self.socket_dir is not None:
            shutil.rmtree(self.socket_dir, ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL the postmaster, as a crash would; `start` recovers."""
        self.process.kill()

    async def create_database(self, name: str) -> None:
        """Create an empty database unless it exists."""
        connection = await asyncpg.connect(self.url())
        try:
            if not await connection.fetchval("select exists (select from pg_database where datname = $1)", name):
                identifier = name.replace('"', '""')
                await connection.execute(f'create database "{identifier}"')
        finally:
            await connection.close()

    def _initialise(self) -> None:
        # under another name until it is whole: an initdb that was killed half-way would never start again
        fresh = self.data_dir.with_name(self.data_dir.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700, parents=True)
        binary = packages.postgres_binary("initdb")
        initdb = Command(
            name="initdb",
            argv=(
                *(binary, "-D", fresh, "-U", SUPERUSER, "--auth=trust", "--encoding=UTF8"),
                *("--locale-provider=builtin", "--locale=C.UTF-8", "--no-sync", "--no-instructions"),
            ),
            log_path=self.log_path,
            death_signal=signal.SIGKILL,
            identity=identity_for(fresh, binary),
        )
        done = run_to_end(initdb, within_s=_INITDB_WITHIN_S)
        if done.returncode != 0:
            raise StartFailed(_NAME, f"initdb ended with code {done.returncode}", done.stdout)
        with (fresh / "postgresql.conf").open("a") as conf:
            conf.write(f"include '{_CONF}'\n")
        try:
            fresh.rename(self.data_dir)  # over an empty directory at most
        except OSError as error:
            raise StartFailed(_NAME, f"{self.data_dir} holds something else than its data: {error}") from error

    async def _outlive_earlier(self) -> None:
        """Wait for a postmaster whose parent has just died; remove a lock file that names somebody else's process.

        A dead pid PostgreSQL finds out about by itself. A pid that was given to another process since makes it refuse
        for ever.
        """
        lock = self.data_dir / "postmaster.pid"
        deadline = time.monotonic() + _EARLIER_GONE_WITHIN_S
        while (lines := _lines(lock)) and lines[0].isdigit():
            running = command_line(int(lines[0]))
            if running is None:
                return
            if not _is_postmaster(running, self.data_dir):
                lock.unlink(missing_ok=True)
                return
            if time.monotonic() > deadline:
                raise AlreadyRunning(_NAME, f"process {lines[0]} serves {self.data_dir} already; stop it first")
            await asyncio.sleep(_POLL_S)

    def _configure(self, identity: str) -> None:
        if self._port is None:
            self._port = free_port()
        if self.socket_only:
            self._make_socket_dir(identity)
        lines = self._settings | {
            "port": str(self.port),
            "listen_addresses": "" if self.socket_only else "127.0.0.1",
            "unix_socket_directories": str(self.socket_dir or ""),
        }
        conf = self.data_dir / _CONF
        conf.write_text("".join(f"{name} = {_quoted(value)}\n" for name, value in lines.items()))
        give(conf, identity)

    async def _spawn(self, binary: Path, identity: str) -> None:
        process = spawn(
            Command(
                name=_NAME,
                argv=(binary, "-D", self.data_dir),
                log_path=self.log_path,
                death_signal=signal.SIGINT,
                stop=_STOP,
                identity=identity,
            )
        )

        async def accepts() -> bool:
            lines = _lines(self.data_dir / "postmaster.pid")
            return len(lines) >= 8 and lines[0] == str(process.pid) and lines[7].strip() == "ready"

        try:
            await until_ready(process, accepts, within_s=_READY_WITHIN_S)
        except BaseException:
            await process.stop()
            raise
        self._process = process

    def _make_socket_dir(self, identity: str) -> None:
        """A short directory of its own, and empty: a killed server leaves a lock file there that names its old pid."""
        if self.socket_dir is None:
            # /tmp whatever TMPDIR says: a socket's path may have 107 bytes at most
            self.socket_dir = Path(tempfile.mkdtemp(prefix="rc-", dir="/tmp"))
        else:  # a later start: the address that was handed out stays good
            shutil.rmtree(self.socket_dir, ignore_errors=True)
            self.socket_dir.mkdir(mode=0o700)
        if os.geteuid() == 0:
            self.socket_dir.chmod(0o755)
            give(self.socket_dir, identity)


def _is_postmaster(command: str, data_dir: Path) -> bool:
    program = command.partition(" -D ")[0]
    return program.endswith("/postgres") and f" -D {data_dir} " in f"{command} "


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except FileNotFoundError:
        return []


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
