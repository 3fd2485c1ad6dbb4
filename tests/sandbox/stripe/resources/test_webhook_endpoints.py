"""Endpoints by the API, as a deployment would make them."""

from typing import Any

import pytest
import stripe
from stripe import WebhookEndpoint

from services.sandbox.stripe.resources.checkout_sessions import open_session
from services.sandbox.world import World
from tests.sandbox.receiver import Receiver
from tests.sandbox.stripe.conftest import SESSION
from tests.sandbox.stripe.sdk_types import check

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


async def test_an_endpoint_made_by_the_api_is_told_until_it_is_gone(
    client: stripe.StripeClient, world: World, receiver: Receiver
) -> None:
    created = await client.v1.webhook_endpoints.create_async(
        {"url": receiver.url, "enabled_events": ["checkout.session.completed"], "description": "shop"}
    )
    assert created.secret is not None
    assert created.secret.startswith("whsec_")
    check(WebhookEndpoint, world.books.get("webhook_endpoint", created.id))

    async def buy() -> int:
        before = len(receiver.requests)
        world.buyer.complete(open_session(world.books, SESSION)["id"])
        await world.outbox.idle()
        return len(receiver.requests) - before

    assert await buy() == 1
    request = receiver.requests[0]
    assert stripe.WebhookSignature.verify_header(request.body, request.headers["stripe-signature"], created.secret)
    await client.v1.webhook_endpoints.update_async(created.id, {"disabled": True, "description": "closed"})
    assert await buy() == 0
    updated = await client.v1.webhook_endpoints.update_async(created.id, {"disabled": False})
    assert (updated.status, updated.description) == ("enabled", "closed")
    assert await buy() == 1
    assert (await client.v1.webhook_endpoints.delete_async(created.id)).deleted is True
    assert await buy() == 0
    assert (await client.v1.webhook_endpoints.list_async({})).data == []


async def test_the_secret_is_told_once(client: stripe.StripeClient) -> None:
    created = await client.v1.webhook_endpoints.create_async({"url": "https://x.example", "enabled_events": ["*"]})
    retrieved = await client.v1.webhook_endpoints.retrieve_async(created.id)
    assert "secret" not in retrieved
    assert retrieved.url == "https://x.example"


async def test_a_version_is_checked_by_the_api(client: stripe.StripeClient) -> None:
    made = await client.v1.webhook_endpoints.create_async(
        {"url": "https://x.example", "enabled_events": ["*"], "api_version": "2020-08-27"}
    )
    assert made.api_version == "2020-08-27"
    unknown: Any = {"url": "https://x.example", "enabled_events": ["*"], "api_version": "2031-01-01"}
    with pytest.raises(stripe.InvalidRequestError, match="Invalid API version"):
        await client.v1.webhook_endpoints.create_async(unknown)
