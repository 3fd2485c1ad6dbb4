"""Whose token it is: one algorithm, one issuer, keys by their id, instants by our clock. Everything else is refused.

What a token says of itself chooses nothing here: its header's algorithm is only compared with the one that is taken, so
that neither ``none`` nor a public key used as a shared secret gets anywhere.
"""

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final, Protocol

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from services.kernel.auth import Caller
from services.kernel.clock import wall_time
from services.kernel.errors import Refusal

ALGORITHM: Final = "RS256"
LEEWAY_S: Final = 5.0
"""How far the issuer's clock and ours may be apart."""
TOKEN_CHARACTERS_MAX: Final = 8192
SUBJECT_CHARACTERS_MAX: Final = 200
# The signature is PyJWT's to judge; the claims are judged here, by our clock and with a code for each.
SIGNATURES: Final = jwt.PyJWS(algorithms=[ALGORITHM])


class Keys(Protocol):
    """The issuer's public keys."""

    async def find(self, kid: str) -> RSAPublicKey | None:
        """The key of this id; None: there is none. Raises Retryable("keys_unavailable")."""
        ...


class Tokens:
    """Reads ``authorization: Bearer`` headers (``access.Callers``)."""

    def __init__(self, keys: Keys, *, issuer: str, parties: Sequence[str], role_claim: str) -> None:
        self._keys = keys
        self._issuer = issuer
        self._parties = tuple(parties)
        self._role_claim = role_claim.split(".")

    async def caller_of(self, authorization: Sequence[str]) -> Caller:
        """Raises Refusal (401) with the first fault found, Retryable("keys_unavailable")."""
        token = _bearer(authorization)
        kid = _key_id(token)
        key = await self._keys.find(kid)
        if key is None:
            raise Refusal("token_key_unknown")
        claims = _verified(token, key)
        if claims.get("iss") != self._issuer:
            raise Refusal("token_issuer")
        _judge_instants(claims)
        if self._parties and claims.get("azp") not in self._parties:
            raise Refusal("token_party")
        return Caller(_subject(claims), self._role(claims))

    def _role(self, claims: Mapping[str, Any]) -> str | None:
        found: Any = claims
        for name in self._role_claim:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found if isinstance(found, str) else None


def _bearer(authorization: Sequence[str]) -> str:
    if not authorization:
        raise Refusal("token_missing")
    scheme, _, token = authorization[0].partition(" ")
    if scheme.lower() != "bearer":
        raise Refusal("token_missing")
    if len(authorization) > 1 or len(token) > TOKEN_CHARACTERS_MAX:
        raise Refusal("token_malformed")
    return token.strip()


def _key_id(token: str) -> str:
    try:
        header = jwt.get_unverified_header(token)
    except jwt.InvalidTokenError:
        raise Refusal("token_malformed") from None
    if header.get("alg") != ALGORITHM:
        raise Refusal("token_algorithm")
    kid = header.get("kid")
    if not isinstance(kid, str):
        raise Refusal("token_malformed", "kid")
    return kid


def _verified(token: str, key: RSAPublicKey) -> Mapping[str, Any]:
    try:
        claims = json.loads(SIGNATURES.decode(token, key, algorithms=[ALGORITHM]))
    except jwt.InvalidSignatureError:
        raise Refusal("token_signature") from None
    except (RecursionError, jwt.InvalidTokenError, ValueError):
        raise Refusal("token_malformed") from None
    if not isinstance(claims, dict):
        raise Refusal("token_malformed")
    return claims


def _judge_instants(claims: Mapping[str, Any]) -> None:
    now = wall_time()
    if _instant(claims, "exp") + LEEWAY_S <= now:
        raise Refusal("token_expired")
    not_before = _instant(claims, "nbf") if "nbf" in claims else 0.0
    if max(_instant(claims, "iat"), not_before) - LEEWAY_S > now:
        raise Refusal("token_not_yet_valid")


def _instant(claims: Mapping[str, Any], name: str) -> float:
    """Seconds since the epoch; a text, a truth value or a number beyond all numbers is none."""
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refusal("token_malformed", name)
    try:
        instant = float(value)
    except OverflowError:
        raise Refusal("token_malformed", name) from None
    if not isfinite(instant):
        raise Refusal("token_malformed", name)
    return instant


def _subject(claims: Mapping[str, Any]) -> str:
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject.isprintable():
        raise Refusal("token_malformed", "sub")
    if not subject.strip() or len(subject) > SUBJECT_CHARACTERS_MAX:
        raise Refusal("token_malformed", "sub")
    return subject
