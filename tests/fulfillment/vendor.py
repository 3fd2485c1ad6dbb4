"""A vendor that says what a test wrote down for it. It knows no product: `product.py` finds the wire format."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum

from services.fulfillment.machine import HandleAnswer, HandleKnown


class Says(StrEnum):
    """What the vendor answers to one delivery."""

    YES = "yes"
    HAD_IT = "had_it"
    """Delivered, and had been before."""
    NO = "no"
    """This buyer cannot be served; the vendor says why."""
    NO_BECAUSE = "no_because"
    """Refused, for a reason nobody knows."""
    TROUBLE = "trouble"
    """It is down."""
    WAIT = "wait"
    """Too fast; come back in half a minute."""
    YOUR_FAULT = "your_fault"
    """Our key is no good."""
    NOTHING = "nothing"
    """It takes the request and never answers."""
    CUT_OFF = "cut_off"
    """It delivers, and the answer is lost."""


@dataclass(slots=True)
class Vendor:
    """Answers each handle's deliveries from its script, oldest line first; without one, yes."""

    calls: list[str] = field(default_factory=list)
    """Whom a delivery was asked for, in order."""
    questions: list[str] = field(default_factory=list)
    """Look-ups, which deliver nothing."""
    delivered: list[str] = field(default_factory=list)
    """To whom something was handed out; twice for a repetition."""
    accounts: dict[str, int] = field(default_factory=dict)
    """Who exists, with their ids, should the product ask; nobody else does."""
    accepted: set[str] = field(default_factory=set)
    """Who took up what they were handed."""
    ran_out: set[str] = field(default_factory=set)
    """Who did not, and cannot any more."""
    removed: list[str] = field(default_factory=list)
    """What was taken back, by its id."""
    mute: bool = False
    """It answers no question."""
    started_at: list[float] = field(default_factory=list)
    in_flight_max: int = 0
    before: Callable[[str], Awaitable[None]] | None = None
    """Run while a delivery is in flight, before its answer."""
    checks: dict[str, HandleAnswer] = field(default_factory=dict)
    """What a check of a handle is told; one that is not listed is somebody's."""
    checked: list[str] = field(default_factory=list)
    before_check: Callable[[str], Awaitable[None]] | None = None
    _script: dict[str, deque[Says]] = field(default_factory=lambda: defaultdict(deque))
    _in_flight: int = 0

    def say(self, handle: str, *answers: Says) -> None:
        """Write down the next answers for a handle."""
        self._script[handle].extend(answers)

    def take_back(self, handle: str) -> None:
        """Strike what was written down and not yet said."""
        self._script[handle].clear()

    async def check(self, handle: str) -> HandleAnswer:
        """Whether anybody has a handle."""
        self.checked.append(handle)
        if self.before_check is not None:
            await self.before_check(handle)
        return self.checks.get(handle, HandleKnown(handle))

    def hold_first(self) -> asyncio.Event:
        """The next delivery stays in its call until this event is set; those after it do not."""
        resume, first = asyncio.Event(), len(self.calls) + 1

        async def before(_: str) -> None:
            if len(self.calls) == first:
                await resume.wait()

        self.before = before
        return resume

    async def asked(self, handle: str) -> Says:
        """A delivery arrives. NOTHING never returns."""
        self.calls.append(handle)
        self.started_at.append(asyncio.get_running_loop().time())
        self._in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self._in_flight)
        try:
            if self.before is not None:
                await self.before(handle)
            await asyncio.sleep(0)
            says = self._script[handle].popleft() if self._script[handle] else Says.YES
            if says is Says.NOTHING:
                await asyncio.Event().wait()
            if says in (Says.YES, Says.CUT_OFF):
                self.delivered.append(handle)
            return says
        finally:
            self._in_flight -= 1
