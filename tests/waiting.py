"""Waiting for a fact with a bound, instead of sleeping and hoping."""

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, overload

T = TypeVar("T")

_POLL_S = 0.01


@overload
async def wait_until(probe: Callable[[], Coroutine[Any, Any, T]], *, within_s: float, what: str) -> T: ...
@overload
async def wait_until(probe: Callable[[], T], *, within_s: float, what: str) -> T: ...
async def wait_until(probe: Callable[[], Any], *, within_s: float, what: str) -> Any:
    """Call `probe` (plain or async) until its result is truthy, and return that result.

    Raises AssertionError naming `what` and the last result when `within_s` seconds are over; the probe is called at
    least once, and what it raises passes through.
    """
    deadline = time.monotonic() + within_s
    value = None
    while True:
        result = probe()
        if inspect.isawaitable(result):
            try:
                async with asyncio.timeout(max(deadline - time.monotonic(), _POLL_S)):
                    value = await result
            except TimeoutError:
                value = None
        else:
            value = result
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {what} (last seen: {value!r})")
        await asyncio.sleep(_POLL_S)
