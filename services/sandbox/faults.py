"""Scripted trouble: what a vendor does wrong, to whom, when, and how often.

A fault is data, so the same object is built by a test in this process and sent by a client over the wire. Whether
the vendor's effect happened before the trouble is the question that matters most, so it is never implied: ``at``
says it.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from itertools import count
from typing import assert_never
from urllib.parse import unquote

from services.sandbox.clock import SandboxClock, http_date
from services.sandbox.http import Answer, Call, Cut, Dropped, Outcome
from services.sandbox.log import Vendor


class Act(StrEnum):
    """What is done to the caller."""

    ANSWER = "answer"
    """Answer ``reply`` instead of the truth."""
    CUT = "cut"
    """Send the status line and half of the true body, then close."""
    DROP = "drop"
    """Close the connection without a byte."""
    HANG = "hang"
    """Say nothing until the caller leaves or the fault is cleared."""
    LATE = "late"
    """Answer the truth; only ``delay_ms`` is the trouble."""


class Moment(StrEnum):
    """On which side of the vendor's effect the trouble lies."""

    BEFORE = "before"
    """The effect does not happen."""
    AFTER = "after"
    """The effect happens; the caller may never hear of it."""


class InstantStyle(StrEnum):
    """How a header writes an instant."""

    HTTP_DATE = "http_date"
    EPOCH_S = "epoch_s"


@dataclass(frozen=True, slots=True)
class Instant:
    """A header value computed when the answer is given: the vendor's now plus ``in_s`` seconds."""

    style: InstantStyle
    in_s: float

    def text(self, clock: SandboxClock) -> str:
        """The header value."""
        instant = clock.now() + timedelta(seconds=self.in_s)
        match self.style:
            case InstantStyle.HTTP_DATE:
                return http_date(instant)
            case InstantStyle.EPOCH_S:
                return str(int(instant.timestamp()))
            case _:
                assert_never(self.style)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is not the truth. A part left None is taken from the true answer, when there is one."""

    status: int | None = None
    headers: Mapping[str, str | Instant] = field(default_factory=dict)
    body: str | None = None
    saved: bool = True
    """Stripe: whether a reply with a 4xx business status or a 5xx is kept under the idempotency key."""

    def over(self, truth: Answer | None, clock: SandboxClock) -> Answer:
        """This reply laid over the truth; 500 and an empty body where neither says anything."""
        headers = dict(truth.headers) if truth else {}
        headers |= {
            name.lower(): value.text(clock) if isinstance(value, Instant) else value
            for name, value in self.headers.items()
        }
        status = self.status if self.status is not None else truth.status if truth else 500
        body = self.body.encode() if self.body is not None else truth.body if truth else b""
        return Answer(status, body, headers)


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of the script. Every given condition must hold; lines are tried in the order they were added."""

    vendor: Vendor
    act: Act
    at: Moment = Moment.BEFORE
    reply: Reply = field(default_factory=Reply)
    method: str | None = None
    path: str | None = None
    """A regular expression searched in the decoded path, vendor's mount point removed."""
    login: str | None = None
    """A path segment equal to this, letter case ignored."""
    contains: str | None = None
    """Text that occurs in the decoded path, the query or the body."""
    delay_ms: int = 0
    """Waited before anything else, the effect included."""
    skip: int = 0
    """Let this many matching requests through first."""
    times: int | None = 1
    """How many requests it is played to; None until cleared."""

    def matches(self, call: Call) -> bool:
        """Whether this line is meant for the call."""
        if self.method is not None and call.method != self.method.upper():
            return False
        if self.path is not None and re.search(self.path, unquote(call.path)) is None:
            return False
        if self.login is not None and self.login.lower() not in (segment.lower() for segment in call.segments):
            return False
        if self.contains is not None:
            haystack = f"{unquote(call.path)}\n{unquote(call.query)}\n{unquote(call.body.decode(errors='replace'))}"
            return self.contains in haystack
        return True


@dataclass(frozen=True, slots=True)
class ScriptedFault:
    """A fault in the script, with how often it was played."""

    id: str
    fault: Fault
    fired: int


@dataclass(slots=True)
class Armed:
    """A fault in the script, as the script keeps it."""

    id: str
    fault: Fault
    seen: int = 0
    fired: int = 0
    cleared: asyncio.Event = field(default_factory=asyncio.Event)


class FaultScript:
    """Both vendors' faults, in the order they were added."""

    def __init__(self) -> None:
        self._armed: dict[str, Armed] = {}
        self._numbers = count(1)

    def add(self, fault: Fault) -> str:
        """Arm a fault; its id clears it and names it in the request log."""
        fault_id = f"fault-{next(self._numbers)}"
        self._armed[fault_id] = Armed(fault_id, fault)
        return fault_id

    def take(self, vendor: Vendor, call: Call, fits: Callable[[Fault], bool] = lambda _: True) -> Armed | None:
        """The fault to play to this call, counted as played; None for a good day."""
        for armed in self._armed.values():
            fault = armed.fault
            if fault.vendor is not vendor or not fits(fault) or not fault.matches(call):
                continue
            if fault.times is not None and armed.fired >= fault.times:
                continue
            armed.seen += 1
            if armed.seen <= fault.skip:
                continue
            armed.fired += 1
            call.entry.fault = armed.id
            return armed
        return None

    def clear(self, fault_id: str | None = None) -> int:
        """Take one fault, or all, out of the script and let go of the requests hanging in it; how many were there."""
        gone = [fault_id] if fault_id is not None else list(self._armed)
        cleared = [self._armed.pop(name) for name in gone if name in self._armed]
        for armed in cleared:
            armed.cleared.set()
        return len(cleared)

    def listing(self) -> list[ScriptedFault]:
        """The script as it stands."""
        return [ScriptedFault(armed.id, armed.fault, armed.fired) for armed in self._armed.values()]


async def trouble(armed: Armed, truth: Answer | None, call: Call, clock: SandboxClock) -> Outcome:
    """What the caller gets; ``truth`` is the true answer when the effect happened, else None."""
    match armed.fault.act:
        case Act.ANSWER:
            return armed.fault.reply.over(truth, clock)
        case Act.DROP:
            return Dropped()
        case Act.HANG:
            await call.until_left(armed.cleared)
            return Dropped()
        case Act.CUT:
            return Cut(truth or armed.fault.reply.over(None, clock))
        case Act.LATE:
            return truth or armed.fault.reply.over(None, clock)
        case _:
            assert_never(armed.fault.act)


def performs(fault: Fault) -> bool:
    """Whether the vendor's effect happens under this fault."""
    return fault.at is Moment.AFTER or fault.act in (Act.LATE, Act.CUT)
