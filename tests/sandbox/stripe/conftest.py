"""Stripe's own client against the sandbox, and the few objects most tests begin with."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import stripe

from services.sandbox.stripe.api import DEFAULT_KEY
from services.sandbox.stripe.resources.checkout_sessions import open_session
from services.sandbox.world import Urls, World
from tests.sandbox.clients import plain

SESSION: Any = {
    "mode": "payment",
    "success_url": "https://shop.example/thanks?session={CHECKOUT_SESSION_ID}",
    "cancel_url": "https://shop.example/",
    "client_reference_id": "user_1",
    "customer_email": "buyer@example.com",
    "line_items": [
        {
            "price_data": {"currency": "usd", "unit_amount": 4900, "product_data": {"name": "Course materials"}},
            "quantity": 1,
        }
    ],
    "metadata": {"rowclaim_slice": "fulfillment", "github_username": "octocat"},
    "payment_intent_data": {"description": "Course", "metadata": {"rowclaim_slice": "fulfillment"}},
}
"""What a shop sends."""


@pytest.fixture
async def client(urls: Urls) -> AsyncIterator[stripe.StripeClient]:
    """Stripe's library over httpx, no retries of its own."""
    http = stripe.HTTPXClient(timeout=30, allow_sync_methods=False, verify_ssl_certs=False)
    yield stripe.StripeClient(DEFAULT_KEY, base_addresses={"api": urls.stripe}, http_client=http, max_network_retries=0)
    await http.close_async()


@pytest.fixture
async def raw(urls: Urls) -> AsyncIterator[httpx.AsyncClient]:
    """The wire itself, with a good key."""
    headers = {"authorization": f"Bearer {DEFAULT_KEY}"}
    async with plain(base_url=urls.stripe, headers=headers, timeout=30) as http:
        yield http


@pytest.fixture
def session_id(world: World) -> str:
    """An open Session."""
    session: str = open_session(world.books, SESSION)["id"]
    return session
