"""One attempt at an effect: a bounded call, then an outcome write that cannot be cut off.

The order is the guarantee. A claim has been committed; the call is made outside any transaction and under its bound; a
timeout is an outcome of its own kind, because it says nothing about what the vendor did; the outcome is written by CAS
with the claim's token. Losing that CAS is a normal return: somebody else settled the row, and this worker mails nobody,
moves no money and stops.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import structlog

from services.kernel.errors import Retryable
from services.kernel.worker import Backoff

log = structlog.get_logger()

OutcomeT = TypeVar("OutcomeT")
T = TypeVar("T")

SETTLE_S: Final = 10.0
"""How long an outcome is tried to be written: the margin that a graceful stop leaves after an attempt's bound."""


@dataclass(frozen=True, slots=True)
class Attempt(Generic[OutcomeT]):
    """How one attempt ended. ``held`` False: the row had been taken over, and nothing was written."""

    outcome: OutcomeT
    held: bool


async def attempt(
    call: Callable[[], Awaitable[OutcomeT]],
    write: Callable[[OutcomeT], Coroutine[Any, Any, bool]],
    *,
    bound_s: float,
    timed_out: Callable[[], OutcomeT],
) -> Attempt[OutcomeT]:
    """Call once, within ``bound_s`` seconds, and write the outcome. ``write`` returns whether the claim was still held.

    ``call`` turns every answer and every failure of its vendor into an outcome; only the bound is judged here.
    """
    try:
        async with asyncio.timeout(bound_s):
            outcome = await call()
    except TimeoutError:
        outcome = timed_out()
    return Attempt(outcome, held=await settled(lambda: write(outcome)))


async def settled(write: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """``uncut``, and again for ten seconds while the database is away or busy: only this process knows the outcome.

    ``write`` is a CAS. One that was carried out and whose answer was lost changes nothing the next time, and then looks
    as if the claim had been lost. Raises Retryable when the time is over.
    """

    async def again_and_again() -> T:
        now, backoff = asyncio.get_running_loop().time, Backoff()
        give_up_at = now() + SETTLE_S
        while True:
            try:
                return await write()
            except Retryable as error:
                wait_s = backoff.next()
                if now() + wait_s > give_up_at:
                    raise
                log.warning("outcome_not_written", code=error.code.name, wait_s=round(wait_s, 3))
                await asyncio.sleep(wait_s)

    return await uncut(again_and_again())


async def uncut(work: Coroutine[Any, Any, T]) -> T:
    """Finish ``work`` even if the caller is cancelled meanwhile; the cancellation then goes on.

    Guards the orderly stop: a vendor that has acted and a row that does not know it is what an operator must repair.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # A second cancellation (a bound around a stop, a stop around a stop) must not cut it off either.
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        raise
