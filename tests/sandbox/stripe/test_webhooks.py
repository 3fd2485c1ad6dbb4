"""Deliveries, seen from a receiver that verifies with Stripe's own library."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
import stripe
from stripe.events import V1CheckoutSessionCompletedEventNotification

from services.sandbox.outbox import Plan, Posting
from services.sandbox.server import serving
from services.sandbox.stripe.buyer import Payment
from services.sandbox.stripe.resources.checkout_sessions import open_session
from services.sandbox.stripe.resources.webhook_endpoints import create_endpoint, roll_secret
from services.sandbox.stripe.webhooks import signature
from services.sandbox.world import World
from tests.sandbox.receiver import Receiver
from tests.sandbox.stripe.conftest import SESSION

SECRET = "whsec_first"


def events(world: World, event_type: str = "") -> list[str]:
    return [row["id"] for row in world.books.table("event").values() if row["type"].startswith(event_type)]


def hold(world: World, receiver: Receiver, **endpoint: Any) -> str:
    made = create_endpoint(world.books, receiver.url, ["*"], secret=SECRET, **endpoint)
    world.webhooks.posting[made["id"]] = Posting.HELD
    endpoint_id: str = made["id"]
    return endpoint_id


async def test_an_event_arrives_signed_and_is_what_the_library_reads(world: World, receiver: Receiver) -> None:
    create_endpoint(world.books, receiver.url, ["checkout.session.*"], secret=SECRET)
    session_id = open_session(world.books, SESSION)["id"]
    world.buyer.complete(session_id)
    await world.outbox.idle()
    (request,) = receiver.requests
    event = stripe.Webhook.construct_event(request.body, request.headers["stripe-signature"], SECRET)
    assert (event.type, event.data.object.id) == ("checkout.session.completed", session_id)
    assert event.api_version == "2026-10-28.endive"
    assert request.headers["user-agent"].startswith("Stripe/1.0")
    assert request.headers["content-type"] == "application/json; charset=utf-8"
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.WebhookSignature.verify_header(request.body, request.headers["stripe-signature"], "whsec_other", 300)
    again = json.dumps(json.loads(request.body)).encode()
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.WebhookSignature.verify_header(again, request.headers["stripe-signature"], SECRET, 300)


def test_our_signature_is_the_librarys_own() -> None:
    payload = '{"a": "é"}'
    theirs = stripe.WebhookSignature.generate_signature_header(payload, SECRET, timestamp=1_700_000_000)
    assert signature(payload.encode(), [SECRET], 1_700_000_000) == theirs


async def test_a_rotation_signs_with_both_until_the_old_one_dies(world: World, receiver: Receiver) -> None:
    endpoint_id = hold(world, receiver)
    world.buyer.complete(open_session(world.books, SESSION)["id"])
    plan = Plan(tuple(events(world, "checkout")))
    new = roll_secret(world.books, endpoint_id, keep_old_s=3600)
    await world.webhooks.play(plan)
    world.clock.advance(3600)
    await world.webhooks.play(plan)
    both, only_new = receiver.requests
    assert both.headers["stripe-signature"].count("v1=") == 2
    for secret in (SECRET, new):
        assert stripe.WebhookSignature.verify_header(both.body, both.headers["stripe-signature"], secret, 300)
    assert only_new.headers["stripe-signature"].count("v1=") == 1
    assert stripe.WebhookSignature.verify_header(only_new.body, only_new.headers["stripe-signature"], new, 300)
    with pytest.raises(ValueError, match="0 to 86400"):
        roll_secret(world.books, endpoint_id, keep_old_s=86401)


async def test_rolling_twice_does_not_lengthen_the_oldest_secrets_life(world: World, receiver: Receiver) -> None:
    endpoint_id = hold(world, receiver)
    roll_secret(world.books, endpoint_id, keep_old_s=10)
    roll_secret(world.books, endpoint_id, keep_old_s=3600, secret="whsec_third")
    world.clock.advance(11)
    world.buyer.complete(open_session(world.books, SESSION)["id"])
    await world.webhooks.play(Plan(tuple(events(world, "checkout"))))
    header = receiver.requests[0].headers["stripe-signature"]
    assert header.count("v1=") == 2
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.WebhookSignature.verify_header(receiver.requests[0].body, header, SECRET, 300)


@pytest.mark.parametrize(("ago_s", "passes"), [(299, True), (302, False), (-86_400, True)])
async def test_a_signature_can_be_old_or_from_the_future(
    world: World, receiver: Receiver, ago_s: int, passes: bool
) -> None:
    hold(world, receiver)
    world.buyer.complete(open_session(world.books, SESSION)["id"])
    await world.webhooks.play(Plan(tuple(events(world, "checkout")), signed_ago_s=ago_s))
    request = receiver.requests[0]
    try:
        stripe.WebhookSignature.verify_header(request.body, request.headers["stripe-signature"], SECRET, 300)
    except stripe.SignatureVerificationError:
        assert not passes
    else:
        assert passes, "the library lets the future pass: whoever receives must bound it"


async def test_a_plan_may_sign_wrongly(world: World, receiver: Receiver) -> None:
    hold(world, receiver)
    world.buyer.complete(open_session(world.books, SESSION)["id"])
    ids = tuple(events(world, "checkout"))
    await world.webhooks.play(Plan(ids, secrets=("whsec_wrong",)))
    await world.webhooks.play(Plan(ids, secrets=()))
    wrong, none = [request.headers["stripe-signature"] for request in receiver.requests]
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.WebhookSignature.verify_header(receiver.requests[0].body, wrong, SECRET, 300)
    assert "v1" not in none


async def test_the_order_is_the_plans(world: World, receiver: Receiver) -> None:
    hold(world, receiver)
    world.buyer.complete(open_session(world.books, SESSION)["id"], Payment.UNPAID)
    world.buyer.settle(events_session(world), succeeded=True)
    ids = events(world)
    await world.webhooks.play(Plan(tuple(reversed(ids))))
    assert receiver.event_ids() == ids[::-1]
    receiver.requests.clear()
    await world.webhooks.play(Plan(tuple(ids), copies=2, shuffle_seed=7))
    first = receiver.event_ids()
    assert Counter(first) == Counter(ids * 2)
    assert first != sorted(first, key=ids.index), "shuffled"
    receiver.requests.clear()
    await world.webhooks.play(Plan(tuple(ids), copies=2, shuffle_seed=7))
    assert receiver.event_ids() == first, "the same seed, the same order"


def events_session(world: World) -> str:
    return next(reversed(world.books.table("checkout.session")))


async def test_simultaneous_copies_are_in_flight_together(world: World, receiver: Receiver) -> None:
    hold(world, receiver)
    world.buyer.complete(open_session(world.books, SESSION)["id"])
    receiver.barrier = asyncio.Barrier(5)
    deliveries = await world.webhooks.play(Plan(tuple(events(world, "checkout")), copies=5, simultaneous=True))
    assert [delivery.status for delivery in deliveries] == [200] * 5, "nobody was answered before all had arrived"
    assert len({request.body for request in receiver.requests}) == 1


async def test_copies_one_after_the_other_wait_for_the_answer(world: World, receiver: Receiver) -> None:
    hold(world, receiver)
    world.buyer.complete(open_session(world.books, SESSION)["id"])
    first, second = await world.webhooks.play(Plan(tuple(events(world, "checkout")), copies=2, pause_ms=20))
    assert (second.started_at - first.ended_at).total_seconds() >= 0.015


async def test_copies_are_bounded() -> None:
    for copies in (0, 101):
        with pytest.raises(ValueError, match="1 to 100"):
            Plan(("evt_1",), copies=copies)


async def test_what_is_not_taken_is_sent_again_and_counted(world: World, receiver: Receiver) -> None:
    world.outbox.retry_after_s = (0.01, 0.01)
    endpoint = create_endpoint(world.books, receiver.url, ["checkout.session.completed"], secret=SECRET)
    receiver.statuses = [503, 500, 200]
    world.buyer.complete(open_session(world.books, SESSION)["id"])
    (event_id,) = events(world, "checkout")
    event = world.books.table("event")[event_id]
    assert event["pending_webhooks"] == 1
    await world.outbox.idle()
    assert [(one.attempt, one.status, one.endpoint) for one in world.outbox.deliveries] == [
        (1, 503, endpoint["id"]),
        (2, 500, endpoint["id"]),
        (3, 200, endpoint["id"]),
    ]
    assert event["pending_webhooks"] == 0
    assert len(set(receiver.event_ids())) == 1


async def test_an_event_nobody_takes_stays_pending_until_a_plan_delivers_it(world: World, receiver: Receiver) -> None:
    world.outbox.retry_after_s = ()
    receiver.statuses = [500]
    create_endpoint(world.books, receiver.url, ["checkout.session.completed"], secret=SECRET)
    world.buyer.complete(open_session(world.books, SESSION)["id"])
    await world.outbox.idle()
    (event_id,) = events(world, "checkout")
    assert world.books.table("event")[event_id]["pending_webhooks"] == 1
    await world.webhooks.play(Plan((event_id,), copies=2))
    assert world.books.table("event")[event_id]["pending_webhooks"] == 0


async def test_a_receiver_that_is_not_there_is_an_error_not_an_answer(world: World) -> None:
    world.outbox.retry_after_s = ()
    async with serving(world, 0) as gone:
        pass
    create_endpoint(world.books, f"{gone}/hook", ["checkout.session.completed"])
    world.buyer.complete(open_session(world.books, SESSION)["id"])
    await world.outbox.idle()
    (delivery,) = world.outbox.deliveries
    assert delivery.status is None
    assert delivery.error is not None
    assert delivery.error.startswith("ConnectError")
    await world.outbox.close()


async def test_endpoints_get_what_they_asked_for(world: World, receiver: Receiver) -> None:
    create_endpoint(world.books, receiver.url + "?all", ["*"])
    create_endpoint(world.books, receiver.url + "?one", ["payment_intent.succeeded"])
    disabled = create_endpoint(world.books, receiver.url + "?disabled", ["*"])
    disabled["status"] = "disabled"
    world.buyer.complete(open_session(world.books, SESSION)["id"])
    await world.outbox.idle()
    assert Counter(request.query for request in receiver.requests) == {"all": len(events(world)), "one": 1}


async def test_the_endpoints_version_decides_the_shape(world: World, receiver: Receiver) -> None:
    hold(world, receiver, api_version="2020-08-27")
    hold(world, receiver, api_version="2031-02-03.zinnia")
    hold(world, receiver)
    world.buyer.complete(open_session(world.books, SESSION)["id"])
    (event_id,) = events(world, "checkout")
    await world.webhooks.play(Plan((event_id,)))
    old, future, current = [json.loads(request.body) for request in receiver.requests]
    assert (old["api_version"], old["data"]["object"]["ui_mode"]) == ("2020-08-27", "hosted")
    assert (future["api_version"], future["data"]["object"]["ui_mode"]) == ("2031-02-03.zinnia", "hosted_page")
    assert current["api_version"] == "2026-10-28.endive"
    receiver.requests.clear()
    await world.webhooks.play(Plan((event_id,), api_version="2024-06-20"))
    assert {json.loads(request.body)["api_version"] for request in receiver.requests} == {"2024-06-20"}


async def test_a_thin_event_names_its_object_and_the_library_reads_it(
    world: World, receiver: Receiver, client: stripe.StripeClient
) -> None:
    hold(world, receiver)
    session = open_session(world.books, SESSION)
    event = world.webhooks.thin_event("v1.checkout.session.completed", session)
    bare = world.webhooks.thin_event("v1.billing.meter.no_meter_found")
    await world.webhooks.play(Plan((event["id"], bare["id"])))
    thin, about_nothing = [
        client.parse_event_notification(request.body, request.headers["stripe-signature"], SECRET)
        for request in receiver.requests
    ]
    assert thin.id == event["id"]
    assert isinstance(thin, V1CheckoutSessionCompletedEventNotification)
    # The library's own fetches (16.1.0, async) send their usage label as a parameter, which is refused: ask plainly.
    urls = {thin.related_object.url: "checkout.session", f"/v2/core/events/{thin.id}": "v2.core.event"}
    for url, object_name in urls.items():
        fetched = await client.raw_request_async("get", url)
        assert fetched.data["object"] == object_name
    assert about_nothing.type == "v1.billing.meter.no_meter_found"
    with pytest.raises(ValueError, match="parse_event_notification"):
        client.construct_event(receiver.requests[0].body, receiver.requests[0].headers["stripe-signature"], SECRET)


async def test_a_plan_with_unknown_ids_is_refused(world: World) -> None:
    with pytest.raises(Exception, match="No such event: 'evt_none'"):
        await world.webhooks.play(Plan(("evt_none",)))
