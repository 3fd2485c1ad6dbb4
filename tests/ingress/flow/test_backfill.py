"""Backfill: what the inbox lacks is stored as if it had arrived, in pages, once, and only if somebody is owed it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from services.ingress import store
from services.ingress.flow.backfill import KINDS_MAX, Backfill, Backfilled, backfill
from services.ingress.machine import (
    HistoryAnswer,
    HistoryPage,
    HistoryQuery,
    HistoryRefused,
    HistoryTrouble,
    PastEvent,
)
from services.ingress.store import Arrival
from services.kernel import inbox
from services.kernel.db import Database
from services.kernel.deliveries import Delivery, DeliveryWorker, Done, Verdict
from services.kernel.errors import Retryable, Stop
from services.kernel.inbox import Subscription
from tests.fixtures.database import Clock, Connect, Connection
from tests.ingress.conftest import Stored

PAID = "checkout.session.completed"
REFUNDED = "charge.refunded"
OLDEST = datetime(2026, 11, 1, tzinfo=UTC)
HOUR = Backfill(since=timedelta(hours=1), until=None, actor="ann@desk", reason="the door was shut")


@dataclass
class Listing:
    """A sender's list: its pages in order, and what was asked of it. An event is written ``id`` or ``id:kind``."""

    pages: Sequence[Sequence[str] | HistoryAnswer]
    endless: bool = False
    unreadable: int = 0
    asked: list[HistoryQuery] = field(default_factory=list)

    async def page(self, query: HistoryQuery) -> HistoryAnswer:
        self.asked.append(query)
        page = self.pages[len(self.asked) - 1]
        if not isinstance(page, list):
            assert isinstance(page, HistoryPage | HistoryTrouble | HistoryRefused)
            return page
        more = self.endless or len(self.asked) < len(self.pages)
        events = [past(event) for event in page]
        after = events[-1].external_id if events and more else None
        return HistoryPage(events=events, unreadable=self.unreadable, oldest=OLDEST if page else None, after=after)


def past(event: str) -> PastEvent:
    external_id, _, kind = event.partition(":")
    return PastEvent(external_id, kind or PAID, json.dumps({"id": external_id}).encode())


@pytest.fixture
async def db(connect: Connect) -> Database:
    """The door's role; fulfillment is owed PAID."""
    await inbox.subscribe(await connect("rowclaim_fulfillment"), "fulfillment", [Subscription("stripe", PAID)])
    return await connect("rowclaim_ingress")


async def ran(
    db: Database, listing: Listing, what: Backfill = HOUR, *, dry_run: bool = False, **bound: int
) -> Backfilled:
    total = Backfilled()
    async for page in backfill(db, listing, what, dry_run=dry_run, **bound):
        total += page
    return total


def counts(done: Backfilled) -> tuple[int, int, int, int]:
    return done.looked_at, done.stored, done.already_there, done.owed


async def actions(owner: Connection) -> list[dict[str, Any]]:
    rows = await owner.fetch("select actor, verb, target, reason, before, after from admin_actions order by id")
    return [dict(row) | {"before": json.loads(row["before"]), "after": json.loads(row["after"])} for row in rows]


async def work_off(connect: Connect) -> None:
    async def handle(batch: Sequence[Delivery]) -> dict[int, Verdict]:
        return {delivery.event_id: Done() for delivery in batch}

    worker = DeliveryWorker(
        await connect("rowclaim_fulfillment"), "fulfillment", handle, lease=timedelta(seconds=30), batch_max=50
    )
    await worker.step()


async def test_what_did_not_arrive_is_stored_with_what_is_owed_for_it(
    db: Database, stored: Stored, owner: Connection, connect: Connect
) -> None:
    await store.arrive(db, [Arrival("stripe", "evt_2", PAID, b"as it came")])
    await work_off(connect)
    listing = Listing([["evt_3", "evt_2"], ["evt_1"]])
    done = await ran(db, listing)
    assert counts(done) == (3, 2, 1, 2)
    assert done.unfinished is None
    assert await stored.events() == [("stripe", one, PAID) for one in ("evt_2", "evt_3", "evt_1")]
    assert await stored.bodies() == [b"as it came", b'{"id": "evt_3"}', b'{"id": "evt_1"}']
    assert [row[1:] for row in await stored.deliveries()] == [
        ("fulfillment", "done"),
        ("fulfillment", "pending"),
        ("fulfillment", "pending"),
    ]
    ids = await owner.fetchval("select array_agg(id order by id) from event_ids")
    assert done.rings == {"stripe": ids[2]}
    first, last = await actions(owner)
    assert (first["actor"], first["verb"], first["target"], first["reason"]) == (
        "ann@desk",
        "backfill",
        f"stripe {PAID}",
        "the door was shut",
    )
    assert (first["after"], last["after"]) == (
        {"looked_at": 2, "stored": 1, "events": [ids[1]]},
        {"looked_at": 1, "stored": 1, "events": [ids[2]]},
    )
    window = datetime.fromisoformat(last["before"]["until"]) - datetime.fromisoformat(last["before"]["since"])
    assert window == timedelta(hours=1)


async def test_a_second_run_stores_nothing_and_leaves_its_mark(
    db: Database, owner: Connection, connect: Connect
) -> None:
    await ran(db, Listing([["evt_1"]]))
    again = await ran(db, Listing([["evt_1"]]))
    assert (counts(again), list(again.rings)) == ((1, 0, 1, 1), ["stripe"])
    await work_off(connect)
    settled = await ran(db, Listing([["evt_1"]]))
    assert (counts(settled), settled.rings) == ((1, 0, 1, 0), {})
    assert [action["after"]["stored"] for action in await actions(owner)] == [1, 0, 0]


async def test_only_what_somebody_is_owed_is_asked_for(db: Database, connect: Connect) -> None:
    others = [Subscription("stripe", REFUNDED), Subscription("stripe", PAID), Subscription("clerk", "user.created")]
    await inbox.subscribe(await connect("rowclaim_fulfillment"), "rewards", others)
    listing = Listing([["evt_1"]])
    done = await ran(db, listing)
    (asked,) = listing.asked
    assert list(asked.kinds) == [REFUNDED, PAID]
    assert asked.until - asked.since == timedelta(hours=1)
    assert counts(done) == (1, 1, 0, 1)


async def test_nobody_subscribed_is_nothing_to_ask_for(connect: Connect) -> None:
    listing = Listing([])
    assert counts(await ran(await connect("rowclaim_ingress"), listing)) == (0, 0, 0, 0)
    assert listing.asked == []


async def test_more_kinds_than_may_be_asked_for_at_once_are_asked_for_in_turn(
    db: Database, connect: Connect, owner: Connection
) -> None:
    kinds = [f"kind.{nth:02}" for nth in range(KINDS_MAX)]
    await inbox.subscribe(
        await connect("rowclaim_fulfillment"), "rewards", [Subscription("stripe", kind) for kind in kinds]
    )
    listing = Listing([HistoryPage(events=[past("evt_1")], unreadable=0, oldest=OLDEST, after=None)] * 2)
    done = await ran(db, listing)
    assert [list(query.kinds) for query in listing.asked] == [[PAID, *kinds[:-1]], kinds[-1:]]
    assert counts(done) == (2, 1, 1, 2)
    assert len(await actions(owner)) == 2


async def test_every_page_is_asked_for_behind_the_last_event_of_the_one_before(db: Database) -> None:
    listing = Listing([["evt_4", "evt_3"], ["evt_2"], ["evt_1"]])
    await ran(db, listing)
    assert [query.after for query in listing.asked] == [None, "evt_3", "evt_2"]
    assert len({(query.since, query.until) for query in listing.asked}) == 1


async def test_a_dry_run_counts_the_same_and_writes_nothing(
    db: Database, stored: Stored, owner: Connection, connect: Connect
) -> None:
    await store.arrive(db, [Arrival("stripe", "evt_done", PAID, b"{}")])
    await work_off(connect)
    await store.arrive(db, [Arrival("stripe", "evt_due", PAID, b"{}"), Arrival("stripe", "evt_else", REFUNDED, b"{}")])
    await store.arrive(db, [Arrival("clerk", "evt_new", "user.created", b"{}")])
    before = await stored.events(), await stored.bodies(), await stored.deliveries()
    pages = [["evt_new", "evt_done"], ["evt_due", f"evt_else:{REFUNDED}"]]
    dry = await ran(db, Listing(pages, unreadable=1), dry_run=True)
    assert (await stored.events(), await stored.bodies(), await stored.deliveries()) == before
    assert await actions(owner) == []
    real = await ran(db, Listing(pages, unreadable=1))
    assert counts(dry) == counts(real) == (6, 1, 3, 2)
    assert dry.unreadable == real.unreadable == 2


async def test_a_new_event_of_a_kind_nobody_is_owed_is_stored_and_owed_to_nobody(
    db: Database, connect: Connect
) -> None:
    """Stripe may list a kind that was not asked for; it is kept as the door keeps it. Another sender's is another."""
    await inbox.subscribe(await connect("rowclaim_fulfillment"), "rewards", [Subscription("clerk", REFUNDED)])
    pages = [[f"evt_1:{REFUNDED}"]]
    assert counts(await ran(db, Listing(pages), dry_run=True)) == (1, 1, 0, 0)
    assert counts(await ran(db, Listing(pages))) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("answer", "raised", "code"),
    [
        (HistoryTrouble("no_answer"), Retryable, "backfill_unavailable: no_answer"),
        (HistoryRefused("401"), Stop, "backfill_refused: 401"),
    ],
)
async def test_what_ends_it_early_leaves_the_pages_before_and_a_second_run_completes(
    db: Database, stored: Stored, owner: Connection, answer: HistoryAnswer, raised: type[Exception], code: str
) -> None:
    with pytest.raises(raised, match=code):
        await ran(db, Listing([["evt_2"], answer]))
    assert await stored.events() == [("stripe", "evt_2", PAID)]
    assert [action["after"]["stored"] for action in await actions(owner)] == [1]
    assert counts(await ran(db, Listing([["evt_2"], ["evt_1"]]))) == (2, 1, 1, 2)


async def test_a_page_and_its_record_are_one_commit(db: Database, stored: Stored, owner: Connection) -> None:
    await owner.execute("revoke insert on admin_actions from rowclaim_service")
    with pytest.raises(Exception, match="permission denied for table admin_actions"):
        await ran(db, Listing([["evt_1"]]))
    assert await stored.nothing()


async def test_a_run_is_bounded_and_tells_from_where_to_go_on(db: Database, connect: Connect) -> None:
    listing = Listing([["evt_3"], ["evt_2"], ["evt_1"]], endless=True)
    done = await ran(db, listing, pages_max=2)
    assert (counts(done), done.unfinished) == ((2, 2, 0, 2), OLDEST)
    assert len(listing.asked) == 2
    later = done + Backfilled(unfinished=OLDEST + timedelta(days=1))
    assert later.unfinished == OLDEST + timedelta(days=1), "what is not complete later was not looked at before either"
    assert (later + Backfilled()).unfinished == later.unfinished


@pytest.mark.parametrize(
    ("since", "until"),
    [
        (timedelta(days=30, seconds=1), None),
        (datetime(2020, 1, 1, tzinfo=UTC), None),
        (timedelta(hours=1), timedelta(hours=1)),
        (timedelta(hours=1), timedelta(hours=2)),
        (datetime(2100, 1, 1, tzinfo=UTC), None),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_time_that_stripe_does_not_list_is_refused(
    db: Database, owner: Connection, since: datetime | timedelta, until: timedelta | None, dry_run: bool
) -> None:
    listing = Listing([["evt_1"]])
    with pytest.raises(Stop, match="backfill_window"):
        await ran(db, listing, Backfill(since=since, until=until, actor="a", reason="r"), dry_run=dry_run)
    assert listing.asked == []
    assert await actions(owner) == []


async def test_the_time_is_the_databases(db: Database, clock: Clock) -> None:
    await clock.shift(timedelta(days=100))
    listing = Listing([["evt_1"]])
    await ran(db, listing, Backfill(since=timedelta(days=30), until=timedelta(days=29), actor="a", reason="r"))
    (asked,) = listing.asked
    assert asked.until - asked.since == timedelta(days=1)
    assert timedelta(days=69) < asked.since - datetime.now(UTC) < timedelta(days=71)


async def test_a_week_without_a_partition_is_made_first(db: Database, clock: Clock, stored: Stored) -> None:
    await clock.shift(timedelta(weeks=20))
    assert counts(await ran(db, Listing([["evt_1"]]))) == (1, 1, 0, 1)
    assert await stored.bodies() == [b'{"id": "evt_1"}']
