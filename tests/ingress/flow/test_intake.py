"""The way in under concurrency, lost answers and lost rings: one row an event, a 2xx for each, work done once."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta

import asyncpg
import pytest
import structlog
from prometheus_client import REGISTRY

from services.ingress.flow import intake as intake_module
from services.ingress.flow.intake import Intake, Outside, Verifier
from services.ingress.machine import Headers, Rejected, Rejection, Source, Verdict, Verified
from services.kernel import doors, inbox
from services.kernel.deliveries import Delivery, DeliveryWorker, Done
from services.kernel.deliveries import Verdict as Judged
from services.kernel.doors import Door as WayOut
from services.kernel.errors import Refusal, Retryable
from services.kernel.inbox import Subscription
from services.kernel.triggers import Doorbell, Kafka, Publisher
from services.kernel.worker import Worker
from services.operations.store import owe_missing
from services.sandbox.embedded.process import free_ports
from tests.fixtures.database import Clock, Connect
from tests.ingress.conftest import FULFILLMENT, Door, OpenDoor, Stored, make_door
from tests.ingress.signing import NEW, OLD, stripe_event, stripe_headers
from tests.waiting import wait_until

STRIPE = "stripe.events.v1"


def written_alone() -> float:
    return REGISTRY.get_sample_value("rowclaim_batch_alone_total", {"worker": "ingress"}) or 0.0


class Believer:
    """Believes everything: the body is the id."""

    def verify(self, headers: Headers, body: bytes) -> Verdict:
        return Verified(body.decode(), "checkout.session.completed", secret="none")


def intake_of(door: Door, *, waiting_max: int = 2048) -> Intake:
    verifiers: Mapping[Source, Verifier] = {Source.STRIPE: Believer(), Source.CLERK: Believer()}
    return Intake(door.db, Outside(verifiers=verifiers, bell=door.bell), waiting_max=waiting_max)


# ------------------------------------------------------------------------------------------------------- the same event


async def test_one_event_at_two_doors_at_one_instant_is_one_row(
    open_door: OpenDoor, door: Door, stored: Stored
) -> None:
    other = await open_door()
    for n in range(20):
        body = stripe_event(f"evt_{n}")
        answers = await asyncio.gather(door.stripe(body), other.stripe(body))
        assert sorted(answer.status_code for answer in answers) in ([200, 202], [202, 202])
        assert [answer.json()["event"] for answer in answers].count("stored") == 1
    events, deliveries = await stored.events(), await stored.deliveries()
    assert [event[1] for event in events] == [f"evt_{n}" for n in range(20)]
    assert len(deliveries) == 20
    rung = {event_id for _, ids in [*door.bell.rings, *other.bell.rings] for event_id in ids}
    assert rung == {event_id for event_id, _, _ in deliveries}


async def test_one_event_many_times_in_one_batch_is_one_row(door: Door, stored: Stored) -> None:
    body = stripe_event()
    answers = await asyncio.gather(*(door.stripe(body) for _ in range(20)))
    assert {answer.status_code for answer in answers} <= {200, 202}
    assert len(await stored.events()) == 1
    assert len(await stored.bodies()) == 1


async def test_two_endpoints_sign_one_event_differently_and_it_is_one_row(door: Door, stored: Stored) -> None:
    body = stripe_event()
    first = await door.stripe(body, stripe_headers(body, OLD))
    second = await door.stripe(body, stripe_headers(body, NEW, offset_s=-1))
    assert (first.status_code, second.status_code) == (202, 200)
    assert len(await stored.events()) == 1


async def test_a_captured_request_sent_again_is_a_duplicate(door: Door, stored: Stored) -> None:
    body = stripe_event()
    captured = stripe_headers(body)
    assert [(await door.stripe(body, captured)).status_code for _ in range(3)] == [202, 200, 200]
    assert len(await stored.deliveries()) == 1


async def test_an_id_is_a_senders_own(door: Door, stored: Stored) -> None:
    intake = intake_of(door)
    assert await intake.receive(Source.STRIPE, [], b"one_id") == "stored"
    assert await intake.receive(Source.CLERK, [], b"one_id") == "stored"
    assert await intake.receive(Source.CLERK, [], b"one_id") == "duplicate"
    assert len(await stored.events()) == 2


async def test_the_loser_of_a_race_is_answered_and_leaves_the_ring_to_the_winner(
    door: Door, owner: "asyncpg.Connection[asyncpg.Record]", stored: Stored
) -> None:
    winner = owner.transaction()
    await winner.start()
    await owner.execute(
        "insert into event_ids (source, external_id, kind, received_at)"
        " values ('stripe', 'evt_1', 'checkout.session.completed', now())"
    )
    before = written_alone()
    losing = asyncio.ensure_future(door.stripe(stripe_event("evt_1")))
    # Well below the role's two seconds: everybody behind the batch waits as long as it does.
    await wait_until(lambda: written_alone() > before, within_s=1.5, what="the batch gave the lock up")
    assert (await door.stripe(stripe_event("evt_2"))).status_code == 202, "nobody else waits for that lock"
    assert not losing.done()
    await winner.commit()
    answer = await losing
    assert (answer.status_code, answer.json()) == (200, {"event": "duplicate"})
    (delivery,) = await stored.deliveries()
    assert door.bell.rings == [(STRIPE, [delivery[0]])], "for evt_2 alone"


# ------------------------------------------------------------------------------------------- what is owed is rung


async def test_a_repeated_event_rings_until_its_work_is_done(
    door: Door, connect: Connect, owner: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    body = stripe_event()
    await door.stripe(body)
    ((_, ids),) = door.bell.rings
    await door.stripe(body)
    assert door.bell.rings == [(STRIPE, ids)] * 2
    assert await finish_everything(connect) == [ids]
    await door.stripe(body)
    assert door.bell.rings == [(STRIPE, ids)] * 2, "its work is done"
    assert await owner.fetchval("select count(*) from event_ids") == 1


async def finish_everything(connect: Connect) -> list[list[int]]:
    """Fulfillment works its deliveries off; the ids of each batch."""
    worked: list[list[int]] = []

    async def handle(batch: Sequence[Delivery]) -> Mapping[int, Judged]:
        worked.append([delivery.event_id for delivery in batch])
        return {delivery.event_id: Done() for delivery in batch}

    db = await connect("rowclaim_fulfillment")
    worker = DeliveryWorker(db, "fulfillment", handle, lease=timedelta(seconds=30), batch_max=50)
    while await worker.step():
        pass
    return worked


@pytest.mark.promise("F91")
async def test_with_the_broker_down_an_event_is_2xx_twice_one_row_and_its_work_done_once(
    door: Door, connect: Connect, stored: Stored
) -> None:
    (nobody_listens,) = free_ports(1)
    doorbell = Doorbell(Publisher(Kafka(bootstrap=f"127.0.0.1:{nobody_listens}"), bound_s=0.2))
    stopping = asyncio.Event()
    ringing = asyncio.ensure_future(doorbell.run(stopping))

    def unpublished() -> float:
        return REGISTRY.get_sample_value("rowclaim_rings_total", {"topic": STRIPE, "result": "unpublished"}) or 0.0

    before = unpublished()
    deaf = make_door(door.db, doorbell)
    body = stripe_event()
    assert (await deaf.stripe(body)).status_code == 202
    await wait_until(lambda: unpublished() == before + 1, within_s=10, what="the first ring is lost")
    assert (await deaf.stripe(body)).status_code == 200
    await wait_until(lambda: unpublished() == before + 2, within_s=10, what="it was rung for again")
    stopping.set()
    await ringing
    await deaf.http.aclose()
    assert len(await stored.events()) == 1
    ((event_id, _, _),) = await stored.deliveries()
    assert await finish_everything(connect) == [[event_id]]
    assert await stored.deliveries() == [(event_id, "fulfillment", "done")]


@pytest.mark.promise("F33")
async def test_with_every_ring_dropped_the_worker_finds_the_delivery_and_repeats_it_until_it_is_done(
    connect: Connect, open_door: OpenDoor, clock: Clock, stored: Stored
) -> None:
    """The event even came before its consumer's subscription was committed: the sweep makes the delivery."""
    door = await open_door()
    fulfillment = await connect("rowclaim_fulfillment")
    async with fulfillment.transaction() as subscribing:
        await inbox.subscribe(subscribing, "fulfillment", FULFILLMENT)
        assert (await door.stripe(stripe_event())).status_code == 202
    assert await stored.deliveries() == []
    await clock.shift(timedelta(seconds=4))
    owed = await owe_missing(fulfillment, timedelta(seconds=30))
    assert [pair.consumer for pair in owed] == ["fulfillment"]

    tries: list[int] = []
    stopping = asyncio.Event()

    async def handle(batch: Sequence[Delivery]) -> Mapping[int, Judged]:
        tries.append(len(batch))
        if len(tries) < 3:
            raise Retryable("database_unavailable", "not yet")
        stopping.set()
        return {delivery.event_id: Done() for delivery in batch}

    deliveries = DeliveryWorker(fulfillment, "fulfillment", handle, lease=timedelta(seconds=30), batch_max=50)
    shifting = asyncio.ensure_future(keep_shifting(clock, stopping))
    async with asyncio.timeout(30):
        await Worker("fulfillment", deliveries.step, tick_s=0.01, jitter=lambda s: s / 20).run(stopping)
    await shifting
    assert tries == [1, 1, 1]
    assert [state for _, _, state in await stored.deliveries()] == ["done"]


async def keep_shifting(clock: Clock, stopping: asyncio.Event) -> None:
    """What was put back is due again in a second: let it pass."""
    while not stopping.is_set():
        await clock.shift(timedelta(seconds=1))
        await asyncio.sleep(0.01)


# ------------------------------------------------------------------------------------------------ what goes wrong


async def test_a_commit_whose_answer_is_lost_is_answered_and_rung_for(
    door: Door, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    def lose_the_first_commit(way: WayOut, what: str, moment: str) -> None:
        if (way, what, moment) == (WayOut.DATABASE, "commit", "after") and not lost:
            lost.append(what)
            raise ConnectionResetError("the server committed, and we did not hear it")

    previous = doors.watch(lose_the_first_commit)
    try:
        answers = await asyncio.gather(*(door.stripe(stripe_event(f"evt_{n}")) for n in range(3)))
    finally:
        doors.watch(previous)
    assert lost == ["commit"]
    assert {answer.status_code for answer in answers} <= {200, 202}
    events, deliveries = await stored.events(), await stored.deliveries()
    assert len(events) == len(deliveries) == 3
    rung = [event_id for _, ids in door.bell.rings for event_id in ids]
    assert sorted(rung) == [event_id for event_id, _, _ in deliveries]


async def test_events_in_opposite_order_at_two_doors_never_deadlock(
    open_door: OpenDoor, door: Door, stored: Stored
) -> None:
    other = await open_door()
    before = written_alone()
    intakes = [intake_of(door), intake_of(other)]
    for burst in range(15):
        ids = [f"evt_{burst}_{n}".encode() for n in range(60)]
        calls = [intakes[0].receive(Source.STRIPE, [], one) for one in ids]
        calls += [intakes[1].receive(Source.STRIPE, [], one) for one in reversed(ids)]
        receipts = await asyncio.gather(*calls)
        assert len(receipts) == 120
    assert written_alone() == before, "no batch failed"
    assert len(await stored.events()) == 15 * 60


async def test_a_week_without_a_partition_is_repaired_by_the_first_event(
    door: Door, clock: Clock, stored: Stored, connect: Connect
) -> None:
    await clock.shift(timedelta(days=120))
    assert await inbox.weeks_ahead(await connect()) < 0
    body = stripe_event()
    assert (await door.stripe(body)).status_code == 202
    assert await stored.bodies() == [body]
    assert await inbox.weeks_ahead(await connect()) == inbox.PARTITION_WEEKS


async def test_an_event_the_database_refuses_fails_alone(
    door: Door, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def needless(*_: object) -> int:
        raise AssertionError("no partition is missing")

    monkeypatch.setattr(inbox, "make_partitions", needless)

    class Loose(Believer):
        def verify(self, headers: Headers, body: bytes) -> Verdict:
            return Verified(body.decode(), "" if body == b"bad" else "user.created", secret="none")

    intake = Intake(door.db, Outside(verifiers={Source.STRIPE: Loose()}, bell=door.bell))
    results = await asyncio.gather(
        *(intake.receive(Source.STRIPE, [], one) for one in (b"good", b"bad", b"fair")), return_exceptions=True
    )
    assert [isinstance(result, asyncpg.CheckViolationError) for result in results] == [False, True, False]
    assert sorted(event[1] for event in await stored.events()) == ["fair", "good"]


async def test_more_than_it_holds_is_told_to_come_again(
    door: Door, owner: "asyncpg.Connection[asyncpg.Record]", stored: Stored
) -> None:
    intake = intake_of(door, waiting_max=2)
    table = owner.transaction()
    await table.start()
    await owner.execute("lock table event_ids in access exclusive mode")
    waiting = [asyncio.ensure_future(intake.receive(Source.STRIPE, [], b"evt_%d" % n)) for n in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Retryable, match="ingress_full"):
        await intake.receive(Source.STRIPE, [], b"evt_9")
    await table.rollback()
    assert await asyncio.gather(*waiting) == ["stored", "stored"]
    assert len(await stored.events()) == 2


async def test_a_lock_that_outlasts_the_single_path_is_a_503(
    door: Door, owner: "asyncpg.Connection[asyncpg.Record]", stored: Stored
) -> None:
    table = owner.transaction()
    await table.start()
    await owner.execute("lock table event_ids in access exclusive mode")
    answer = await door.stripe(stripe_event())
    assert (answer.status_code, answer.json()["code"]) == (503, "database_busy")
    await table.rollback()
    assert await stored.nothing()


async def test_a_database_that_does_not_answer_is_told_while_the_sender_listens(
    door: Door, owner: "asyncpg.Connection[asyncpg.Record]", stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_module, "ANSWER_WITHIN_S", 0.2)
    table = owner.transaction()
    await table.start()
    await owner.execute("lock table event_ids in access exclusive mode")
    answer = await door.stripe(stripe_event())
    assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
    await table.rollback()
    await door.intake.close()
    assert (await door.stripe(stripe_event())).json() == {"event": "duplicate"}, "it was stored after all"
    assert len(await stored.events()) == 1


async def test_close_waits_for_the_requests_taken(door: Door, owner: "asyncpg.Connection[asyncpg.Record]") -> None:
    intake = intake_of(door)
    taken = asyncio.ensure_future(intake.receive(Source.STRIPE, [], b"evt_1"))
    await asyncio.sleep(0)
    await intake.close()
    assert taken.done()
    assert await owner.fetchval("select count(*) from event_ids") == 1


# ------------------------------------------------------------------------------------------------------ what is told


async def test_garbage_fills_no_log(door: Door) -> None:
    class Disbeliever:
        def verify(self, headers: Headers, body: bytes) -> Verdict:
            return Rejected(Rejection.SIGNATURE_MISSING if body else Rejection.SIGNATURE_MISMATCH)

    intake = Intake(door.db, Outside(verifiers={Source.STRIPE: Disbeliever()}, bell=door.bell))

    def refused() -> float:
        labels = {"source": "stripe", "reason": "signature_missing"}
        return REGISTRY.get_sample_value("rowclaim_ingress_refused_total", labels) or 0.0

    before = refused()
    with structlog.testing.capture_logs() as lines:
        for body in [b"x"] * 50 + [b""]:
            with pytest.raises(Refusal):
                await intake.receive(Source.STRIPE, [], body)
    assert refused() == before + 50
    assert len(lines) <= 5, "one a second and reason, however many come"
    assert {line["code"] for line in lines} == {"signature_missing", "signature_mismatch"}


async def test_a_senders_rendering_is_told_once(door: Door) -> None:
    with structlog.testing.capture_logs() as lines:
        for n, version in enumerate(["2020-08-27", "2026-10-28.endive", "2020-08-27", None]):
            await door.stripe(stripe_event(f"evt_{n}", api_version=version))
    seen = [line["api_version"] for line in lines if line["event"] == "ingress.version_seen"]
    assert seen == ["2020-08-27", "2026-10-28.endive"]


async def test_the_card_of_a_kind_decides_who_is_owed(door: Door, connect: Connect, stored: Stored) -> None:
    await inbox.subscribe(await connect("rowclaim_fulfillment"), "second", [Subscription("stripe", "charge.refunded")])
    await door.stripe(stripe_event("evt_1", "charge.refunded"))
    await door.stripe(stripe_event("evt_2"))
    assert [consumer for _, consumer, _ in await stored.deliveries()] == ["second", "fulfillment"]
