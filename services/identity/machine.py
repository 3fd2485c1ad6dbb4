"""What an event says about a user, and which of two says the last word. No states: a user is as Clerk last told.

Events arrive twice and in any order, so what stands after all of them must not depend on it: each user's events have
one order, the same here (for a batch) and in the statement that writes (for what stands already).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class UserSeen:
    """A user as they were at one instant."""

    user_id: str
    email: str | None
    stripe_customer_id: str | None
    updated_at: datetime
    """By the user's own clock at Clerk."""
    told_at: datetime
    """When Clerk wrote the event."""

    @property
    def rank(self) -> tuple[datetime, datetime, str, str]:
        """The later body says the last word. Two of the same millisecond have no order of Clerk's: any will do that is
        the same for everybody, so the texts decide, by code point, and something beats nothing."""
        return self.updated_at, self.told_at, self.email or "", self.stripe_customer_id or ""


@dataclass(frozen=True, slots=True)
class UserGone:
    """Clerk deleted the user, for ever: an id is never given again."""

    user_id: str


@dataclass(frozen=True, slots=True)
class LastWords:
    """What is left of many events: one word a user, those of one kind together, by user id."""

    seen: tuple[UserSeen, ...]
    gone: tuple[UserGone, ...]


def last_words(said: Iterable[UserSeen | UserGone]) -> LastWords:
    """The last word about each user."""
    words = list(said)
    gone = {word.user_id for word in words if isinstance(word, UserGone)}
    seen: dict[str, UserSeen] = {}
    for word in words:
        if isinstance(word, UserSeen) and word.user_id not in gone:
            known = seen.get(word.user_id)
            seen[word.user_id] = word if known is None else max(known, word, key=lambda one: one.rank)
    # In one order everywhere: two workers' batches never wait for each other in a circle.
    return LastWords(tuple(seen[user] for user in sorted(seen)), tuple(UserGone(user) for user in sorted(gone)))
