"""The seams of the door: who sends, what a verifier says, why a request is not believed, what a sender still lists.

The slice has no states of its own. What it stores are deliveries, whose machine is ``kernel.deliveries.DELIVERIES``:
it only ever takes the two births, ``arrive`` and ``arrive_parked``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

Headers = Sequence[tuple[bytes, bytes]]
"""As the server hands them over: names in lower case, repetitions kept, values as received."""


class Source(StrEnum):
    """Who sends, as it stands in ``event_ids.source``."""

    STRIPE = "stripe"
    CLERK = "clerk"


class Rejection(StrEnum):
    """Why a request is not taken: a code of ``kernel.errors`` and the ``reason`` its counter carries."""

    SIGNATURE_UNCONFIGURED = "signature_unconfigured"
    """No secret is set for the source: nothing can be verified, so nothing is believed."""
    SIGNATURE_MISSING = "signature_missing"
    SIGNATURE_REPEATED = "signature_repeated"
    """A header that proves something came twice; which one counts is not ours to guess."""
    SIGNATURE_MALFORMED = "signature_malformed"
    SIGNATURE_SCHEME = "signature_scheme"
    """Signed, but by no scheme we accept."""
    SIGNATURE_TIMESTAMP = "signature_timestamp"
    """The instant of signing is not a whole number of seconds."""
    SIGNATURE_STALE = "signature_stale"
    SIGNATURE_FUTURE = "signature_future"
    SIGNATURE_MISMATCH = "signature_mismatch"
    """No active secret made this signature over these bytes."""
    BODY_TOO_LARGE = "body_too_large"
    BODY_TOO_SLOW = "body_too_slow"
    BODY_NOT_UTF8 = "body_not_utf8"
    BODY_NOT_JSON = "body_not_json"
    BODY_NOT_OBJECT = "body_not_object"
    EVENT_MALFORMED = "event_malformed"
    """One of the fields that make an event is there, but is no text."""
    EVENT_OBJECT = "event_object"
    """The body says it is something else than an event we know, or does not say."""
    EVENT_ID = "event_id"
    EVENT_KIND = "event_kind"


THIN_EVENT = "thin_event"
"""Parked for this: the event is real, but carries no object that a consumer could read."""


@dataclass(frozen=True, slots=True)
class Verified:
    """An event whose bytes an active secret has signed. ``secret`` is a label, never the secret.

    ``api_version`` is the sender's rendering of the body, where it names one: consumers read more than one.
    """

    external_id: str
    kind: str
    secret: str
    api_version: str | None = None
    parked_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """Not believed, or believed and unreadable. Nothing of the body may be kept."""

    reason: Rejection


Verdict = Verified | Rejected


class Receipt(StrEnum):
    """What the sender is told; all three are a success."""

    STORED = "stored"
    PARKED = "parked"
    DUPLICATE = "duplicate"


# ------------------------------------------------------------------------------------------------ what a sender lists
@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Which events: of these kinds, both ends of the time included. ``after``: go on behind this event's id."""

    kinds: Sequence[str]
    since: datetime
    until: datetime
    after: str | None = None


@dataclass(frozen=True, slots=True)
class PastEvent:
    """An event as its sender lists it; ``body`` as rendered there."""

    external_id: str
    kind: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """Newest first. ``oldest``: when the last of them happened; ``after`` None: there is no further page."""

    events: Sequence[PastEvent]
    unreadable: int
    oldest: datetime | None
    after: str | None


@dataclass(frozen=True, slots=True)
class HistoryTrouble:
    """No list this time."""

    code: str


@dataclass(frozen=True, slots=True)
class HistoryRefused:
    """Our key, or its rights."""

    code: str


HistoryAnswer = HistoryPage | HistoryTrouble | HistoryRefused
