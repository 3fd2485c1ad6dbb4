"""The outside world's own clock: real time plus a shift that only ever grows.

Vendors keep time themselves. Moving this clock is how a test reaches the 24 hours after which Stripe forgets an
idempotency key, or the 7 days after which a GitHub invitation dies, without waiting and without touching ours.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime


@dataclass(slots=True)
class SandboxClock:
    """Now, as the vendors see it (aware, UTC)."""

    shift: timedelta = timedelta()

    def now(self) -> datetime:
        """The vendors' instant."""
        return datetime.now(UTC) + self.shift

    def now_s(self) -> int:
        """The same, in whole seconds since the epoch, the way both vendors write instants in JSON or headers."""
        return int(self.now().timestamp())

    def advance(self, seconds: float) -> None:
        """Move forward; raises ValueError for a negative step, because no vendor's clock runs backwards."""
        if seconds < 0:
            raise ValueError(f"the sandbox clock only moves forward, got {seconds} s")
        self.shift += timedelta(seconds=seconds)


def http_date(instant: datetime) -> str:
    """An instant as HTTP headers write it: ``Sun, 06 Nov 1994 08:49:37 GMT``."""
    return format_datetime(instant.astimezone(UTC), usegmt=True)


def iso_z(instant: datetime) -> str:
    """An instant as GitHub writes it: whole seconds, ``Z``."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
