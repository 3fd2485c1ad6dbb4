"""The request log: everything that reached a vendor, in order of arrival.

A verdict is read from here, so a request is written down the moment it arrives, before anything may be dropped or
hang, and is completed when it ends. What the vendor really did is kept apart (``effect``) from what it told the
caller (``status``): a connection dropped after the effect has the first and lacks the second.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from itertools import count
from typing import Any, Final

ENTRIES_MAX: Final = 200_000
"""A day of busy development; older entries leave, and ``first_seq`` tells a reader that they did."""


class Vendor(StrEnum):
    """Whose door a request came through."""

    GITHUB = "github"
    STRIPE = "stripe"
    CLERK = "clerk"


class InviteEffect(StrEnum):
    """What a PUT did to a GitHub account. Whoever counts invitations counts those that ``told`` the person."""

    CREATED = "invitation_created"
    REPEATED = "invitation_repeated"
    """An open invitation was sent again: the duplicate somebody caused."""
    KEPT = "access_kept"
    """They had access; nobody was told anything."""

    @property
    def told(self) -> bool:
        """Whether the person was told."""
        return self is not InviteEffect.KEPT


class Ending(StrEnum):
    """How a request ended for its caller."""

    PENDING = "pending"
    """Still being handled, or hanging by script."""
    ANSWERED = "answered"
    CUT = "cut"
    """The status line and half of the body went out, then the connection closed."""
    DROPPED = "dropped"
    """The connection closed without a byte of answer."""
    UNHEARD = "unheard"
    """The answer was ready, but the caller had left."""
    FAILED = "failed"
    """The sandbox itself broke: a bug of ours, answered 500."""


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request. Instants are real time (UTC), not the sandbox clock."""

    seq: int
    vendor: Vendor
    method: str
    path: str
    """As it arrived, percent-encoding kept, without the vendor's mount point."""
    query: str
    headers: Mapping[str, str]
    """The ones that matter, lower case; of ``authorization`` only the scheme and the last four characters."""
    body_bytes: int
    body_sha256: str
    body: Any
    """JSON or form, decoded; None for none or for an unreadable one."""
    arrived_at: datetime
    ended_at: datetime | None
    ending: Ending
    status: int | None
    fault: str | None
    """Id of the scripted fault that was played."""
    effect: str | None
    """What changed at the vendor: ``invitation_created``, ``checkout_session_created``... None when nothing did."""
    subject: str | None
    """Who or what it was about: a login, an object id."""
    overlaps: tuple[int, ...]
    """Requests of the same vendor already in flight when this one arrived, by seq."""


@dataclass(slots=True, kw_only=True)
class OpenRequest:
    """The writable side of an entry while its request is being handled."""

    seq: int
    vendor: Vendor
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body_bytes: int
    body_sha256: str
    body: Any
    overlaps: tuple[int, ...]
    arrived_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended_at: datetime | None = None
    ending: Ending = Ending.PENDING
    status: int | None = None
    fault: str | None = None
    effect: str | None = None
    subject: str | None = None

    def as_logged(self) -> LoggedRequest:
        """A frozen copy of how it stands."""
        return LoggedRequest(
            seq=self.seq,
            vendor=self.vendor,
            method=self.method,
            path=self.path,
            query=self.query,
            headers=self.headers,
            body_bytes=self.body_bytes,
            body_sha256=self.body_sha256,
            body=self.body,
            arrived_at=self.arrived_at,
            ended_at=self.ended_at,
            ending=self.ending,
            status=self.status,
            fault=self.fault,
            effect=self.effect,
            subject=self.subject,
            overlaps=self.overlaps,
        )


@dataclass(slots=True)
class RequestLog:
    """Append-only, in memory, in order of arrival; ``seq`` starts at 1 and has no holes."""

    _entries: deque[OpenRequest] = field(default_factory=lambda: deque(maxlen=ENTRIES_MAX))
    _in_flight: dict[Vendor, set[int]] = field(default_factory=lambda: {vendor: set() for vendor in Vendor})
    _seq: Iterator[int] = field(default_factory=lambda: count(1))

    def arrive(
        self, vendor: Vendor, *, method: str, path: str, query: str, headers: Mapping[str, str], raw: bytes, body: Any
    ) -> OpenRequest:
        """Write a request down before anything else is done with it."""
        in_flight = self._in_flight[vendor]
        entry = OpenRequest(
            seq=next(self._seq),
            vendor=vendor,
            method=method,
            path=path,
            query=query,
            headers=headers,
            body_bytes=len(raw),
            body_sha256=sha256(raw).hexdigest(),
            body=body,
            overlaps=tuple(sorted(in_flight)),
        )
        in_flight.add(entry.seq)
        self._entries.append(entry)
        return entry

    def end(self, entry: OpenRequest, ending: Ending, status: int | None) -> None:
        """Complete an entry."""
        entry.ended_at = datetime.now(UTC)
        entry.ending = ending
        entry.status = status
        self._in_flight[entry.vendor].discard(entry.seq)

    @property
    def first_seq(self) -> int:
        """The oldest entry still kept; 1 until more than ENTRIES_MAX requests arrived."""
        return self._entries[0].seq if self._entries else 1

    @property
    def last_seq(self) -> int:
        """How many requests arrived so far."""
        return self._entries[-1].seq if self._entries else 0

    def entries(
        self,
        vendor: Vendor | None = None,
        *,
        method: str | None = None,
        path_contains: str | None = None,
        since_seq: int = 1,
        limit: int = ENTRIES_MAX,
    ) -> list[LoggedRequest]:
        """Entries in order of arrival, from ``since_seq`` on."""
        found: list[LoggedRequest] = []
        for entry in self._entries:
            if len(found) >= limit:
                break
            if (
                entry.seq >= since_seq
                and (vendor is None or entry.vendor is vendor)
                and (method is None or entry.method == method)
                and (path_contains is None or path_contains in entry.path)
            ):
                found.append(entry.as_logged())
        return found
