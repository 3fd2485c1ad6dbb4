"""Sending: retries, plans, and what a stop forgets (signatures and order: see the vendors' own tests)."""

import asyncio

import pytest

from services.sandbox import outbox as module
from services.sandbox.outbox import Outbox, Parcel, Sender
from services.sandbox.world import World
from tests.sandbox.receiver import Receiver
from tests.waiting import wait_until


def parcel(receiver: Receiver, body: bytes = b'{"id": "evt_1"}') -> Parcel:
    return Parcel(Sender.CLERK, "ep_1", "evt_1", "user.created", receiver.url, body, lambda: {"x-attempt": "now"})


async def test_bytes_arrive_as_they_are(world: World, receiver: Receiver) -> None:
    body = '{"a":  "é\\u00e9"}\n'.encode()
    delivery = await world.outbox.send(parcel(receiver, body))
    assert receiver.requests[0].body == body
    assert receiver.requests[0].headers["x-attempt"] == "now"
    assert (delivery.status, delivery.answer, delivery.taken) == (200, "ok", True)
    assert (delivery.event_id, delivery.event_type, delivery.endpoint) == ("evt_1", "user.created", "ep_1")


@pytest.mark.parametrize(("status", "taken"), [(200, True), (202, True), (299, True), (301, False), (400, False)])
async def test_only_2xx_is_taken(world: World, receiver: Receiver, status: int, taken: bool) -> None:
    receiver.statuses = [status]
    assert (await world.outbox.send(parcel(receiver))).taken is taken


async def test_the_schedule_ends(world: World, receiver: Receiver) -> None:
    world.outbox.retry_after_s = (0.01, 0.01)
    receiver.statuses = [500] * 9
    heard: list[int] = []
    world.outbox.post(parcel(receiver), lambda delivery: heard.append(delivery.attempt))
    await world.outbox.idle()
    assert [delivery.attempt for delivery in world.outbox.deliveries] == [1, 2, 3]
    assert heard == []
    world.outbox.post(parcel(receiver), lambda delivery: heard.append(delivery.attempt))
    receiver.statuses = [500]
    await world.outbox.idle()
    assert heard == [2]


async def test_a_stop_forgets_what_waits(receiver: Receiver) -> None:
    box = Outbox(retry_after_s=(3600.0,))
    receiver.statuses = [500]
    box.post(parcel(receiver))
    await wait_until(lambda: box.deliveries, within_s=5, what="the first attempt")
    await box.close()
    async with asyncio.timeout(5):
        await box.idle()
    assert len(box.deliveries) == 1


async def test_a_closed_outbox_opens_again(world: World, receiver: Receiver) -> None:
    for _ in range(2):
        assert (await world.outbox.send(parcel(receiver))).taken
        await world.outbox.close()


async def test_the_record_is_bounded(world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DELIVERIES_MAX", 2)
    for _ in range(3):
        await world.outbox.send(parcel(receiver))
    assert [delivery.seq for delivery in world.outbox.deliveries] == [2, 3]
