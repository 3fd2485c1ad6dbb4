"""An operator has stored events worked on once more.

``replay`` goes through what a consumer has finished, or was never owed, in pages that commit one by one: whatever
stops it, the pages behind it stand, and it goes on from the instant it told. What still waits, is being worked on or
is parked is counted and left alone. ``unpark`` gives back what waits for a person. Neither causes an effect that a row
does not owe: consumers work from rows, and know their work when they meet it again.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from services.ingress import store
from services.ingress.store import INGRESS_CONSUMER
from services.kernel.clock import database_now
from services.kernel.db import Database, Tx
from services.kernel.deliveries import DeliveryState
from services.kernel.errors import Stop

UNPARK_PAGE: Final = 500
NAMED_MAX: Final = 20
INSTANT_STEP: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What to replay. ``since``: an instant, or how long ago by the database's clock. ``page``: events looked at."""

    consumer: str
    kind: str
    since: datetime | timedelta
    page: int
    actor: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What one page did, or would do. ``resume``: the instant from which a later run goes on after this page.

    ``rings``: one event of each source that is worked on again; a ring says "look again", so one is enough.
    """

    put_back: int = 0
    made: int = 0
    waiting: int = 0
    parked: int = 0
    without_body: int = 0
    rings: Mapping[str, int] = field(default_factory=dict)
    resume: datetime

    def __add__(self, later: "Replayed") -> "Replayed":
        return Replayed(
            put_back=self.put_back + later.put_back,
            made=self.made + later.made,
            waiting=self.waiting + later.waiting,
            parked=self.parked + later.parked,
            without_body=self.without_body + later.without_body,
            rings={**self.rings, **later.rings},
            resume=later.resume,
        )


async def replay(db: Database, what: Replay, *, dry_run: bool) -> AsyncIterator[Replayed]:
    """Replay page by page; each is committed when it is yielded. ``dry_run`` counts and writes nothing.

    Events that arrive after the start are left out. Raises Stop("replay_not_subscribed").
    """
    owed = await store.list_kinds_owed(db, what.consumer)
    if what.kind not in owed:
        raise Stop("replay_not_subscribed", f"{what.consumer} is owed: {', '.join(owed) or 'nothing'}")
    until = await database_now(db)
    since = until - what.since if isinstance(what.since, timedelta) else what.since
    while True:
        async with db.transaction() as tx:
            last = await store.find_page_end(tx, since=since, until=until, page=what.page)
            if last is None:
                return
            page = await _replay_page(tx, what, since=since, last_received_at=last, dry_run=dry_run)
        yield page
        since = page.resume


async def _replay_page(tx: Tx, what: Replay, *, since: datetime, last_received_at: datetime, dry_run: bool) -> Replayed:
    standings = await store.list_standings(
        tx, consumer=what.consumer, kind=what.kind, since=since, last_received_at=last_received_at
    )
    owed_again = [s for s in standings if s.state in (None, DeliveryState.DONE, DeliveryState.NOT_OURS)]
    finished = [s for s in owed_again if s.has_body and s.state is not None]
    missing = [s for s in owed_again if s.has_body and s.state is None]
    put_back, made = len(finished), len(missing)
    if not dry_run and (finished or missing):
        put_back = await store.replay_deliveries(tx, what.consumer, finished)
        made = await store.owe_deliveries(tx, what.consumer, missing)
        await store.record_replay(
            tx,
            actor=what.actor,
            target=f"{what.consumer} {what.kind}",
            reason=what.reason,
            finished=[s.event_id for s in finished],
            missing=[s.event_id for s in missing],
            put_back=put_back,
            made=made,
        )
    return Replayed(
        put_back=put_back,
        made=made,
        waiting=sum(s.state in (DeliveryState.PENDING, DeliveryState.IN_PROGRESS) for s in standings),
        parked=sum(s.state is DeliveryState.PARKED for s in standings),
        without_body=len(owed_again) - len(finished) - len(missing),
        rings={s.source: s.event_id for s in [*finished, *missing]},
        resume=last_received_at + INSTANT_STEP,
    )


@dataclass(frozen=True, slots=True)
class Unparked:
    """How many deliveries were given back; ``rings`` as in ``Replayed``."""

    unparked: int
    rings: Mapping[str, int] = field(default_factory=dict)


async def list_parked(db: Database, *, limit: int) -> list[store.ParkedDelivery]:
    """What waits for a person, oldest event first."""
    return await store.list_parked(db, limit=limit)


async def unpark(db: Database, named: Sequence[tuple[int, str]], *, actor: str, reason: str) -> Unparked:
    """Give back the deliveries that are named, all or none.

    Raises Stop("delivery_not_parked" | "delivery_shown_only").
    """
    async with db.transaction() as tx:
        parked = await store.find_parked(tx, named)
        lacking = sorted(set(named) - {(p.event_id, p.consumer) for p in parked})
        if lacking:
            raise Stop("delivery_not_parked", _names(lacking))
        shown = [(p.event_id, p.consumer) for p in parked if p.consumer == INGRESS_CONSUMER]
        if shown:
            raise Stop("delivery_shown_only", _names(shown))
        return await _give_back(tx, parked, actor=actor, reason=reason)


async def unpark_all(db: Database, reason_code: str, *, actor: str, reason: str) -> Unparked:
    """Give back every delivery parked for ``reason_code``, in pages; each is looked at once, so that one which its
    consumer parks again meanwhile does not keep this going. What is stored only to be shown stays."""
    done = Unparked(0)
    after = (0, "")
    while True:
        async with db.transaction() as tx:
            parked = await store.list_parked(tx, limit=UNPARK_PAGE, after=after, reason_code=reason_code)
            workable = [p for p in parked if p.consumer != INGRESS_CONSUMER]
            page = await _give_back(tx, workable, actor=actor, reason=reason)
        done = Unparked(done.unparked + page.unparked, {**done.rings, **page.rings})
        if len(parked) < UNPARK_PAGE:
            return done
        after = (parked[-1].event_id, parked[-1].consumer)


async def _give_back(tx: Tx, parked: Sequence[store.ParkedDelivery], *, actor: str, reason: str) -> Unparked:
    count = await store.unpark_deliveries(tx, parked, actor=actor, reason=reason)
    return Unparked(count, {p.source: p.event_id for p in parked})


def _names(deliveries: Iterable[tuple[int, str]]) -> str:
    named = [f"{event_id}:{consumer}" for event_id, consumer in deliveries]
    more = f" and {len(named) - NAMED_MAX} more" if len(named) > NAMED_MAX else ""
    return ", ".join(named[:NAMED_MAX]) + more
