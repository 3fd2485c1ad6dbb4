"""What the services stand on, up together and down in order: database, broker, Valkey, object store, mail sink."""

import asyncio
import fcntl
import os
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, Final, Protocol, assert_never

from services.sandbox.embedded.broker import Broker
from services.sandbox.embedded.mail import MailSink
from services.sandbox.embedded.objects import ObjectStore
from services.sandbox.embedded.postgres import Postgres
from services.sandbox.embedded.process import StartFailed
from services.sandbox.embedded.valkey import Valkey

DATABASE: Final = "rowclaim"

# The embedded broker costs nothing to poll often and is not shared. A join takes two thirds of the session timeout.
_KAFKA_FETCH_WAIT_MS: Final = 20
_KAFKA_SESSION_TIMEOUT_MS: Final = 3_000
_KAFKA_HEARTBEAT_MS: Final = 300


class Part(StrEnum):
    """In the order of a stop: what writes to the database goes before it."""

    MAIL = "mail"
    BROKER = "broker"
    VALKEY = "valkey"
    OBJECTS = "objects"
    POSTGRES = "postgres"


class _Startable(Protocol):
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class Stack:
    """The chosen parts over one directory (created; holds `postgres/`, `objects/`, `valkey/` and `log/`).

    The mail sink lives on the loop that calls `start`; everything else is a child process that dies with us. One stack
    works in a directory at a time. Stop the services before the stack: a replication client that does not read would
    hold the database's stop for 5 s.
    """

    def __init__(
        self, data_dir: Path, *, parts: Iterable[Part] = Part, postgres_settings: Mapping[str, str] | None = None
    ) -> None:
        self.data_dir = data_dir.resolve()
        self.parts = tuple(part for part in Part if part in frozenset(parts))
        self._logs = self.data_dir / "log"
        self._lock = _DirectoryLock(self.data_dir)
        self.postgres = Postgres(
            self.data_dir / "postgres", log_path=self._logs / "postgres.log", settings=postgres_settings
        )
        self.broker = Broker(log_path=self._logs / "broker.log")
        self.valkey = Valkey(self.data_dir / "valkey", log_path=self._logs / "valkey.log")
        self.objects = ObjectStore(self.data_dir / "objects", log_path=self._logs / "objects.log")
        self.mail = MailSink()
        self._servers: dict[Part, _Startable] = {
            Part.MAIL: self.mail,
            Part.BROKER: self.broker,
            Part.VALKEY: self.valkey,
            Part.OBJECTS: self.objects,
            Part.POSTGRES: self.postgres,
        }

    async def start(self) -> None:
        """Start the parts side by side. All are ready and the database exists, or none runs and the error is raised."""
        self._lock.take()
        try:
            self._fresh_logs()
            async with asyncio.TaskGroup() as starting:
                for part in self.parts:
                    starting.create_task(self._start(part))
        except BaseExceptionGroup as failed:
            await self.stop()
            raise _first(failed) from None
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop every part, the database last; bounded. One that fails to stop does not keep the others running."""
        failures: list[BaseException] = []
        try:
            for part in self.parts:
                (failure,) = await asyncio.gather(self._servers[part].stop(), return_exceptions=True)
                failures += [failure] if failure is not None else []
        finally:
            self._lock.release()
        if failures:
            raise BaseExceptionGroup("embedded servers did not stop cleanly", failures)

    async def wipe_broker(self) -> None:
        """SIGKILL the broker and bring it back under the same address: no topics, no offsets, no groups."""
        self.broker.kill()
        await self.broker.start()

    def settings(self) -> dict[str, str]:
        """The environment that points our services at the running parts; nothing about parts that were not chosen."""
        return {name: value for part in self.parts for name, value in self._settings_of(part).items()}

    def _settings_of(self, part: Part) -> dict[str, str]:
        match part:
            case Part.POSTGRES:
                return {"ROWCLAIM_DATABASE_URL": self.postgres.url(DATABASE)}
            case Part.BROKER:
                return {
                    "ROWCLAIM_KAFKA_BOOTSTRAP": self.broker.bootstrap,
                    "ROWCLAIM_KAFKA_FETCH_WAIT_MS": str(_KAFKA_FETCH_WAIT_MS),
                    "ROWCLAIM_KAFKA_SESSION_TIMEOUT_MS": str(_KAFKA_SESSION_TIMEOUT_MS),
                    "ROWCLAIM_KAFKA_HEARTBEAT_MS": str(_KAFKA_HEARTBEAT_MS),
                    "ROWCLAIM_KAFKA_IDEMPOTENT": "false",  # the embedded broker knows no idempotent producer
                }
            case Part.VALKEY:
                return {"ROWCLAIM_VALKEY_URL": self.valkey.url}
            case Part.OBJECTS:
                return {
                    "ROWCLAIM_S3_URL": self.objects.url,
                    "ROWCLAIM_S3_ACCESS_KEY": self.objects.access_key,
                    "ROWCLAIM_S3_SECRET_KEY": self.objects.secret_key,
                }
            case Part.MAIL:
                return {"ROWCLAIM_SMTP_URL": self.mail.url}
            case _:
                assert_never(part)

    async def _start(self, part: Part) -> None:
        await self._servers[part].start()
        if part is Part.POSTGRES:
            await self.postgres.create_database(DATABASE)

    def _fresh_logs(self) -> None:
        shutil.rmtree(self._logs, ignore_errors=True)
        self._logs.mkdir()


@asynccontextmanager
async def embedded_stack(
    data_dir: Path, *, parts: Iterable[Part] = Part, postgres_settings: Mapping[str, str] | None = None
) -> AsyncIterator[Stack]:
    """A running stack, stopped at the end of the block whatever happens in it."""
    stack = Stack(data_dir, parts=parts, postgres_settings=postgres_settings)
    await stack.start()
    try:
        yield stack
    finally:
        await stack.stop()


class _DirectoryLock:
    """One stack in a directory at a time; the system releases the lock when its holder dies."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "lock"
        self._file: IO[str] | None = None

    def take(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            file.close()
            raise StartFailed(
                "embedded servers", f"process {holder} works in {self._path.parent}", code="server_already_running"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _first(failed: BaseException) -> BaseException:
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    return failed
