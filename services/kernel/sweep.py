"""A sweep finds what no trigger told: rows whose ring was lost, leases whose holder died, pairs that were never made.

It reports counts and speaks of them only when it found something.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from services.kernel.errors import Retryable
from services.kernel.worker import Backoff, Jitter, first_of, jittered

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Sweep:
    """``run_once`` every ``every_s`` seconds; it returns what it did, by name."""

    name: str
    every_s: float
    run_once: Callable[[], Awaitable[Mapping[str, int]]]


async def run_sweep(sweep: Sweep, stop: asyncio.Event, *, jitter: Jitter = jittered) -> None:
    """Sweep at once and then every ``every_s`` seconds, until ``stop`` is set; the sweep in hand is finished.

    Retryable: again after a backoff, which is never longer than the interval. Every other error ends the run.
    """
    backoff = Backoff(jitter)
    while not stop.is_set():
        try:
            counts = await sweep.run_once()
        except Retryable as error:
            log.warning("sweep_backs_off", sweep=sweep.name, code=error.code.name)
            await first_of(stop, within_s=min(backoff.next(), sweep.every_s))
            continue
        backoff.reset()
        if any(counts.values()):
            log.info("swept", sweep=sweep.name, **counts)
        await first_of(stop, within_s=jitter(sweep.every_s))
