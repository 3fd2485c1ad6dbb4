"""Prices and their products."""

from typing import Any

import pytest
import stripe
from stripe import Price, Product

from services.sandbox.stripe.resources.checkout_sessions import open_session
from services.sandbox.stripe.resources.prices import DEFAULT_PRICE
from services.sandbox.world import World
from tests.sandbox.stripe.conftest import SESSION
from tests.sandbox.stripe.sdk_types import check

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

BOOK: Any = {"currency": "USD", "unit_amount": 1500, "product_data": {"name": "Book"}}


async def test_a_price_goes_round_through_the_library(client: stripe.StripeClient, world: World) -> None:
    price = await client.v1.prices.create_async(BOOK)
    check(Price, world.books.get("price", price.id))
    check(Product, world.books.get("product", str(price.product)))
    assert (price.currency, price.unit_amount, price.type, price.active) == ("usd", 1500, "one_time", True)
    product = await client.v1.products.retrieve_async(str(price.product))
    assert product.name == "Book"
    again = await client.v1.prices.create_async({"currency": "usd", "unit_amount": 1, "product": product.id})
    assert (await client.v1.prices.retrieve_async(again.id)).product == product.id
    assert [row["type"] for row in world.books.table("event").values()] == [
        "product.created",
        "price.created",
        "price.created",
    ]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (BOOK | {"product": "prod_1"}, "either product or product_data"),
        ({"currency": "usd", "unit_amount": 1}, "either product or product_data"),
        ({"currency": "usd", "unit_amount": 1, "product": "prod_none"}, "No such product"),
        ({"currency": "usd", "product_data": {"name": "x"}}, "unit_amount"),
        (BOOK | {"recurring": {"interval": "month"}}, "does not play"),
    ],
)
async def test_a_price_is_refused(client: stripe.StripeClient, params: Any, words: str) -> None:
    with pytest.raises(stripe.InvalidRequestError, match=words) as refused:
        await client.v1.prices.create_async(params)
    assert refused.value.http_status == 400


async def test_there_is_something_to_sell(client: stripe.StripeClient, world: World) -> None:
    price = await client.v1.prices.retrieve_async(DEFAULT_PRICE)
    assert (price.unit_amount, price.currency, price.active) == (4900, "usd", True)
    check(Price, world.books.get("price", DEFAULT_PRICE))
    assert world.books.table("event") == {}
    session = open_session(world.books, SESSION | {"line_items": [{"price": DEFAULT_PRICE, "quantity": 1}]})
    assert session["amount_total"] == 4900
