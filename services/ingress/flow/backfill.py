"""Events that their sender lists and the inbox lacks are stored as if they had arrived.

For when the door was shut for longer than a sender retries. Page by page, each in a commit of its own that also says
who asked: whatever ends it, what was stored stands, and a second run only counts it. Nothing is stored twice, because
an event is one row however it came; nothing is done twice, because consumers work from rows.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol, assert_never

from services.ingress import store
from services.ingress.machine import (
    HistoryAnswer,
    HistoryPage,
    HistoryQuery,
    HistoryRefused,
    HistoryTrouble,
    Source,
)
from services.ingress.store import Arrival
from services.kernel.clock import database_now
from services.kernel.db import Database
from services.kernel.errors import Retryable, Stop
from services.kernel.inbox import make_partitions

LISTED_FOR: Final = timedelta(days=30)
"""So long Stripe lists an event."""
KINDS_MAX: Final = 20
"""So many kinds may be asked for at once; more are asked for in turn."""
PAGES_MAX: Final = 1000
"""Of one such group, in one run."""


class History(Protocol):
    """A sender's list of its own events. Raises nothing but Retryable (the gate is closed)."""

    async def page(self, query: HistoryQuery) -> HistoryAnswer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """What to look for. ``since``, ``until``: an instant, or how long ago by the database's clock; None: up to now."""

    since: datetime | timedelta
    until: datetime | timedelta | None
    actor: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled:
    """What a page did, or would do. ``owed``: events that somebody is to work on now, stored before or not.

    ``rings``: one event of each source, as a ring says "look". ``unfinished``: the bound of a run was reached; what
    happened before this instant was not all looked at.
    """

    looked_at: int = 0
    stored: int = 0
    already_there: int = 0
    owed: int = 0
    unreadable: int = 0
    rings: Mapping[str, int] = field(default_factory=dict)
    unfinished: datetime | None = None

    def __add__(self, later: "Backfilled") -> "Backfilled":
        instants = [instant for instant in (self.unfinished, later.unfinished) if instant is not None]
        return Backfilled(
            looked_at=self.looked_at + later.looked_at,
            stored=self.stored + later.stored,
            already_there=self.already_there + later.already_there,
            owed=self.owed + later.owed,
            unreadable=self.unreadable + later.unreadable,
            rings={**self.rings, **later.rings},
            unfinished=max(instants, default=None),
        )


async def backfill(
    db: Database, history: History, what: Backfill, *, dry_run: bool, pages_max: int = PAGES_MAX
) -> AsyncIterator[Backfilled]:
    """Backfill Stripe's events page by page; each is committed when it is yielded. ``dry_run`` counts, writes nothing.

    Raises Stop("backfill_window" | "backfill_refused"), Retryable("backfill_unavailable" | "gate_closed").
    """
    now = await database_now(db)
    since, until = _instant(what.since, now), now if what.until is None else _instant(what.until, now)
    if now - since > LISTED_FOR or since >= until:
        raise Stop("backfill_window", f"{since.isoformat()} to {until.isoformat()}")
    kinds = await store.list_kinds_owed_to_any(db, Source.STRIPE)
    if not dry_run:
        await make_partitions(db)
    for first in range(0, len(kinds), KINDS_MAX):
        query = HistoryQuery(kinds[first : first + KINDS_MAX], since, until)
        for nth in range(1, pages_max + 1):
            page = _listed(await history.page(query))
            last = page.after is None or nth == pages_max
            done = await _store(db, page, query, what, dry_run=dry_run, last=last)
            yield done if page.after is None or not last else done + Backfilled(unfinished=page.oldest)
            if last:
                break
            query = HistoryQuery(query.kinds, since, until, page.after)


def _instant(given: datetime | timedelta, now: datetime) -> datetime:
    return now - given if isinstance(given, timedelta) else given


def _listed(answer: HistoryAnswer) -> HistoryPage:
    match answer:
        case HistoryPage():
            return answer
        case HistoryTrouble(code):
            raise Retryable("backfill_unavailable", code)
        case HistoryRefused(code):
            raise Stop("backfill_refused", code)
        case never:
            assert_never(never)


async def _store(
    db: Database, page: HistoryPage, query: HistoryQuery, what: Backfill, *, dry_run: bool, last: bool
) -> Backfilled:
    arrivals = [Arrival(Source.STRIPE, event.external_id, event.kind, event.body) for event in page.events]
    if dry_run:
        arrived = list((await store.would_arrive(db, arrivals)).values())
    else:
        async with db.transaction() as tx:
            arrived = list((await store.arrive(tx, arrivals)).values())
            fresh = [one.event_id for one in arrived if one.is_new and one.event_id is not None]
            if fresh or last:  # a run leaves its mark, also one that found nothing
                await store.record_backfill(
                    tx,
                    actor=what.actor,
                    target=f"stripe {', '.join(query.kinds)}",
                    reason=what.reason,
                    since=query.since,
                    until=query.until,
                    looked_at=len(arrivals) + page.unreadable,
                    stored=fresh,
                )
    return Backfilled(
        looked_at=len(arrivals) + page.unreadable,
        stored=sum(one.is_new for one in arrived),
        already_there=sum(not one.is_new for one in arrived),
        owed=sum(one.unfinished for one in arrived),
        unreadable=page.unreadable,
        rings=_rings(arrived),
    )


def _rings(arrived: Sequence[store.Arrived]) -> dict[str, int]:
    return {one.source: one.event_id for one in arrived if one.unfinished and one.event_id is not None}
