"""One row a vendor: closed until when, how fast, how often refused in a row; and the door every call goes through.

A refusal concerns the vendor, not the row that met it: the gate closes for every flush of every process, and the
database's clock opens it. The pace is kept by reserving starts, never by a lock: whoever reserves is told when its turn
is, and waits for it before it claims anything. What is owed is not told here; business rows tell that alone.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Concatenate, Final, LiteralString, ParamSpec, Protocol, TypeVar

from prometheus_client import Counter, Histogram

from services.kernel.db import Tx, in_transaction
from services.kernel.errors import Invariant, Retryable

CALLS = Counter("rowclaim_vendor_calls", "Calls to vendors, by how they ended.", ["vendor", "call", "result"])
SECONDS = Histogram("rowclaim_vendor_call_seconds", "How long calls to vendors took.", ["vendor", "call"])

CLOSED_MIN: Final = timedelta(seconds=1)
REFUSAL_FLOOR: Final = timedelta(seconds=60)
REFUSAL_CAP: Final = timedelta(hours=1)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Go:
    """The caller's slot has come."""


@dataclass(frozen=True, slots=True)
class Closed:
    """No call before ``until`` (by the database's clock)."""

    until: datetime


# The seconds until the reserved start. Zero rows: the gate is closed, or the turn would come later than $3: whoever
# will not wait for it must not take it either, or turns nobody uses pile up before the others. By the clock: it may
# have waited for another's.
RESERVE: Final[LiteralString] = """
insert into vendor_gates as g (vendor, next_start_at) values ($1, rowclaim_clock() + $2::interval)
on conflict (vendor) do update set next_start_at = greatest(g.next_start_at, rowclaim_clock()) + $2::interval
where (g.closed_until is null or g.closed_until <= rowclaim_now())
  and ($3::interval is null or g.next_start_at <= rowclaim_now() + $3::interval)
returning greatest(extract(epoch from next_start_at - $2::interval - rowclaim_clock()), 0)::float8 as wait_s"""

CLOSED_UNTIL: Final[LiteralString] = """
select closed_until from vendor_gates where vendor = $1 and closed_until > rowclaim_now()"""

# A gate is only ever closed for longer: a short refusal must not open what a person or a longer one closed.
CLOSE: Final[LiteralString] = """
insert into vendor_gates as g (vendor, closed_until, reason, closed_by, closed_at)
values ($1, rowclaim_clock() + $2::interval, $3, $4, rowclaim_clock())
on conflict (vendor) do update set
  closed_until = excluded.closed_until, reason = excluded.reason,
  closed_by = excluded.closed_by, closed_at = excluded.closed_at
where g.closed_until is null or g.closed_until < excluded.closed_until"""

# A refusal that names no instant: a minute, doubling with every further one in a row, an hour at most.
REFUSE: Final[LiteralString] = """
insert into vendor_gates as g (vendor, closed_until, reason, closed_by, closed_at, refusals)
values ($1, rowclaim_clock() + $2::interval, $4, $5, rowclaim_clock(), 1)
on conflict (vendor) do update set
  refusals = g.refusals + 1, reason = excluded.reason, closed_by = excluded.closed_by, closed_at = excluded.closed_at,
  closed_until = greatest(g.closed_until,
                          rowclaim_clock() + least($2::interval * power(2, least(g.refusals, 16)), $3::interval))"""

SUCCEED: Final[LiteralString] = """
update vendor_gates set refusals = 0 where vendor = $1 and refusals > 0"""


class Gates:
    """The vendors' gates as one slice of this process uses them. ``pace_s``: least seconds between two starts."""

    def __init__(self, tx: Tx, *, pace_s: Mapping[str, float] | None = None) -> None:
        self._tx = tx
        self._pace = {vendor: timedelta(seconds=pace) for vendor, pace in (pace_s or {}).items()}
        self._busy_until: dict[str, float] = {}

    async def reserve(self, vendor: str) -> Go | Closed:
        """Reserve the next start, wait for it, and look at the gate again: it may have closed meanwhile.

        On Go the first call this task makes through ``@vendor`` uses the slot. Called before a claim, so that nothing
        is held while waiting.
        """
        entered = await self._enter(vendor, None)
        if isinstance(entered, Go):
            _reserved.set(vendor)
        return entered

    async def _enter(self, vendor: str, patience: timedelta | None) -> Go | Closed:
        pace, wait_s = self._pace.get(vendor, timedelta()), None
        if pace:
            wait_s = await self._tx.value(RESERVE, vendor, pace, patience)
            await asyncio.sleep(wait_s or 0)
        until = await self.closed_until(vendor)
        if until is None and pace and wait_s is None and patience is not None:
            raise Retryable("vendor_busy", vendor)
        return Go() if until is None else Closed(until)

    async def closed_until(self, vendor: str) -> datetime | None:
        """When a closed gate opens; None: it is open."""
        until: datetime | None = await self._tx.value(CLOSED_UNTIL, vendor)
        return until

    async def close(self, vendor: str, wait: timedelta, reason: str, by: str) -> None:
        """Close for ``wait`` (a second at least); a gate closed for longer stays as it is."""
        await self._tx.execute(CLOSE, vendor, max(wait, CLOSED_MIN), reason, by)

    async def refuse(self, vendor: str, reason: str, by: str, *, floor: timedelta = REFUSAL_FLOOR) -> None:
        """Close after a refusal that named no instant: ``floor``, doubling with every one in a row, an hour at most."""
        await self._tx.execute(REFUSE, vendor, floor, max(floor, REFUSAL_CAP), reason, by)

    async def succeed(self, vendor: str) -> None:
        """The vendor took a call: refusals in a row begin anew."""
        await self._tx.execute(SUCCEED, vendor)

    async def admit(self, vendor: str, patience: timedelta | None = None) -> None:
        """Wait for this task's next slot; raises Retryable("gate_closed"), or ("vendor_busy") rather than wait longer
        than ``patience``."""
        if _reserved.get() == vendor:
            _reserved.set(None)
        else:
            entered = await self._enter(vendor, patience)
            if isinstance(entered, Closed):
                raise Retryable("gate_closed", f"{vendor} until {entered.until.isoformat()}")
        await self._space(vendor)

    async def _space(self, vendor: str) -> None:
        """Let the pace pass since this process's last call ended, too: a slot says when a caller may begin, and what
        comes between slot and call (a claim, a loaded machine, the way there) would bring the next caller nearer."""
        pace_s = self._pace.get(vendor, timedelta()).total_seconds()
        now = asyncio.get_running_loop().time()
        start_at = max(now, self._busy_until.get(vendor, now - pace_s) + pace_s)
        self._busy_until[vendor] = start_at
        if start_at > now:
            await asyncio.sleep(start_at - now)

    def ended(self, vendor: str) -> None:
        """A call of this process's is over."""
        self._busy_until[vendor] = max(self._busy_until[vendor], asyncio.get_running_loop().time())


_reserved: ContextVar[str | None] = ContextVar("reserved_slot", default=None)


class Gated(Protocol):
    """A gateway whose calls go through a gate."""

    @property
    def gates(self) -> Gates: ...


G = TypeVar("G", bound=Gated)
Call = Callable[Concatenate[G, P], Coroutine[Any, Any, T]]


VENDORS: Final[set[str]] = set()
"""Every vendor that some code of this process calls."""


def vendor(name: str, *, bound_s: float, patience_s: float | None = None) -> Callable[[Call[G, P, T]], Call[G, P, T]]:
    """The door of every vendor call: a method of a gateway that has ``gates``.

    Refuses inside a transaction (a lock held across a vendor's pause is an outage of ours), waits for the pace and
    refuses at a closed gate, ends the call after ``bound_s`` seconds with TimeoutError, counts and times it.
    ``patience_s``: a caller who has somebody waiting is refused rather than made to wait longer for the pace.
    """
    VENDORS.add(name)
    patience = None if patience_s is None else timedelta(seconds=patience_s)

    def through(call: Call[G, P, T]) -> Call[G, P, T]:
        @functools.wraps(call)
        async def gated(self: G, /, *args: P.args, **kwargs: P.kwargs) -> T:
            if in_transaction():
                raise Invariant("vendor_call_in_transaction", f"{name}.{call.__name__}")
            await self.gates.admit(name, patience)
            result = "failed"
            try:
                with SECONDS.labels(name, call.__name__).time():
                    async with asyncio.timeout(bound_s):
                        answer = await call(self, *args, **kwargs)
                result = "answered"
                return answer
            except TimeoutError:
                result = "timed_out"
                raise
            finally:
                self.gates.ended(name)
                CALLS.labels(name, call.__name__, result).inc()

        return gated

    return through
