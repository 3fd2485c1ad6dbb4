"""Every statement of identity: each a commit of its own, which changes only what stands behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from services.identity.machine import UserGone, UserSeen
from services.kernel.db import Tx

# The order of ``UserSeen.rank``, by code point like there. A body that is not later changes nothing: neither a copy nor
# one that was overtaken. Nothing brings back a deleted user, or one who was forgotten.
RECORD_SEEN: Final[LiteralString] = """
insert into users (user_id, email, stripe_customer_id, clerk_updated_at, clerk_event_at, created_at, updated_at)
select u.user_id, u.email, u.stripe_customer_id, u.clerk_updated_at, u.clerk_event_at, rowclaim_now(), rowclaim_now()
from unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[], $5::timestamptz[])
  as u (user_id, email, stripe_customer_id, clerk_updated_at, clerk_event_at)
order by u.user_id
on conflict (user_id) do update
set email = excluded.email, stripe_customer_id = excluded.stripe_customer_id,
    clerk_updated_at = excluded.clerk_updated_at, clerk_event_at = excluded.clerk_event_at, updated_at = rowclaim_now()
where users.deleted_at is null and users.forgotten_at is null
  and (excluded.clerk_updated_at, excluded.clerk_event_at, coalesce(excluded.email, '') collate "C",
       coalesce(excluded.stripe_customer_id, '') collate "C")
    > (users.clerk_updated_at, users.clerk_event_at, coalesce(users.email, '') collate "C",
       coalesce(users.stripe_customer_id, '') collate "C")"""


async def record_seen(tx: Tx, seen: Sequence[UserSeen]) -> int:
    """Write users as they were seen, no user twice; returns how many rows that changed."""
    if not seen:
        return 0
    return await tx.execute(
        RECORD_SEEN,
        [one.user_id for one in seen],
        [one.email for one in seen],
        [one.stripe_customer_id for one in seen],
        [one.updated_at for one in seen],
        [one.told_at for one in seen],
    )


# The row stays: without it, a late event about the user would make it anew.
RECORD_GONE: Final[LiteralString] = """
insert into users (user_id, created_at, updated_at, deleted_at)
select u.user_id, rowclaim_now(), rowclaim_now(), rowclaim_now()
from unnest($1::text[]) as u (user_id)
order by u.user_id
on conflict (user_id) do update
set email = null, stripe_customer_id = null, clerk_updated_at = null, clerk_event_at = null,
    updated_at = rowclaim_now(), deleted_at = rowclaim_now()
where users.deleted_at is null"""


async def record_gone(tx: Tx, gone: Sequence[UserGone]) -> int:
    """Write that users were deleted, no user twice, known before or not; returns how many rows that changed."""
    if not gone:
        return 0
    return await tx.execute(RECORD_GONE, [one.user_id for one in gone])


@dataclass(frozen=True, slots=True)
class Traces:
    """By what else than their id a user is known; None: by nothing."""

    email: str | None
    stripe_customer_id: str | None


FIND_TRACES: Final[LiteralString] = """
select email, stripe_customer_id from users where user_id = $1"""


async def find_traces(tx: Tx, user_id: str) -> Traces | None:
    """What is kept of a user, deleted and forgotten ones included; None: nobody ever told of one."""
    return await tx.row(Traces, FIND_TRACES, user_id)


NOT_FORGOTTEN: Final[LiteralString] = """
select not exists (select from users where user_id = $1 and forgotten_at is not null)"""


async def is_not_forgotten(tx: Tx, user_id: str) -> bool:
    """Whether ``forget`` would write."""
    would: bool = await tx.value(NOT_FORGOTTEN, user_id)
    return would


# Also of a user nobody told of yet: who is known to another slice alone must not come in with Clerk's next event.
FORGET: Final[LiteralString] = """
insert into users (user_id, created_at, updated_at, forgotten_at)
values ($1, rowclaim_now(), rowclaim_now(), rowclaim_now())
on conflict (user_id) do update
set email = null, stripe_customer_id = null, updated_at = rowclaim_now(), forgotten_at = rowclaim_now()
where users.forgotten_at is null"""


async def forget(tx: Tx, user_id: str) -> bool:
    """Blank a user, for good; False: they were forgotten before."""
    return await tx.execute(FORGET, user_id) == 1
