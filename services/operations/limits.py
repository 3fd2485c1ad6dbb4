"""How often one user, or one address, may call in a minute: counted in Valkey for all processes together, and in this
process's memory while Valkey is away.

A Valkey that does not answer costs one request a quarter of a second, and then nobody anything for some seconds: a
limit protects the service, so it must not be what takes it down. Counted in memory, a limit is one a process.
"""

import asyncio
import hashlib
from typing import Any, Final

import structlog
from limits import RateLimitItem, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import FixedWindowRateLimiter
from prometheus_client import Counter
from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.kernel.clock import wall_time
from services.kernel.doors import Crossing, Door
from services.kernel.errors import Refusal
from services.kernel.lease import connect_valkey

log = structlog.get_logger()

REFUSED: Final = Counter("rowclaim_http_rate_limited", "Requests refused for their rate.", ["kind"])
IN_MEMORY: Final = Counter(
    "rowclaim_rate_limit_in_memory", "Requests counted in this process's memory because Valkey was away."
)

ANSWER_S: Final = 0.25
AGAIN_S: Final = 5.0
"""Between two tries of a Valkey that is away."""
KEY_PREFIX: Final = "rowclaim:rate"


class RateLimits:
    """``access.Limits``. ``valkey_url`` None: counted in memory alone."""

    def __init__(self, per_minute: int, valkey_url: str | None) -> None:
        self._allowed = RateLimitItemPerMinute(per_minute)
        self._memory = FixedWindowRateLimiter(MemoryStorage())
        self._valkey = None if valkey_url is None else connect_valkey(valkey_url, answer_s=ANSWER_S)
        self._shared = None if self._valkey is None else _shared(self._valkey)
        self._away = False
        self._ask_at = 0.0

    async def count(self, kind: str, who: str) -> None:
        """One more request of ``who``. Raises Refusal("rate_limited"), which says when to come again."""
        # Hashed: what stands in Valkey names nobody.
        key = f"{kind}:{hashlib.sha256(who.encode()).hexdigest()[:32]}"
        wait_s = await self._wait_s(key)
        if wait_s is not None:
            REFUSED.labels(kind).inc()
            raise Refusal("rate_limited", retry_after_s=wait_s)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._valkey is not None:
            await self._valkey.aclose()

    async def _wait_s(self, key: str) -> float | None:
        """Count one; how long until the next is taken, None: this one is."""
        if self._shared is not None and self._asks():
            try:
                with Crossing(Door.VALKEY, "count a request"):
                    async with asyncio.timeout(ANSWER_S):
                        wait_s = await _counted(self._shared, self._allowed, key)
            except (RedisError, OSError, TimeoutError, ValueError) as error:  # the last: it speaks something else
                self._lost(error)
            else:
                self._found()
                return wait_s
        if self._away:
            IN_MEMORY.inc()
        return await _counted(self._memory, self._allowed, key)

    def _asks(self) -> bool:
        """Whether this request asks Valkey: always while it answers, one every few seconds while it does not."""
        now = asyncio.get_running_loop().time()
        if self._away and now < self._ask_at:
            return False
        self._ask_at = now + AGAIN_S
        return True

    def _lost(self, error: Exception) -> None:
        if not self._away:
            log.warning("rate_limits.in_memory", error=type(error).__name__)
        self._away = True

    def _found(self) -> None:
        if self._away:
            log.info("rate_limits.shared_again")
        self._away = False


def _shared(valkey: Redis) -> FixedWindowRateLimiter:
    # The library passes the pool on as it is, whatever it says of its options' types.
    options: dict[str, Any] = {"connection_pool": valkey.connection_pool}
    storage = RedisStorage("async+redis://", implementation="redispy", key_prefix=KEY_PREFIX, **options)
    return FixedWindowRateLimiter(storage)


async def _counted(limiter: FixedWindowRateLimiter, allowed: RateLimitItem, key: str) -> float | None:
    if await limiter.hit(allowed, key):
        return None
    window = await limiter.get_window_stats(allowed, key)
    return window.reset_time - wall_time()
