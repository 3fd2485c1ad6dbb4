"""From the front door to the invitation, through a real broker, with every service its own process.

Stripe posts signed webhooks to `rowclaim serve`; it stores them and rings; `rowclaim consume` hears the ring and works.
What can go wrong between them goes wrong here: processes killed and frozen, the broker stopped and wiped, poison in the
topic, members that come and go while work is under way. The end is always the same: each buyer invited, once.
"""

import itertools
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from services.sandbox.control import SandboxControl
from services.sandbox.embedded.process import free_port
from services.sandbox.faults import Act, Fault, Moment
from services.sandbox.log import Vendor
from services.sandbox.outbox import Plan, Posting
from services.sandbox.wire import DeliverStripe, ListStripeEvents
from tests.fixtures.brokers import BrokerServer
from tests.fixtures.database import Connection
from tests.fixtures.fulfillment import House
from tests.journeys.premises import PARTITIONS, SETTLED_S, Premises, told
from tests.waiting import wait_until

# Each wait has its own bound; together they may take longer than a test usually may.
pytestmark = pytest.mark.timeout(420)


@pytest.fixture
async def premises(
    house: House, control: SandboxControl, owner: Connection, own_broker: BrokerServer, tmp_path: Path
) -> AsyncIterator[Premises]:
    opened = Premises(house, control, owner, own_broker, tmp_path)
    yield opened
    await opened.close()


async def test_a_signed_webhook_becomes_a_ring_and_the_ring_an_invitation(premises: Premises) -> None:
    await premises.open("one")
    door = f"http://127.0.0.1:{premises.ports['serve']}/webhooks/stripe"
    async with httpx.AsyncClient(trust_env=False) as http:
        assert (await http.post(door, content=b"{}", headers={"stripe-signature": "t=1,v1=00"})).status_code == 400
    assert await premises.ends() == 0, "nobody rings for what was not believed"
    await premises.sells("ada", "grace", "edsger")
    await premises.until_delivered("ada", "grace", "edsger")
    await premises.until_heard()
    assert await premises.rung("one") == await premises.ends()
    assert (await premises.stop("one"), await premises.stop("serve")) == (0, 0)


async def test_a_consumer_killed_between_ring_and_commit_is_rung_again_elsewhere(premises: Premises) -> None:
    await premises.open()
    await premises.start("doomed", dies_at=("kafka", "before", "commit"))
    await premises.sells("ada")
    doomed = premises.processes["doomed"]
    assert await doomed.gone_within(SETTLED_S)
    assert doomed.exit_code == -signal.SIGKILL
    await premises.start("heir")
    await premises.sells("grace")
    await premises.until_delivered("ada", "grace")
    await premises.until_heard()
    assert await premises.rung("heir") == await premises.ends(), "the ring it had in hand came again"


async def test_a_consumer_killed_at_the_vendor_leaves_one_purchase_in_sight_and_all_others_to_its_heir(
    premises: Premises,
) -> None:
    await premises.open("one", "two")
    premises.house.world.faults.add(Fault(Vendor.GITHUB, Act.HANG, method="PUT", login="stranded"))
    await premises.sells("stranded")

    async def holder() -> str | None:
        row = await premises.owner.fetchrow(
            "select claimed_by from purchases where github_handle = 'stranded' and fulfillment_state = 'in_progress'"
        )
        called = any(call.subject == "stranded" for call in premises.house.calls())
        return row["claimed_by"] if row and called else None

    claimed_by = await wait_until(holder, within_s=SETTLED_S, what="GitHub called, not answering")
    assert claimed_by is not None
    premises.processes[premises.named(int(claimed_by.split(":")[1]))].kill()
    await premises.sells("ada", "grace")
    await premises.until_delivered("ada", "grace")
    await premises.until_heard()
    state = "select fulfillment_state from purchases where github_handle = 'stranded'"
    assert await premises.owner.fetchval(state) == "in_progress", "whether GitHub did it is for a person to say"
    purchase = await premises.owner.fetchval("select id::text from purchases where github_handle = 'stranded'")
    forced = await premises.house.command(
        *("retrigger", purchase, "--force", "--reason", "its consumer was killed"), **premises.settings
    )
    assert forced.exit == 0, forced.err
    await premises.until_delivered("stranded")


@pytest.mark.parametrize("fate", ["stopped", "wiped"])
async def test_the_broker_goes_and_comes_back_and_nobody_is_restarted(premises: Premises, fate: str) -> None:
    """What is paid meanwhile is found by the sweeps; what is paid afterwards is rung for again."""
    await premises.open("one", "two")
    await premises.sells("before")
    await premises.until_delivered("before")
    await premises.broker.stop()
    await premises.sells("meanwhile")
    await premises.until_delivered("meanwhile")
    await (premises.broker.wipe() if fate == "wiped" else premises.broker.start())
    await premises.make_topics()
    rung, numbers = await premises.rung("one", "two"), itertools.count()

    async def rung_again() -> bool:
        """A new sale a look: a ring may be lost with the log, or to members that do not know of its loss yet."""
        buyer = f"after-{next(numbers)}"
        await premises.sells(buyer)
        await premises.until_delivered(buyer)
        return await premises.rung("one", "two") > rung

    await wait_until(rung_again, within_s=SETTLED_S, what="a ring over the broker that came back")
    for name in ("one", "two", "serve"):
        await premises.until_ready(name, premises.processes[name])
        assert await premises.stop(name) == 0


async def test_a_consumer_is_told_to_stop_while_the_broker_is_away(premises: Premises) -> None:
    await premises.open("one")
    premises.broker.kill()
    begun = time.monotonic()
    assert await premises.stop("one") == 0
    assert time.monotonic() - begun < 25.0  # a second as a rule; its group cannot be left


async def test_poison_is_set_aside_with_its_bytes_and_its_neighbours_are_heard(premises: Premises) -> None:
    await premises.open("one")
    poison: list[bytes | None] = [b"{not json", b"\xff\xfe\x00", None, b'{"ids":["1"]}', b'{"ids":[1.5]}', b"1", b""]
    for number, value in enumerate(poison):
        await premises.tell(value, told([10**12 + number]), partition=number % len(PARTITIONS))
    await premises.sells("ada")
    await premises.until_delivered("ada")
    await premises.until_heard(more_than=2 * len(poison))
    assert await premises.rung("one") == await premises.ends() - len(poison)
    found = await premises.dead_letters(len(poison))
    assert sorted(map(repr, found)) == sorted(map(repr, poison))
    assert await premises.stop("one") == 0


async def test_members_share_the_partitions_and_come_and_go_while_a_vendor_is_slow(premises: Premises) -> None:
    await premises.open("one", "two")
    for partition in range(len(PARTITIONS)):
        await premises.tell(told([1]), partition=partition)
    await premises.until_heard(more_than=len(PARTITIONS) - 1)
    assert [await premises.rung("one"), await premises.rung("two")] == [2, 2], "half of the partitions each"
    premises.house.world.faults.add(
        Fault(Vendor.GITHUB, Act.LATE, at=Moment.AFTER, method="PUT", delay_ms=1_000, times=None)
    )
    buyers = [f"buyer-{number}" for number in range(6)]
    await premises.sells(*buyers[:3])
    await wait_until(lambda: premises.house.calls(), within_s=SETTLED_S, what="an attempt under way")
    await premises.start("three")  # everybody's partitions are dealt out anew
    await premises.sells(*buyers[3:])
    assert await premises.stop("one") == 0, "it finished the attempt in hand and left"
    await premises.until_delivered(*buyers)
    await premises.until_heard()
    assert await premises.owner.fetchval("select max(fulfillment_attempts) from purchases") == 1


async def test_a_frozen_member_loses_its_partitions_and_is_taken_back_when_it_wakes(premises: Premises) -> None:
    """To its group it is dead; what it does when it wakes must hurt nobody."""
    await premises.open("one", "two")
    frozen = premises.processes["one"]
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        for partition in range(len(PARTITIONS)):
            await premises.tell(told([1]), partition=partition)
        await premises.sells("ada")
        await premises.until_delivered("ada")
        await premises.until_heard(more_than=len(PARTITIONS))  # all of them, by the other one
        assert await premises.rung("two") == await premises.ends()
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    await premises.sells("grace")
    await premises.until_delivered("grace")
    heard = await premises.ends()

    async def rung_again() -> bool:
        for partition in range(len(PARTITIONS)):
            await premises.tell(told([1]), partition=partition)
        return await premises.rung("one") > 0

    await wait_until(rung_again, within_s=SETTLED_S, what="the member that woke has partitions again")
    await premises.until_heard(more_than=heard)
    assert (await premises.stop("one"), await premises.stop("two")) == (0, 0)


async def test_every_event_thrice_and_every_ring_lost_or_heard_twenty_times_is_one_invitation_each(
    premises: Premises,
) -> None:
    await premises.open("one", "two", posting=Posting.HELD)
    await premises.stop("serve")
    deaf = {"ROWCLAIM_KAFKA_BOOTSTRAP": f"127.0.0.1:{free_port()}"}
    await premises.start("serve", **deaf)
    buyers = [f"buyer-{number}" for number in range(8)]
    await premises.sells(*buyers)
    events = tuple(event["id"] for event in await premises.control.do(ListStripeEvents()))
    posted = await premises.control.do(DeliverStripe(Plan(events, copies=3, simultaneous=True, shuffle_seed=7)))
    assert all(one.taken for one in posted)
    assert await premises.ends() == 0, "every ring was lost"
    await premises.until_delivered(*buyers)
    rings = [told([event]) for event in await premises.events()] * 20
    random.Random(20261201).shuffle(rings)
    await premises.tell(*rings)
    await premises.until_heard(more_than=len(rings) - 1)
    assert await premises.owner.fetchval("select max(fulfillment_attempts) from purchases") == 1
    premises.nothing_twice()
