"""How Clerk's events become users: read a batch, keep the last word about each user, write it in two statements.

Nobody is asked. An event's body is a whole user, and the order of bodies is Clerk's own (``machine.UserSeen.rank``), so
that whatever comes late, twice or first ends in the same row.
"""

from collections.abc import Mapping, Sequence
from typing import Final, assert_never

import structlog
from pydantic import ValidationError

from schemas.clerk import USER_EVENT, UserChanged, UserDeleted, instant
from services.identity import store
from services.identity.machine import UserGone, UserSeen, last_words
from services.kernel.db import Tx
from services.kernel.deliveries import Delivery, Done, Parked, Verdict

log = structlog.get_logger()

SLICE: Final = "identity"
UNREADABLE: Final = Parked("unreadable_body")


async def handle(tx: Tx, batch: Sequence[Delivery]) -> Mapping[int, Verdict]:
    """Write what a batch of user events says, then say what became of each event.

    The two writes need not be one commit: each is right by itself, and after a crash between them the events come
    again.
    """
    said = {delivery.event_id: read(delivery.body) for delivery in batch}
    words = last_words(word for word in said.values() if word is not None)
    changed = await store.record_seen(tx, words.seen)
    deleted = await store.record_gone(tx, words.gone)
    log.info("identity.recorded", events=len(batch), changed=changed, deleted=deleted)
    return {event: UNREADABLE if word is None else Done() for event, word in said.items()}


def read(body: bytes | None) -> UserSeen | UserGone | None:
    """What an event says about its user; None: it cannot be read, or is no longer kept."""
    try:
        event = USER_EVENT.validate_json(body or b"")
    except ValidationError:
        return None
    match event:
        case UserChanged(data=user):
            return UserSeen(
                user_id=user.id,
                email=user.email,
                stripe_customer_id=user.stripe_customer_id,
                updated_at=instant(user.updated_at),
                told_at=instant(event.timestamp),
            )
        case UserDeleted(data=user):
            return UserGone(user.id)
        case never:
            assert_never(never)


async def traces(tx: Tx, user_id: str) -> frozenset[str]:
    """The user's id, if Clerk ever told of them, and what else stored events may name them by."""
    found = await store.find_traces(tx, user_id)
    if found is None:
        return frozenset()
    return frozenset(text for text in (user_id, found.email, found.stripe_customer_id) if text is not None)


async def blank(tx: Tx, user_id: str, *, dry_run: bool) -> Mapping[str, int]:
    """Forget a user, for good, whether Clerk told of them or will; how many rows that is. Dry, it writes nothing."""
    forgets = await store.is_not_forgotten(tx, user_id) if dry_run else await store.forget(tx, user_id)
    return {"users": int(forgets)}
