"""PostgreSQL behind four verbs, so that every statement is literal text and every row a frozen value.

``Tx`` is what a store function takes. Two things satisfy it: a ``Database`` (each statement its own autocommit
transaction: the form of every claim) and the object ``Database.transaction()`` yields (one commit for all).
Vendor calls are refused while a transaction is open in the same task: ``in_transaction()`` is how they know.
"""

import asyncio
import typing
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import fields
from enum import Enum
from functools import cache
from typing import Any, Final, LiteralString, Protocol, Self, TypeVar, cast

import asyncpg

from services.kernel.doors import Crossing, Door
from services.kernel.errors import Invariant, Retryable, ServiceError

R = TypeVar("R")

POOL_SIZE_MAX = 16
ACQUIRE_S = 5.0
# Above every role's statement_timeout (5 s): the server's own refusal comes first, this one speaks when it is gone.
COMMAND_S = 15.0

# What a lost or unready server raises. A statement that ended so may or may not have been committed.
UNREACHABLE: tuple[type[BaseException], ...] = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InternalClientError,
)

# What a server says that is there and cannot do it now: a lock not granted in time, a deadlock, a statement's time
# over, a full disk, a standby that was just promoted elsewhere. Nothing was written.
BUSY: tuple[type[BaseException], ...] = (
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.QueryCanceledError,
    asyncpg.InsufficientResourcesError,
    asyncpg.ReadOnlySQLTransactionError,
)

_open_transaction: ContextVar[bool] = ContextVar("open_transaction", default=False)


def in_transaction() -> bool:
    """Whether this task (or the one that spawned it) stands inside ``Database.transaction()``."""
    return _open_transaction.get()


class Tx(Protocol):
    """What can run statements: the database in autocommit, or one transaction.

    ``row`` and ``rows`` build ``shape`` (a frozen dataclass whose fields are the statement's columns, in order);
    ``execute`` returns how many rows the statement changed. All raise ``Retryable("database_unavailable")`` when the
    server is lost, ``Retryable("database_busy")`` when it cannot do it now (a lock, a deadlock, a full disk), and
    ``Invariant("edge_refused" | "fence_refused")`` when the guard refuses a write.
    """

    async def row(self, shape: type[R], query: LiteralString, *args: object) -> R | None: ...
    async def rows(self, shape: type[R], query: LiteralString, *args: object) -> list[R]: ...
    async def value(self, query: LiteralString, *args: object) -> Any: ...
    async def execute(self, query: LiteralString, *args: object) -> int: ...


@cache
def _reader(shape: Callable[..., R]) -> tuple[tuple[str, ...], Callable[[asyncpg.Record], R]]:
    """The columns a shape expects, and how a record becomes one: positional, enums revived from their text."""
    hints = typing.get_type_hints(shape)
    names = tuple(field.name for field in fields(cast(Any, shape)))
    revive: list[tuple[int, type[Enum]]] = []
    for position, name in enumerate(names):
        kinds = [kind for kind in (hints[name], *typing.get_args(hints[name])) if isinstance(kind, type)]
        revive += [(position, kind) for kind in kinds if issubclass(kind, Enum)]

    def read(record: asyncpg.Record) -> R:
        values = list(record)
        for position, kind in revive:
            if values[position] is not None:
                values[position] = kind(values[position])
        return shape(*values)

    return names, read


def _shaped(shape: type[R], records: list[asyncpg.Record]) -> list[R]:
    if not records:
        return []
    names, read = _reader(cast(Any, shape))
    if tuple(records[0].keys()) != names:
        raise Invariant(
            "row_shape", f"{shape.__name__} expects {names}, the statement returns {tuple(records[0].keys())}"
        )
    return [read(record) for record in records]


def _changed(status: str) -> int:
    """Rows changed, out of a command tag: ``UPDATE 3``, ``INSERT 0 1``; 0 for a command that counts none."""
    last = status.rsplit(" ", 1)[-1]
    return int(last) if last.isdigit() else 0


def translated(error: BaseException) -> ServiceError | None:
    """The error of ours that a driver's error means, or None when it is the statement's own (a constraint, a type)."""
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate == "RC001":
        return Invariant("edge_refused", str(error))
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate == "RC002":
        return Invariant("fence_refused", str(error))
    if isinstance(error, UNREACHABLE):
        return Retryable("database_unavailable", type(error).__name__)
    if isinstance(error, BUSY):
        return Retryable("database_busy", type(error).__name__)
    return None


@contextmanager
def _translating() -> Iterator[None]:
    """Around what the driver alone does; never around a caller's own code, whose time-outs are not the database's."""
    try:
        yield
    except Exception as error:
        if isinstance(error, asyncpg.PostgresError):
            error.detail = None  # it quotes the row, and people stand in rows: no log may have it
        ours = translated(error)
        if ours is None:
            raise
        raise ours from error


class _Statements(ABC):
    """The four verbs over one connection at a time."""

    @abstractmethod
    def _connection(self) -> AbstractAsyncContextManager[Any]: ...

    @asynccontextmanager
    async def _exchange(self, query: str) -> AsyncIterator[Any]:
        """One crossing of the database's door, the driver's errors translated."""
        with _translating():
            async with self._connection() as connection:
                with Crossing(Door.DATABASE, query):
                    yield connection

    async def row(self, shape: type[R], query: LiteralString, *args: object) -> R | None:
        async with self._exchange(query) as connection:
            record = await connection.fetchrow(query, *args)
        return None if record is None else _shaped(shape, [record])[0]

    async def rows(self, shape: type[R], query: LiteralString, *args: object) -> list[R]:
        async with self._exchange(query) as connection:
            records = await connection.fetch(query, *args)
        return _shaped(shape, records)

    async def value(self, query: LiteralString, *args: object) -> Any:
        async with self._exchange(query) as connection:
            return await connection.fetchval(query, *args)

    async def execute(self, query: LiteralString, *args: object) -> int:
        async with self._exchange(query) as connection:
            return _changed(await connection.execute(query, *args))


class Transaction(_Statements):
    """The statements of one commit. Made by ``Database.transaction()`` only."""

    def __init__(self, connection: Any) -> None:
        self._held = connection

    def _connection(self) -> AbstractAsyncContextManager[Any]:
        return nullcontext(self._held)


FIND_ROLE: Final[LiteralString] = "select current_user::text"


class Database(_Statements):
    """One login role's pool. Bounded everywhere: acquiring, connecting and every command."""

    def __init__(self, pool: Any, role: str) -> None:
        self._pool = pool
        self.role = role

    @classmethod
    async def connect(cls, url: str, *, application: str = "rowclaim", size_max: int = POOL_SIZE_MAX) -> Self:
        """Open a pool for ``url`` (its user is the login role). Raises Retryable("database_unavailable")."""
        try:
            with Crossing(Door.DATABASE, "connect"):
                pool = await asyncpg.create_pool(
                    url,
                    min_size=1,
                    max_size=size_max,
                    command_timeout=COMMAND_S,
                    timeout=ACQUIRE_S,
                    server_settings={"application_name": application},
                )
                role = await pool.fetchval(FIND_ROLE)
        except UNREACHABLE as error:
            raise Retryable("database_unavailable", type(error).__name__) from error
        return cls(pool, role)

    async def close(self) -> None:
        """Give every connection back; one still busy after five seconds is cut."""
        try:
            async with asyncio.timeout(ACQUIRE_S):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        with _translating():
            connection = await self._pool.acquire(timeout=ACQUIRE_S)
        try:
            yield connection
        finally:
            # What was done stays done: a connection that dies on its way back to the pool changes nothing. Told as a
            # failure, it would leave a claim that was answered without anybody who knows of it.
            with suppress(*UNREACHABLE):
                await self._pool.release(connection)

    @asynccontextmanager
    async def transaction(self, *, snapshot: bool = False) -> AsyncIterator[Transaction]:
        """One commit for all statements inside. ``snapshot``: REPEATABLE READ READ ONLY, for reads that must agree.

        An error of the COMMIT itself leaves the outcome unknown (Retryable): read before writing again.
        """
        async with self._connection() as connection:
            block = connection.transaction(isolation="repeatable_read" if snapshot else None, readonly=snapshot)
            with _translating(), Crossing(Door.DATABASE, "begin"):
                await block.start()
            mark = _open_transaction.set(True)
            try:
                yield Transaction(connection)
            except BaseException:
                # A dead connection cannot roll back; the server does it, and the first error is the one to tell.
                # Nor may it go back to the pool: the driver can take a while to see that it is dead.
                try:
                    await block.rollback()
                except UNREACHABLE:
                    with suppress(*UNREACHABLE):
                        connection.terminate()
                raise
            finally:
                _open_transaction.reset(mark)
            with _translating(), Crossing(Door.DATABASE, "commit"):
                await block.commit()
