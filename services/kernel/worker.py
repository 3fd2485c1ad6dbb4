"""The loop around a slice's step: work while there is work, then wait for a ring or the tick.

A ring says "look again", never what there is: rows tell that. Losing every ring costs one tick of latency and no work,
so the tick, not the ring, is what must be right. A ring that comes while a step runs is kept: that step may have looked
before the row was there.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from services.kernel.errors import Retryable

log = structlog.get_logger()

TICK_S: Final = 1.0
JITTER: Final = 0.2
BACKOFF_MIN_S: Final = 0.2
BACKOFF_MAX_S: Final = 5.0

Step = Callable[[], Awaitable[int]]
Jitter = Callable[[float], float]


def jittered(seconds: float) -> float:
    """``seconds``, up to a fifth less or more: processes started together must not look at the database together."""
    return seconds * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - spreads load, guards nothing


class Backoff:
    """Growing waits between failures in a row: 0.2 s, doubling to 5 s."""

    def __init__(self, jitter: Jitter = jittered) -> None:
        self._jitter = jitter
        self._failures = 0

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        wait_s = min(BACKOFF_MIN_S * 2 ** min(self._failures, 16), BACKOFF_MAX_S)
        self._failures += 1
        return self._jitter(wait_s)

    def reset(self) -> None:
        """The last try succeeded."""
        self._failures = 0


async def first_of(*events: asyncio.Event, within_s: float | None = None) -> None:
    """Wait until one of the events is set, or for ``within_s`` seconds."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


class Worker:
    """One loop of one process. ``step`` claims and works off one unit or batch and returns how many it did.

    More than none: again at once. None: wait for a ring or for ``tick_s`` seconds. ``tick_s`` None: nothing but a ring
    starts a step, the first one included. Retryable: the step runs again after a backoff. Every other error ends the
    run: our own code is at fault, and a process that is started anew is better than one that guesses.
    """

    def __init__(self, name: str, step: Step, *, tick_s: float | None = TICK_S, jitter: Jitter = jittered) -> None:
        self.name: Final = name
        self._step = step
        self._tick_s = tick_s
        self._jitter = jitter
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake the worker, or make it look once more after the step it is in."""
        self._rung.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set. The step in hand is finished, a wait is not."""
        backoff = Backoff(self._jitter)
        if self._tick_s is None:
            await self._until_rung(stop)
        while not stop.is_set():
            # Before the step, not after it: a ring that comes while the step looks must not be forgotten.
            self._rung.clear()
            try:
                done = await self._step()
            except Retryable as error:
                wait_s = backoff.next()
                log.warning("worker_backs_off", worker=self.name, code=error.code.name, wait_s=round(wait_s, 3))
                await first_of(stop, within_s=wait_s)
                continue
            backoff.reset()
            if done == 0:
                await self._until_rung(stop)

    async def _until_rung(self, stop: asyncio.Event) -> None:
        await first_of(self._rung, stop, within_s=None if self._tick_s is None else self._jitter(self._tick_s))
