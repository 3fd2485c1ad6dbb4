"""Customers, as far as a Session needs them."""

from typing import Any

import pytest
import stripe
from stripe import Customer, Event

from services.sandbox.world import World
from tests.sandbox.stripe.sdk_types import check

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


async def test_a_customer_goes_round_through_the_library(client: stripe.StripeClient, world: World) -> None:
    created = await client.v1.customers.create_async({"email": "a@example.com", "name": "Ada", "metadata": {"k": "v"}})
    assert created.id.startswith("cus_")
    retrieved = await client.v1.customers.retrieve_async(created.id)
    assert retrieved.to_dict() == created.to_dict()
    check(Customer, world.books.get("customer", created.id))
    (event,) = world.books.table("event").values()
    check(Event, event)
    assert event["type"] == "customer.created"
    answer: Any = created.last_response
    assert event["request"]["id"] == answer.headers["request-id"]
    assert event["request"]["idempotency_key"] == answer.headers["idempotency-key"]


async def test_customers_are_found_by_address(client: stripe.StripeClient) -> None:
    for email in ("a@example.com", "b@example.com", "a@example.com"):
        await client.v1.customers.create_async({"email": email})
    found = await client.v1.customers.list_async({"email": "a@example.com"})
    assert [one.email for one in found.data] == ["a@example.com"] * 2
    assert len((await client.v1.customers.list_async({})).data) == 3


async def test_an_unknown_customer_is_404(client: stripe.StripeClient) -> None:
    with pytest.raises(stripe.InvalidRequestError, match="No such customer: 'cus_none'") as missing:
        await client.v1.customers.retrieve_async("cus_none")
    assert missing.value.http_status == 404
