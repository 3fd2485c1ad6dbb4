"""Clerk as an issuer of session tokens: its keys, their publication, and tokens that are good or bad on purpose.

The tokens are put together by hand, part by part: a library that signs refuses to make most of the bad ones, and what
verifies ours should not have written them.
"""

import hashlib
import hmac
import json
import secrets
import string
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, assert_never

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from services.sandbox.clock import SandboxClock
from services.sandbox.faults import FaultScript, performs, trouble
from services.sandbox.http import Answer, Call, Outcome
from services.sandbox.log import Vendor

KEY_BITS: Final = 2048
AUTHORIZED_PARTY: Final = "https://app.rowclaim.example"
"""The origin of the shop's front end, as the tokens name it (``azp``)."""
SEEN_EARLY_S: Final = 10
"""How far before its issue a token is good, for clocks that are behind."""
_LETTERS: Final = string.ascii_letters + string.digits


class Signature(StrEnum):
    """By what a token is signed."""

    GOOD = "good"
    """The key in use."""
    OTHER_KEY = "other_key"
    """A key that nobody published, under the id of the key in use."""
    UNKNOWN_KEY = "unknown_key"
    """A key that nobody published, under an id of its own."""
    UNSIGNED = "unsigned"
    """``alg: none``, and an empty signature."""
    SHARED_SECRET = "shared_secret"  # noqa: S105 - a name
    """``alg: HS256`` with the public key as the secret: it fools who lets a token choose the algorithm."""


@dataclass(frozen=True, slots=True)
class Key:
    """A pair; ``id`` is what a token's header and the published set call it."""

    id: str
    private: RSAPrivateKey

    @classmethod
    def new(cls) -> "Key":
        return cls(
            "ins_2" + "".join(secrets.choice(_LETTERS) for _ in range(26)), generate_private_key(65537, KEY_BITS)
        )

    def published(self) -> dict[str, str]:
        """The public half as a JSON Web Key."""
        numbers = self.private.public_key().public_numbers()
        return {
            "use": "sig",
            "kty": "RSA",
            "kid": self.id,
            "alg": "RS256",
            "n": _encoded(numbers.n.to_bytes(KEY_BITS // 8, "big")),
            "e": _encoded(numbers.e.to_bytes(3, "big")),
        }

    def signed(self, text: bytes) -> bytes:
        """RS256."""
        return self.private.sign(text, PKCS1v15(), SHA256())

    @property
    def pem(self) -> bytes:
        """The public half as everybody may have it."""
        return self.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@dataclass(slots=True)
class Issuer:
    """The keys published now, newest first: the first one signs. Made when first asked for, which takes a moment."""

    url: str = ""
    """``iss`` of its tokens; known once it is served."""
    _keys: list[Key] = field(default_factory=list)
    _unpublished: Key | None = None

    @property
    def keys(self) -> list[Key]:
        """The published keys."""
        if not self._keys:
            self._keys.append(Key.new())
        return self._keys

    def rotate(self, *, keep_old: bool = True) -> str:
        """A new key signs from now on; without ``keep_old`` the old ones are published no longer. Answers its id."""
        self._keys = [Key.new(), *(self.keys if keep_old else ())]
        return self._keys[0].id

    def key_set(self) -> dict[str, list[dict[str, str]]]:
        """The JSON Web Key Set."""
        return {"keys": [key.published() for key in self.keys]}

    def mint(
        self,
        user_id: str,
        *,
        role: str | None = None,
        expires_in_s: int = 60,
        signature: Signature = Signature.GOOD,
        claims: Mapping[str, Any] | None = None,
        header: Mapping[str, Any] | None = None,
    ) -> str:
        """A session token. ``claims`` and ``header`` are laid over the usual ones; null takes one away.

        Tokens live by real time, as signatures do: who checks them looks at a clock of their own.
        """
        now_s = int(time.time())
        said = {
            "azp": AUTHORIZED_PARTY,
            "exp": now_s + expires_in_s,
            "iat": now_s,
            "iss": self.url,
            "nbf": now_s - SEEN_EARLY_S,
            "role": role,
            "sid": "sess_2" + "".join(secrets.choice(_LETTERS) for _ in range(26)),
            "sub": user_id,
        }
        return self._sealed(_laid(said, claims or {}), signature, header or {})

    def _sealed(self, claims: Mapping[str, Any], signature: Signature, header: Mapping[str, Any]) -> str:
        key = self._signing(signature)
        algorithm = {Signature.UNSIGNED: "none", Signature.SHARED_SECRET: "HS256"}.get(signature, "RS256")
        head = {"alg": algorithm, "cat": "cl_B7d4PD111AAA", "kid": key.id, "typ": "JWT"}
        text = f"{_as_json(_laid(head, header))}.{_as_json(claims)}".encode()
        match signature:
            case Signature.GOOD | Signature.OTHER_KEY | Signature.UNKNOWN_KEY:
                proof = key.signed(text)
            case Signature.UNSIGNED:
                proof = b""
            case Signature.SHARED_SECRET:
                proof = hmac.digest(key.pem, text, hashlib.sha256)
            case _:
                assert_never(signature)
        return f"{text.decode()}.{_encoded(proof)}"

    def _signing(self, signature: Signature) -> Key:
        if signature not in (Signature.OTHER_KEY, Signature.UNKNOWN_KEY):
            return self.keys[0]
        if self._unpublished is None:
            self._unpublished = Key.new()
        own = self._unpublished
        return Key(self.keys[0].id, own.private) if signature is Signature.OTHER_KEY else own


def _laid(usual: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**usual, **over}.items() if value is not None}


def _as_json(value: Mapping[str, Any]) -> str:
    return _encoded(json.dumps(value, separators=(",", ":")).encode())


def _encoded(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class IssuerApi:
    """Handler behind Clerk's door: the published keys."""

    issuer: Issuer
    clock: SandboxClock
    faults: FaultScript

    async def answer(self, call: Call) -> Outcome:
        """Every call gets an outcome; a scripted fault may replace it."""
        armed = self.faults.take(Vendor.CLERK, call)
        if armed is None:
            return self._route(call)
        await call.pause(armed.fault.delay_ms / 1000)
        return await trouble(armed, self._route(call) if performs(armed.fault) else None, call, self.clock)

    def _route(self, call: Call) -> Answer:
        headers = {"content-type": "application/json"}
        if (call.method, call.path) != ("GET", "/.well-known/jwks.json"):
            return Answer(404, json.dumps({"errors": [{"code": "resource_not_found"}]}).encode(), headers)
        return Answer(200, json.dumps(self.issuer.key_set()).encode(), headers)
