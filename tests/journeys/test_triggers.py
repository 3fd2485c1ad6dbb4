"""Triggers are doorbells: with all of them lost, or each heard fifty times in any order, the end is the same.

The end is written down by hand, for a day's events: buyers who pay, one whose bank debit clears, one whose does not,
names that nobody bears, no name at all; each event delivered twice.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import pytest
import stripe
from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.triggers import STRIPE_EVENTS
from services.fulfillment.consumer import SERVICE
from services.ingress.flow.intake import Bell, Intake, Outside
from services.ingress.gateway.stripe import StripeVerifier
from services.ingress.machine import Source
from services.kernel.sweep import run_sweep
from services.kernel.triggers import Publisher
from services.operations.consuming import begin, subscribed, sweeps_of
from services.operations.process import Process, Task, run_tasks
from services.operations.subscribers import run_subscribers
from services.sandbox.stripe.books import API_VERSION
from services.sandbox.stripe.buyer import Payment
from services.sandbox.stripe.resources.checkout_sessions import open_session
from services.sandbox.stripe.versions import render_event
from services.sandbox.world import World
from tests.fixtures.brokers import BrokerServer, settings_of
from tests.fixtures.database import Clock, Connect, Connection
from tests.fixtures.fulfillment import House
from tests.fixtures.listening import told
from tests.waiting import wait_until

SECRET: Final = "whsec_journey"
PAYING: Final = tuple(f"buyer-{number}" for number in range(8))

# Login, state, attempts. Nobody is attempted twice, whatever rings.
PURCHASES: Final = sorted(
    [
        *((login, "delivered", 1) for login in PAYING),
        ("debit-cleared", "delivered", 1),
        ("nobody-here", "failed", 1),
        ("", "failed", 1),
    ]
)
INVITED: Final = sorted([*PAYING, "debit-cleared"])


@dataclass
class Recorded:
    """A bell that nobody hears."""

    ids: list[int] = field(default_factory=list)

    def ring(self, topic: str, ids: Iterable[int]) -> None:
        self.ids += ids


def a_day(world: World) -> list[dict[str, Any]]:
    """What buyers do; the checkout events it causes, in Stripe's order."""

    def session(login: str | None) -> str:
        metadata = {"rowclaim_slice": "fulfillment"} | ({"github_username": login} if login else {})
        price = {"currency": "usd", "unit_amount": 4900, "product_data": {"name": "Course"}}
        params = {
            "mode": "payment",
            "success_url": "https://shop.example/thanks",
            "customer_email": f"{login or 'somebody'}@example.com",
            "metadata": metadata,
            "line_items": [{"quantity": 1, "price_data": price}],
        }
        return str(open_session(world.books, params)["id"])

    for login in INVITED:
        world.github.add_account(login)
    for login in (*PAYING, "nobody-here", None):
        world.buyer.complete(session(login))
    for login, succeeded in (("debit-cleared", True), ("debit-bounced", False)):
        debit = session(login)
        world.buyer.complete(debit, Payment.UNPAID)
        world.buyer.settle(debit, succeeded=succeeded)
    return [event for event in world.books.table("event").values() if event["type"].startswith("checkout.session.")]


async def store(connect: Connect, world: World, bell: Bell) -> None:
    """Every event in at the door, twice."""
    intake = Intake(await connect("rowclaim_ingress"), Outside({Source.STRIPE: StripeVerifier([SECRET])}, bell))
    for event in [*a_day(world)] * 2:
        body = json.dumps(render_event(event, API_VERSION)).encode()
        signature = stripe.WebhookSignature.generate_signature_header(body.decode(), SECRET)
        await intake.receive(Source.STRIPE, [(b"stripe-signature", signature.encode())], body)
    await intake.close()


@asynccontextmanager
async def consuming(process: Process, *, ringing: bool) -> AsyncIterator[None]:
    """What `rowclaim consume` runs: workers and sweeps, and the subscribers where anything may ring."""
    slices = await begin(process, [SERVICE])
    tasks: dict[str, Task] = {worker.name: worker.run for one in slices for worker in one.consumption.workers}
    for sweep in await sweeps_of(process, slices):
        tasks[sweep.name] = lambda stop, sweep=sweep: run_sweep(sweep, stop)
    if ringing:
        broker = subscribed(process, slices)
        tasks["subscribers"] = lambda stop: run_subscribers(broker, stop)
    running = asyncio.create_task(run_tasks(process, tasks))
    try:
        yield
    finally:
        process.stopping.set()
        await running


async def the_end(house: House, owner: Connection) -> None:
    """Wait until every delivery is done, then compare with what was written down."""

    async def all_done() -> bool:
        return bool(await owner.fetchval("select bool_and(state = 'done') from webhook_deliveries"))

    await wait_until(all_done, within_s=60, what="every delivery done")
    rows = await owner.fetch(
        "select coalesce(github_handle, ''), fulfillment_state, fulfillment_attempts from purchases"
    )
    assert sorted(tuple(row) for row in rows) == PURCHASES
    assert Counter(house.invited()) == Counter(INVITED)
    assert Counter(mail.recipients for mail in house.sink.messages) == Counter(
        (f"{login}@example.com",) for login in INVITED
    )


async def all_heard(bootstrap: str, *, partitions: int, records: int) -> None:
    """Wait until every record of the topic was read, and what it rang for taken up."""
    where = [TopicPartition(STRIPE_EVENTS.name, number) for number in range(partitions)]

    async def nothing_left() -> bool:
        reader = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=f"{SERVICE.name}.{STRIPE_EVENTS.name}")
        reader.assign(where)
        try:
            await reader.start()
            ends = await reader.end_offsets(where)
            assert sum(ends.values()) == records
            return [await reader.committed(one) or 0 for one in where] == [ends[one] for one in where]
        finally:
            await reader.stop()

    await wait_until(nothing_left, within_s=60, what="every ring heard")


@pytest.mark.promise("F33")
async def test_with_every_trigger_lost_the_sweeps_reach_the_end(
    house: House, connect: Connect, owner: Connection
) -> None:
    async with house.runtime() as process, consuming(process, ringing=False):
        silence = Recorded()
        await store(connect, house.world, silence)
        assert silence.ids, "the door did ring"
        await the_end(house, owner)


async def test_deliveries_that_were_never_made_are_made_by_the_sweep(
    house: House, connect: Connect, owner: Connection, clock: Clock
) -> None:
    async with house.runtime() as process:
        await begin(process, [SERVICE])  # subscribed before anything arrives
        await store(connect, house.world, Recorded())
        expected = await owner.fetchval("select count(*) from webhook_deliveries")
        lost = await owner.execute("delete from webhook_deliveries where event_id % 2 = 0")
        assert lost != "DELETE 0"
        await clock.shift(timedelta(seconds=5))
        async with consuming(process, ringing=False):

            async def all_there() -> bool:
                return bool(await owner.fetchval("select count(*) from webhook_deliveries") == expected)

            await wait_until(all_there, within_s=30, what="the missing deliveries")
            await the_end(house, owner)


@pytest.mark.promise("F21")
async def test_every_trigger_fifty_times_shuffled_reaches_the_same_end(
    house: House, connect: Connect, owner: Connection, own_broker: BrokerServer
) -> None:
    heard = settings_of(own_broker)
    assert (await house.command("topics", **heard)).exit == 0
    async with (
        house.runtime(**heard) as first,
        house.runtime(**heard) as second,
        consuming(first, ringing=True),
        consuming(second, ringing=True),
    ):
        recorded = Recorded()
        await store(connect, house.world, recorded)
        rings = list(recorded.ids) * 50
        random.Random(20261130).shuffle(rings)
        publisher = Publisher(first.kafka)
        for start in range(0, len(rings), 50):
            await publisher.publish(STRIPE_EVENTS.name, told(",".join(map(str, rings[start : start + 50]))))
        await the_end(house, owner)
        for event_id in rings[:50]:
            await publisher.publish(STRIPE_EVENTS.name, told(str(event_id)))
        await publisher.close()
        await all_heard(own_broker.bootstrap, partitions=STRIPE_EVENTS.partitions, records=len(rings) // 50 + 50)
    await the_end(house, owner)  # of processes that have finished whatever the last ring began
