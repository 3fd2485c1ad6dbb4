"""What both senders' proofs have in common: headers that count once, instants in whole seconds, active secrets."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from services.ingress.machine import Headers, Rejection
from services.kernel.clock import wall_time

TOLERANCE_S_MAX: Final = 300
"""Both vendors' own libraries accept this much and no more. Settings may ask for less; nothing asks for none."""

HEADER_BYTES_MAX: Final = 4096
"""A signature header is some 100 bytes a secret; what is longer is no signature and is not split into pieces."""

TIMESTAMP_DIGITS_MAX: Final = 12


@dataclass(frozen=True, slots=True)
class Secret:
    """An active secret and how metrics name it: its place in the setting and the start of its hash."""

    value: str = field(repr=False)
    label: str


def active_secrets(values: Iterable[str]) -> tuple[Secret, ...]:
    """The secrets that can verify anything, blank ones left out (an HMAC with an empty key is anybody's)."""
    return tuple(
        Secret(value, f"{place}:{hashlib.sha256(value.encode()).hexdigest()[:8]}")
        for place, value in enumerate(values, start=1)
        if value.strip()
    )


def sole_header(headers: Headers, name: bytes) -> str | Rejection:
    """The value of a header that must be there exactly once, in ASCII and of a sane length."""
    values = [value for key, value in headers if key == name]
    if not values:
        return Rejection.SIGNATURE_MISSING
    if len(values) > 1:
        return Rejection.SIGNATURE_REPEATED
    if not values[0]:
        return Rejection.SIGNATURE_MISSING
    if len(values[0]) > HEADER_BYTES_MAX or not values[0].isascii():
        return Rejection.SIGNATURE_MALFORMED
    return values[0].decode("ascii")


def misdated(timestamp: str, tolerance_s: int) -> Rejection | None:
    """Why an instant of signing is not acceptable, judged both ways; None: it is.

    The libraries would take ``1764547200.9``, `` 12`` or ``1_2``; senders write whole seconds. A tolerance of 0 leaves
    this very second: there is no value that switches the check off.
    """
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= TIMESTAMP_DIGITS_MAX):
        return Rejection.SIGNATURE_TIMESTAMP
    age_s = wall_time() - int(timestamp)
    if age_s > tolerance_s:
        return Rejection.SIGNATURE_STALE
    if age_s < -tolerance_s:
        return Rejection.SIGNATURE_FUTURE
    return None
