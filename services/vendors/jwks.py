"""The issuer's published keys (JWKS, RFC 7517): kept, fetched again when a key is new to us, good while it is away.

A token with an unknown key id may come from a rotation, or from anybody: it makes us ask again, once for all who wait
and at most every half minute. Keys that were fetched serve until the next fetch that works, so that an issuer that is
down locks nobody out; and old ones are asked for again behind the requests' backs, so that a withdrawn key goes.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx
import jwt
import structlog
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from services.kernel.errors import Retryable
from services.kernel.gate import Gates, vendor

log = structlog.get_logger()

FETCH_BOUND_S: Final = 3.0
ANEW_S: Final = 30.0
"""Between two fetches for unknown key ids."""
FIRST_ANEW_S: Final = 5.0
"""Between two tries while there are no keys at all."""
FRESH_S: Final = 600.0
BODY_BYTES_MAX: Final = 256 * 1024
KEY_BITS_MIN: Final = 2048


class Jwks:
    """The keys of one issuer (``operations.tokens.Keys``). ``clock`` gives seconds that only grow."""

    def __init__(
        self, client: httpx.AsyncClient, gates: Gates, url: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.gates = gates
        self._client = client
        self._url = url
        self._clock = clock
        self._keys: Mapping[str, RSAPublicKey] = {}
        self._tried_at = -FRESH_S
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, kid: str) -> RSAPublicKey | None:
        """The key of this id; None: the issuer has none. Raises Retryable("keys_unavailable") when we never had any."""
        key = self._keys.get(kid)
        if key is not None:
            self._fetch_if_older(FRESH_S)
            return key
        self._fetch_if_older(ANEW_S if self._keys else FIRST_ANEW_S)
        if self._fetching is not None:
            # Shielded: who hangs up must not take the answer from those who wait for it too.
            await asyncio.shield(self._fetching)
        if not self._keys:
            raise Retryable("keys_unavailable")
        return self._keys.get(kid)

    async def aclose(self) -> None:
        """End a fetch that is under way."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait({self._fetching})

    def _fetch_if_older(self, age_s: float) -> None:
        if self._fetching is None and self._clock() - self._tried_at >= age_s:
            self._tried_at = self._clock()
            self._fetching = asyncio.create_task(self._fetch())

    async def _fetch(self) -> None:
        """Replace the keys, or keep those there are. Raises nothing: nobody may be waiting."""
        try:
            keys = usable(await self.get_keys())
        except (httpx.HTTPError, RecursionError, Retryable, TimeoutError, ValueError) as error:
            log.warning("jwks.not_fetched", error=type(error).__name__, kept=len(self._keys))
            return
        finally:
            self._fetching = None
        if keys:
            self._keys = keys
        else:
            log.warning("jwks.no_usable_key", kept=len(self._keys))

    @vendor("jwks", bound_s=FETCH_BOUND_S)
    async def get_keys(self) -> object:
        """The document. Raises httpx.HTTPError, ValueError for one that is none."""
        # Not compressed: a small answer must not be able to become a large one.
        answer = await self._client.get(self._url, headers={"accept-encoding": "identity"})
        if answer.status_code != httpx.codes.OK:
            raise ValueError(f"status {answer.status_code}")
        return json.loads(answer.content)


def usable(document: object) -> dict[str, RSAPublicKey]:
    """The RSA signing keys of a document, by id; of what is something else, or broken, none is taken."""
    listed = document.get("keys") if isinstance(document, dict) else None
    keys: dict[str, RSAPublicKey] = {}
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and isinstance(kid := one.get("kid"), str) and (key := _signing_key(one)) is not None:
            keys.setdefault(kid, key)
    return keys


def _signing_key(one: dict[str, Any]) -> RSAPublicKey | None:
    if one.get("kty") != "RSA" or one.get("use", "sig") != "sig" or one.get("alg", "RS256") != "RS256":
        return None
    try:
        key = jwt.PyJWK(one, algorithm="RS256").key
    except (jwt.PyJWTError, TypeError, ValueError):
        return None
    return key if isinstance(key, RSAPublicKey) and key.key_size >= KEY_BITS_MIN else None
