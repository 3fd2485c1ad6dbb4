"""The idempotency layer: one key, one execution, one stored answer, for 24 hours.

Its harder half is what it refuses: a key with other parameters or on another endpoint is an error, a key in use is a
conflict, and a stored 500 comes back as the same 500 until the key is forgotten.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final

from services.sandbox.clock import SandboxClock
from services.sandbox.http import Answer
from services.sandbox.stripe.refusals import KEY_IN_USE, StripeRefusal

KEY_LIFE: Final = timedelta(hours=24)
KEY_LENGTH_MAX: Final = 255


@dataclass(slots=True)
class Slot:
    """What is known about one key."""

    endpoint: str
    fingerprint: str
    first_used_at: datetime
    in_use: bool = True
    saved: Answer | None = None
    request_id: str | None = None
    """Of the request whose answer is saved."""

    def save(self, answer: Answer, request_id: str) -> None:
        """Keep this answer for every later request with the key; the latest call before release wins."""
        self.saved = answer
        self.request_id = request_id


@dataclass(slots=True)
class IdempotencyLayer:
    """All keys of one account."""

    clock: SandboxClock
    slots: dict[str, Slot] = field(default_factory=dict)

    @contextmanager
    def hold(self, key: str, endpoint: str, canonical_params: str) -> Iterator[Slot]:
        """Take the key for one execution; a Slot with ``saved`` set is to be replayed.

        Raises StripeRefusal: too long, other endpoint, other parameters (400 idempotency_error), in use (409).
        A key released without a saved answer is free again, since nothing began to execute.
        """
        if len(key) > KEY_LENGTH_MAX:
            raise StripeRefusal(
                f"Idempotency keys can be at most {KEY_LENGTH_MAX} characters, got {len(key)}.", param="idempotency_key"
            )
        fingerprint = sha256(canonical_params.encode()).hexdigest()
        slot = self._known(key)
        if slot is not None:
            _check_same(slot, key, endpoint, fingerprint)
            yield slot
            return
        slot = self.slots[key] = Slot(endpoint, fingerprint, self.clock.now())
        try:
            yield slot
        finally:
            slot.in_use = False
            if slot.saved is None:
                del self.slots[key]

    def _known(self, key: str) -> Slot | None:
        slot = self.slots.get(key)
        if slot is not None and not slot.in_use and self.clock.now() - slot.first_used_at >= KEY_LIFE:
            del self.slots[key]
            return None
        return slot


def _check_same(slot: Slot, key: str, endpoint: str, fingerprint: str) -> None:
    if slot.endpoint != endpoint:
        raise StripeRefusal(
            f"Keys for idempotent requests can only be used for the same endpoint they were first used for "
            f"('{endpoint}' vs '{slot.endpoint}'). Try using a key other than '{key}' if you meant to execute a "
            "different request.",
            kind="idempotency_error",
        )
    if slot.fingerprint != fingerprint:
        raise StripeRefusal(
            f"Keys for idempotent requests can only be used with the same parameters they were first used with. Try "
            f"using a key other than '{key}' if you meant to execute a different request.",
            kind="idempotency_error",
        )
    if slot.saved is None:
        raise StripeRefusal(KEY_IN_USE.format(key=key), status=409, code="idempotency_key_in_use")
