"""A lease in Valkey, for work that one process at a time should do. It saves work; the claim of a row is the guard.

It fails closed: no answer is no lease, and a renewal that was not confirmed is a lease lost. A request that timed out
may still land, so the holder's token is checked first and a lease that landed late is recognised as our own. The fence
grows with every lease granted; a write that presents it can be refused to an earlier holder.
"""

import secrets
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, cast

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from services.kernel.doors import Crossing, Door

log = structlog.get_logger()

ANSWER_S: Final = 1.0

ACQUIRE: Final = """
local holder = redis.call('get', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2])
return redis.call('incr', KEYS[2])"""

RENEW: Final = """
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('pexpire', KEYS[1], ARGV[2])"""

RELEASE: Final = """
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('del', KEYS[1])"""


@dataclass(frozen=True, slots=True)
class Leased:
    """Ours until it runs out. ``fence`` is greater than that of every lease granted before."""

    token: str
    fence: int


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody else's."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """No answer; it may be ours without our knowing. Do not start; a later ``acquire`` finds out."""


def connect_valkey(url: str, *, answer_s: float = ANSWER_S) -> Redis:
    """A client that answers or fails within ``answer_s``: the driver's own retries turn one second into fifteen."""
    return Redis.from_url(
        url, socket_timeout=answer_s, socket_connect_timeout=answer_s, retry=Retry(NoBackoff(), 0), protocol=3
    )


class Lease:
    """One holder's lease of ``name``. A second holder, be it in the same process, makes a ``Lease`` of its own."""

    def __init__(self, valkey: Redis, name: str, lasting: timedelta) -> None:
        self._valkey = valkey
        # One hash tag: both keys live on the same node of a cluster.
        self._keys: Final = (f"{{rowclaim:{name}}}:lease", f"{{rowclaim:{name}}}:fence")
        self._token: Final = secrets.token_hex(16)
        self._lasting_ms: Final = int(lasting.total_seconds() * 1000)

    async def acquire(self) -> Leased | Held | Unavailable:
        """Take the lease, or take it up again if it is ours already. Never raises for the server."""
        fence = await self._run("acquire", ACQUIRE)
        if fence is None:
            return Unavailable()
        return Leased(self._token, fence) if fence else Held()

    async def renew(self) -> bool:
        """Hold on for another full time. False: lost or unconfirmed; start nothing more."""
        return await self._run("renew", RENEW) == 1

    async def release(self) -> bool:
        """Give it up if it is still ours. False: it was not, or nobody answered and it runs out by itself."""
        return await self._run("release", RELEASE) == 1

    async def _run(self, what: str, script: str) -> int | None:
        try:
            with Crossing(Door.VALKEY, f"{what} {self._keys[0]}"):
                answer = self._valkey.eval(script, 2, *self._keys, self._token, self._lasting_ms)
                return int(await cast(Awaitable[int], answer))
        except (RedisError, OSError, TimeoutError) as error:
            log.warning("lease_unavailable", what=what, lease=self._keys[0], error=type(error).__name__)
            return None
