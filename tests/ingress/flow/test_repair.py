"""Replay and unpark: what is given back, what is left alone, what is kept of who asked for it."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import asyncpg
import pytest

from services.ingress import store
from services.ingress.flow.repair import Replay, Replayed, list_parked, replay, unpark, unpark_all
from services.ingress.store import Arrival
from services.kernel import inbox
from services.kernel.db import Database
from services.kernel.deliveries import (
    Delivery,
    DeliveryWorker,
    Done,
    NotOurs,
    Parked,
    Verdict,
    claim_deliveries,
)
from services.kernel.errors import Stop
from services.kernel.inbox import Subscription
from services.operations.store import catch_up
from tests.fixtures.database import Clock, Connect
from tests.ingress.conftest import Stored

PAID = "checkout.session.completed"
OTHER = "invoice.paid"
LEASE = timedelta(seconds=30)

Owner: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


@pytest.fixture
async def operator(connect: Connect) -> Database:
    """The role of operators; fulfillment is owed PAID."""
    await inbox.subscribe(await connect("rowclaim_fulfillment"), "fulfillment", [Subscription("stripe", PAID)])
    return await connect("rowclaim_operator")


async def arrive(connect: Connect, *ids: str, kind: str = PAID, parked: str | None = None) -> list[int]:
    db = await connect("rowclaim_ingress")
    arrived = await store.arrive(db, [Arrival("stripe", one, kind, one.encode(), parked) for one in ids])
    return [event_id for one in ids if (event_id := arrived["stripe", one].event_id) is not None]


async def work(connect: Connect, verdict: Verdict, *, batch_max: int = 50) -> list[str]:
    """Fulfillment works everything off with one verdict; the events it was given."""
    db = await connect("rowclaim_fulfillment")
    seen: list[str] = []

    async def handle(batch: Sequence[Delivery]) -> dict[int, Verdict]:
        seen.extend(delivery.external_id for delivery in batch)
        return {delivery.event_id: verdict for delivery in batch}

    worker = DeliveryWorker(db, "fulfillment", handle, lease=LEASE, batch_max=batch_max)
    while await worker.step():
        pass
    return sorted(seen)


def wanted(*, since: datetime | timedelta = timedelta(hours=1), page: int = 1000, kind: str = PAID) -> Replay:
    return Replay(consumer="fulfillment", kind=kind, since=since, page=page, actor="ada@desk", reason="mails were lost")


async def run(operator: Database, what: Replay, *, dry_run: bool = False) -> list[Replayed]:
    return [page async for page in replay(operator, what, dry_run=dry_run)]


async def test_what_is_finished_is_given_back_and_worked_on_again(
    operator: Database, connect: Connect, stored: Stored, owner: Owner
) -> None:
    await arrive(connect, "evt_1")
    assert await work(connect, Done()) == ["evt_1"]
    await arrive(connect, "evt_2")
    assert await work(connect, NotOurs()) == ["evt_2"]
    tokens = await owner.fetchval("select array_agg(claim_token order by event_id) from webhook_deliveries")
    (page,) = await run(operator, wanted())
    assert (page.put_back, page.made, page.waiting, page.parked, page.without_body) == (2, 0, 0, 0, 0)
    rows = await owner.fetch(
        "select state, edge, claim_token, outcome_token, finished_at from webhook_deliveries order by event_id"
    )
    assert [tuple(row) for row in rows] == [
        ("pending", "replay", tokens[0] + 1, None, None),
        ("pending", "replay_not_ours", tokens[1] + 1, None, None),
    ]
    assert await work(connect, Done()) == ["evt_1", "evt_2"]
    assert {state for _, _, state in await stored.deliveries()} == {"done"}


async def test_what_still_waits_or_is_worked_on_or_parked_is_counted_and_left_alone(
    operator: Database, connect: Connect, stored: Stored
) -> None:
    await arrive(connect, "evt_parked")
    await work(connect, Parked("unreadable"))
    await arrive(connect, "evt_held")
    await claim_deliveries(await connect("rowclaim_fulfillment"), "fulfillment", limit=1, lease=LEASE, floor=None)
    await arrive(connect, "evt_waiting")
    before = await stored.deliveries()
    (page,) = await run(operator, wanted())
    assert (page.put_back, page.made, page.waiting, page.parked) == (0, 0, 2, 1)
    assert await stored.deliveries() == before
    assert page.rings == {}


async def test_an_event_that_was_never_owed_is_owed_now(
    connect: Connect, stored: Stored, operator: Database, owner: Owner
) -> None:
    """A subscription was added after the events had come."""
    await owner.execute("delete from webhook_subscriptions")
    ids = await arrive(connect, "evt_1", "evt_2")
    assert await stored.deliveries() == []
    await inbox.subscribe(await connect("rowclaim_fulfillment"), "fulfillment", [Subscription("stripe", PAID)])
    assert await catch_up(operator) == 0, "what came before it subscribed is nobody's, until a person says so"
    (page,) = await run(operator, wanted())
    assert (page.put_back, page.made, page.rings) == (0, 2, {"stripe": ids[-1]})
    assert await stored.deliveries() == [(event_id, "fulfillment", "pending") for event_id in ids]


async def test_a_dry_run_counts_the_same_and_writes_nothing(
    operator: Database, connect: Connect, stored: Stored, owner: Owner
) -> None:
    await arrive(connect, "evt_1", "evt_2")
    await work(connect, Done())
    await arrive(connect, "evt_3")
    before = await stored.deliveries()
    (would,) = await run(operator, wanted(), dry_run=True)
    assert (would.put_back, would.waiting) == (2, 1)
    assert await stored.deliveries() == before
    assert await owner.fetchval("select count(*) from admin_actions") == 0
    (did,) = await run(operator, wanted())
    assert (did.put_back, did.made, did.waiting) == (would.put_back, would.made, would.waiting)


async def test_pages_commit_one_by_one_and_a_later_run_goes_on_where_one_was_stopped(
    operator: Database, connect: Connect, owner: Owner
) -> None:
    for n in range(3):
        await arrive(connect, f"evt_{n}a", f"evt_{n}b")  # two of one instant: no page ends between them
        await arrive(connect, f"inv_{n}", kind=OTHER)
    await work(connect, Done())
    stopped: Replayed | None = None
    async for page in replay(operator, wanted(page=1), dry_run=False):
        stopped = page
        break
    assert stopped is not None
    assert stopped.put_back == 2
    assert await work(connect, Done()) == ["evt_0a", "evt_0b"]
    rest = await run(operator, wanted(since=stopped.resume, page=1))
    assert [page.put_back for page in rest if page.put_back] == [2, 2]
    assert len(rest) == 5, "the pages between hold another kind"
    assert await work(connect, Done()) == ["evt_1a", "evt_1b", "evt_2a", "evt_2b"]
    total = stopped
    for page in rest:
        total += page
    assert (total.put_back, total.resume) == (6, rest[-1].resume)


async def test_only_the_events_since_then_of_that_kind_and_before_the_start(
    operator: Database, connect: Connect, clock: Clock, stored: Stored
) -> None:
    await inbox.subscribe(await connect("rowclaim_fulfillment"), "fulfillment", [Subscription("stripe", OTHER)])
    await arrive(connect, "evt_old")
    await clock.shift(timedelta(hours=2))
    await arrive(connect, "evt_new")
    await arrive(connect, "inv_new", kind=OTHER)
    await work(connect, Done())
    instant = await operator.value("select rowclaim_now() - interval '3 hours'")
    assert [page.put_back for page in await run(operator, wanted(since=timedelta(hours=1)), dry_run=True)] == [1]
    assert [page.put_back for page in await run(operator, wanted(since=instant), dry_run=True)] == [2]
    assert await run(operator, wanted(since=datetime(2100, 1, 1, tzinfo=UTC))) == []

    async for _ in replay(operator, wanted(page=1), dry_run=False):
        await arrive(connect, "evt_later")
        await work(connect, Done())
    assert {state for _, _, state in await stored.deliveries()} == {"done"}, "the replay did not chase what came later"


@pytest.mark.parametrize(
    "change",
    ["delete from event_bodies where body = 'evt_1'", "update event_bodies set body = '' where body = 'evt_1'"],
    ids=["dropped", "forgotten"],
)
async def test_an_event_whose_body_is_gone_is_counted_and_left_alone(
    operator: Database, connect: Connect, owner: Owner, change: str
) -> None:
    await arrive(connect, "evt_1", "evt_2")
    await work(connect, Done())
    await owner.execute(change)
    (page,) = await run(operator, wanted())
    assert (page.put_back, page.without_body) == (1, 1)
    assert await work(connect, Done()) == ["evt_2"]


async def test_a_kind_the_consumer_is_not_owed_is_refused_with_those_it_is(operator: Database) -> None:
    with pytest.raises(Stop, match="replay_not_subscribed") as refused:
        await run(operator, wanted(kind=OTHER))
    assert refused.value.detail == f"fulfillment is owed: {PAID}"


async def test_each_page_keeps_who_asked_why_and_for_which_events(
    operator: Database, connect: Connect, owner: Owner
) -> None:
    ids = await arrive(connect, "evt_1", "evt_2")
    await work(connect, Done())
    await run(operator, wanted())
    await run(operator, wanted(since=datetime(2100, 1, 1, tzinfo=UTC)))
    (row,) = await owner.fetch("select actor, verb, target, reason, before, after from admin_actions")
    assert tuple(row)[:4] == ("ada@desk", "replay", f"fulfillment {PAID}", "mails were lost")
    assert json.loads(row["before"]) == {"finished": ids, "missing": []}
    assert json.loads(row["after"]) == {"put_back": 2, "made": 0}


# --------------------------------------------------------------------------------------------------------------- unpark


async def test_what_is_parked_is_listed_and_given_back_by_name(
    operator: Database, connect: Connect, stored: Stored, owner: Owner
) -> None:
    one, two = await arrive(connect, "evt_1", "evt_2")
    await work(connect, Parked("unmarked_object"))
    listed = await list_parked(operator, limit=10)
    assert [(p.event_id, p.consumer, p.source, p.kind, p.parked_reason) for p in listed] == [
        (one, "fulfillment", "stripe", PAID, "unmarked_object"),
        (two, "fulfillment", "stripe", PAID, "unmarked_object"),
    ]
    assert [p.event_id for p in await list_parked(operator, limit=1)] == [one]
    done = await unpark(operator, [(one, "fulfillment")], actor="ada@desk", reason="marked by hand")
    assert (done.unparked, done.rings) == (1, {"stripe": one})
    assert await stored.deliveries() == [(one, "fulfillment", "pending"), (two, "fulfillment", "parked")]
    assert await work(connect, Done()) == ["evt_1"]
    (row,) = await owner.fetch("select actor, verb, target, reason, before, after from admin_actions")
    assert tuple(row)[:4] == ("ada@desk", "unpark", f"delivery {one}:fulfillment", "marked by hand")
    assert json.loads(row["before"]) == {"state": "parked", "parked_reason": "unmarked_object"}
    assert json.loads(row["after"]) == {"state": "pending"}


async def test_all_or_none_of_those_named_are_given_back(
    operator: Database, connect: Connect, stored: Stored, owner: Owner
) -> None:
    one, two = await arrive(connect, "evt_1", "evt_2")
    await work(connect, Parked("unreadable"))
    await unpark(operator, [(two, "fulfillment")], actor="ada@desk", reason="looked at it")
    await work(connect, Done())
    before = await stored.deliveries()
    with pytest.raises(Stop, match="delivery_not_parked") as refused:
        await unpark(operator, [(one, "fulfillment"), (two, "fulfillment"), (999, "nobody")], actor="a", reason="b")
    assert refused.value.detail == f"{two}:fulfillment, 999:nobody"
    assert await stored.deliveries() == before
    assert await owner.fetchval("select count(*) from admin_actions") == 1


async def test_what_is_stored_only_to_be_shown_cannot_be_given_back(
    operator: Database, connect: Connect, stored: Stored
) -> None:
    (thin,) = await arrive(connect, "evt_thin", parked="thin_event")
    with pytest.raises(Stop, match="delivery_shown_only") as refused:
        await unpark(operator, [(thin, "ingress")], actor="ada@desk", reason="why not")
    assert refused.value.detail == f"{thin}:ingress"
    assert (await unpark_all(operator, "thin_event", actor="ada@desk", reason="why not")).unparked == 0
    assert await stored.deliveries() == [(thin, "ingress", "parked")]


async def test_all_of_one_code_are_given_back_in_pages_each_looked_at_once(
    operator: Database, connect: Connect, stored: Stored, monkeypatch: pytest.MonkeyPatch, owner: Owner
) -> None:
    monkeypatch.setattr("services.ingress.flow.repair.UNPARK_PAGE", 2)
    ids = await arrive(connect, *(f"evt_{n}" for n in range(5)))
    await work(connect, Parked("unmarked_object"))
    await arrive(connect, "evt_other")
    await work(connect, Parked("unreadable"))
    done = await unpark_all(operator, "unmarked_object", actor="ada@desk", reason="the mark is read now")
    assert done.unparked == 5
    states = {event_id: state for event_id, _, state in await stored.deliveries()}
    assert [states[event_id] for event_id in ids] == ["pending"] * 5
    assert list(states.values()).count("parked") == 1
    assert await owner.fetchval("select count(*) from admin_actions where verb = 'unpark'") == 5


async def test_a_delivery_given_back_is_fenced_off_from_whoever_held_it(
    operator: Database, connect: Connect, owner: Owner
) -> None:
    await arrive(connect, "evt_1")
    await work(connect, Parked("unreadable"))
    (token, attempt) = await owner.fetchrow("select claim_token, attempt from webhook_deliveries")
    ((event_id, _),) = [(p.event_id, p.consumer) for p in await list_parked(operator, limit=1)]
    await unpark(operator, [(event_id, "fulfillment")], actor="ada@desk", reason="looked at it")
    row = await owner.fetchrow("select claim_token, attempt, edge, parked_reason, crash_reaps from webhook_deliveries")
    assert tuple(row) == (token + 1, attempt, "unpark", None, 0)
