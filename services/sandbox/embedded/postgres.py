"""PostgreSQL 18 as a child process: over TCP on loopback, or over a Unix socket alone."""

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, LiteralString

import asyncpg

from services.sandbox.embedded import packages
from services.sandbox.embedded.leftovers import command_line
from services.sandbox.embedded.process import SAME, Command, StartFailed, StopStep, run_to_end
from services.sandbox.embedded.server import Server
from services.sandbox.embedded.unprivileged import give, identity_for

SUPERUSER: Final = "postgres"
SOCKET_PORT: Final = 5432  # only names the socket's file: without TCP no port is taken

_NAME: Final = "PostgreSQL"
_CONF: Final = "rowclaim.conf"
_INITDB_WITHIN_S: Final = 60.0
_EARLIER_GONE_WITHIN_S: Final = 10.0
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

# The statement to run, the name quoted by the server itself; no row when the database exists.
CREATE_DATABASE_IF_MISSING: Final[LiteralString] = """
select format('create database %I', $1::text)
where not exists (select from pg_database where datname = $1)
"""


class Postgres(Server):
    """One server over one data directory, initialised at the first start. Superuser `postgres`, no password.

    With `socket_only` it listens on a Unix socket in a short directory of its own and on no port; else on 127.0.0.1
    and on no socket. `durable=False` turns fsync off. `settings` are more lines for postgresql.conf and win over ours.
    """

    name = _NAME
    ready_within_s = 30.0  # a crash recovery may come first

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
        port = SOCKET_PORT if socket_only else port
        super().__init__(log_path=log_path, ports=() if port is None else (port,))
        self.data_dir = data_dir.resolve()
        self.socket_only = socket_only
        self.socket_dir: Path | None = None
        self._settings = (_SETTINGS if durable else _SETTINGS | _NOT_DURABLE) | dict(settings or {})
        self._identity = SAME

    def url(self, database: str = "postgres", *, user: str = SUPERUSER) -> str:
        """The address as asyncpg, psycopg2 and dbmate read it."""
        if self.socket_only:
            return f"postgres://{user}@/{database}?host={self.socket_dir}&port={self.port}"
        return f"postgres://{user}@127.0.0.1:{self.port}/{database}?sslmode=disable"

    async def stop(self) -> None:
        """Fast shutdown: open sessions are ended, everything is written."""
        await super().stop()
        if self.socket_dir is not None:
            shutil.rmtree(self.socket_dir, ignore_errors=True)

    async def create_database(self, name: str) -> None:
        """Create an empty database unless it exists."""
        connection = await asyncpg.connect(self.url())
        try:
            statement = await connection.fetchval(CREATE_DATABASE_IF_MISSING, name)
            if statement is not None:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def _prepare(self) -> None:
        binary = packages.postgres_binary()
        if self._is_new():
            await self._initialise()
        await self._outlive_earlier()
        self._identity = await identity_for(self.data_dir, binary)
        if self.socket_only:
            self._make_socket_dir()

    def _command(self) -> Command:
        self._configure()
        return Command(
            name=self.name,
            argv=(packages.postgres_binary(), "-D", self.data_dir),
            log_path=self.log_path,
            death_signal=signal.SIGINT,
            stop=_STOP,
            identity=self._identity,
        )

    async def _is_ready(self) -> bool:
        lines = _lines(self.data_dir / "postmaster.pid")
        return len(lines) >= 8 and lines[0] == str(self.process.pid) and lines[7].strip() == "ready"

    def _is_new(self) -> bool:
        if (self.data_dir / "PG_VERSION").exists():
            return False
        if self.data_dir.exists() and any(self.data_dir.iterdir()):
            raise StartFailed(_NAME, f"{self.data_dir} holds something else than its data; choose another directory")
        return True

    async def _initialise(self) -> None:
        # under another name until it is whole: an initdb that was killed half-way would never start again
        fresh = self.data_dir.with_name(self.data_dir.name + ".new")
        _make_anew(fresh)
        binary = packages.postgres_binary("initdb")
        initdb = Command(
            name="initdb",
            argv=(
                *(binary, "-D", fresh, "-U", SUPERUSER, "--auth=trust", "--encoding=UTF8"),
                *("--locale-provider=builtin", "--locale=C.UTF-8", "--no-sync", "--no-instructions"),
            ),
            death_signal=signal.SIGKILL,
            identity=await identity_for(fresh, binary),
        )
        done = await run_to_end(initdb, within_s=_INITDB_WITHIN_S)
        if done.exit_code != 0:
            raise StartFailed(_NAME, "initdb failed", done.said)
        _append(fresh / "postgresql.conf", f"include '{_CONF}'\n")
        fresh.rename(self.data_dir)  # over an empty directory at most, says the system too

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
                raise StartFailed(
                    _NAME, f"process {lines[0]} serves {self.data_dir} already", code="server_already_running"
                )
            await asyncio.sleep(_POLL_S)

    def _configure(self) -> None:
        lines = self._settings | {
            "port": str(self.port),
            "listen_addresses": "" if self.socket_only else "127.0.0.1",
            "unix_socket_directories": str(self.socket_dir or ""),
        }
        conf = self.data_dir / _CONF
        conf.write_text("".join(f"{name} = {_quoted(value)}\n" for name, value in lines.items()))
        give(conf, self._identity)

    def _make_socket_dir(self) -> None:
        """A short directory of its own, and empty: a killed server leaves a lock file there that names its old pid."""
        if self.socket_dir is None:
            # /tmp whatever TMPDIR says: a socket's path may have 107 bytes at most
            self.socket_dir = Path(tempfile.mkdtemp(prefix="rc-", dir="/tmp"))
        else:  # a later start: the address that was handed out stays good
            shutil.rmtree(self.socket_dir, ignore_errors=True)
            self.socket_dir.mkdir(mode=0o700)
        if os.geteuid() == 0:
            self.socket_dir.chmod(0o755)
            give(self.socket_dir, self._identity)


def _make_anew(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700, parents=True)


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


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
