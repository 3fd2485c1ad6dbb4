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
from typing import Any, Generic, TypeVar

OutcomeT = TypeVar("OutcomeT")
T = TypeVar("T")


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
    return Attempt(outcome, held=await uncut(write(outcome)))


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
