"""The inbox: an event is stored once, with one delivery for every consumer that is owed it.

An event has no business row yet, so this is the one queue. Events are stored by ``ingress``; deliveries are worked off
by ``kernel.deliveries``; a delivery claim saves work, it is never the guard of an effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from services.kernel.db import Tx


@dataclass(frozen=True, slots=True)
class Subscription:
    """Events of this source and kind are owed to a consumer."""

    source: str
    kind: str


# A changed card must not owe a consumer what was received before it subscribed: ``since`` keeps its first value.
SUBSCRIBE: Final[LiteralString] = """
insert into webhook_subscriptions (source, kind, consumer, since)
select source, kind, $3, rowclaim_now() from unnest($1::text[], $2::text[]) as s (source, kind)
order by source, kind
on conflict do nothing"""


async def subscribe(tx: Tx, consumer: str, subscriptions: Sequence[Subscription]) -> int:
    """Owe ``consumer`` these events from now on; returns how many subscriptions are new. Removing one is a migration's
    business: a process of the older release may still rely on it."""
    return await tx.execute(SUBSCRIBE, [s.source for s in subscriptions], [s.kind for s in subscriptions], consumer)


MAKE_PARTITIONS: Final[LiteralString] = """select make_event_partitions($1)"""
WEEKS_AHEAD: Final[LiteralString] = """select event_weeks_ahead()"""
PARTITION_WEEKS: Final = 8


async def make_partitions(tx: Tx, weeks: int = PARTITION_WEEKS) -> int:
    """Make the weekly partitions of event bodies up to ``weeks`` ahead; returns how many were made."""
    made: int = await tx.value(MAKE_PARTITIONS, weeks)
    return made


async def weeks_ahead(tx: Tx) -> int:
    """Whole weeks for which events can still be stored."""
    weeks: int = await tx.value(WEEKS_AHEAD)
    return weeks
