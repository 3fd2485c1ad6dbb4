"""Events, listed for whoever was not told."""

from typing import Any

import pytest
import stripe

from services.sandbox.stripe.resources.events import KEPT_S, wants
from services.sandbox.stripe.resources.webhook_endpoints import create_endpoint
from services.sandbox.world import World


@pytest.mark.parametrize(
    ("params", "types"),
    [
        ({"type": "payment_intent.*"}, ["payment_intent.succeeded", "payment_intent.created"]),
        ({"type": "checkout.session.completed"}, ["checkout.session.completed"]),
        (
            {"types": ["checkout.session.completed", "payment_intent.created"]},
            ["checkout.session.completed", "payment_intent.created"],
        ),
        ({"limit": 2}, ["checkout.session.completed", "payment_intent.succeeded"]),
        ({"created": {"lt": 5}}, []),
        ({"delivery_success": False}, []),
    ],
)
async def test_events_are_listed_newest_first(
    client: stripe.StripeClient, world: World, session_id: str, params: Any, types: list[str]
) -> None:
    world.buyer.complete(session_id)
    assert [one.type for one in (await client.v1.events.list_async(params)).data] == types


async def test_what_was_not_delivered_can_be_asked_for(
    client: stripe.StripeClient, world: World, session_id: str
) -> None:
    world.outbox.retry_after_s = ()
    create_endpoint(world.books, "http://127.0.0.1:1/nobody", ["checkout.session.completed"])
    world.buyer.complete(session_id)
    await world.outbox.idle()
    failed = await client.v1.events.list_async({"delivery_success": False})
    assert [one.type for one in failed.data] == ["checkout.session.completed"]
    assert failed.data[0].pending_webhooks == 1


async def test_type_and_types_exclude_each_other(client: stripe.StripeClient) -> None:
    with pytest.raises(stripe.InvalidRequestError, match="type, types"):
        await client.v1.events.list_async({"type": "a", "types": ["b"]})


async def test_an_event_is_kept_for_thirty_days(client: stripe.StripeClient, world: World, session_id: str) -> None:
    world.buyer.complete(session_id)
    event_id = next(iter(world.books.table("event")))
    world.clock.advance(KEPT_S - 10)
    assert (await client.v1.events.retrieve_async(event_id)).id == event_id
    assert (await client.v1.events.list_async({})).data
    world.clock.advance(20)
    with pytest.raises(stripe.InvalidRequestError, match="No such event"):
        await client.v1.events.retrieve_async(event_id)
    assert (await client.v1.events.list_async({})).data == []


@pytest.mark.parametrize(
    ("patterns", "event_type", "told"),
    [
        (["*"], "anything.at.all", True),
        (["checkout.session.*"], "checkout.session.completed", True),
        (["checkout.session.completed"], "checkout.session.expired", False),
        (["customer.*", "price.created"], "price.created", True),
        ([], "price.created", False),
    ],
)
def test_names_with_stars(patterns: list[str], event_type: str, told: bool) -> None:
    assert wants(patterns, event_type) is told
