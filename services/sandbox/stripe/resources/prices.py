"""One-time prices and their products: what a Session's line items point at."""

from typing import Any, Final

from services.sandbox.stripe.books import Books, Cause, Obj, new_id
from services.sandbox.stripe.params import EXPAND, Choice, Flag, Group, Many, Metadata, Text, Whole
from services.sandbox.stripe.refusals import StripeRefusal
from services.sandbox.stripe.routes import Request, Route

PRODUCT_DATA: Final = Group(
    {
        "description": Text(),
        "images": Many(Text(2048), most=8),
        "metadata": Metadata(),
        "name": Text(),
    },
    required=frozenset({"name"}),
    elsewhere=frozenset({"tax_code", "tax_details", "unit_label"}),
)
PRICE_DATA: Final = Group(
    {
        "currency": Text(3),
        "product": Text(),
        "product_data": PRODUCT_DATA,
        "tax_behavior": Choice(("exclusive", "inclusive", "unspecified")),
        "unit_amount": Whole(),
    },
    required=frozenset({"currency"}),
    elsewhere=frozenset({"recurring", "unit_amount_decimal"}),
)
_CREATE: Final = Group(
    {
        "active": Flag(),
        "currency": Text(3),
        "expand": EXPAND,
        "lookup_key": Text(200),
        "metadata": Metadata(),
        "nickname": Text(),
        "product": Text(),
        "product_data": Group(
            {"active": Flag(), "id": Text(), "metadata": Metadata(), "name": Text()},
            required=frozenset({"name"}),
            elsewhere=frozenset({"statement_descriptor", "tax_code", "tax_details", "unit_label"}),
        ),
        "tax_behavior": Choice(("exclusive", "inclusive", "unspecified")),
        "unit_amount": Whole(),
    },
    required=frozenset({"currency"}),
    elsewhere=frozenset(
        {
            "billing_scheme",
            "currency_options",
            "custom_unit_amount",
            "recurring",
            "tiers",
            "tiers_mode",
            "transfer_lookup_key",
            "transform_quantity",
            "unit_amount_decimal",
        }
    ),
)


DEFAULT_PRICE: Final = "price_rowclaim_sandbox"
"""What a newcomer finds to sell: 49.00 in US dollars."""


def seed_price(books: Books) -> None:
    """The default price and its product, older than every event."""
    product = books.put(_product(books, {"name": "Course materials"}))
    books.put(_price(books, {"currency": "usd", "unit_amount": 4900}, product["id"]) | {"id": DEFAULT_PRICE})


def create_price(books: Books, cause: Cause, data: dict[str, Any]) -> Obj:
    """A one-time price, with a new product when ``product_data`` is given. Raises StripeRefusal."""
    if ("product" in data) == ("product_data" in data):
        raise StripeRefusal("You must pass either product or product_data, and not both.", param="product")
    if "unit_amount" not in data:
        raise StripeRefusal("You must pass unit_amount.", code="parameter_missing", param="unit_amount")
    if "product" in data:
        product = books.get("product", data["product"], param="product")
    else:
        product = _create_product(books, cause, data["product_data"])
    price = books.put(_price(books, data, product["id"]))
    books.emit("price.created", price, cause)
    return price


def _price(books: Books, data: dict[str, Any], product_id: str) -> Obj:
    return {
        "id": new_id("price"),
        "object": "price",
        "active": data.get("active", True),
        "billing_scheme": "per_unit",
        "created": books.clock.now_s(),
        "currency": data["currency"].lower(),
        "custom_unit_amount": None,
        "livemode": False,
        "lookup_key": data.get("lookup_key"),
        "metadata": data.get("metadata", {}),
        "nickname": data.get("nickname"),
        "product": product_id,
        "recurring": None,
        "tax_behavior": data.get("tax_behavior", "unspecified"),
        "tiers_mode": None,
        "transform_quantity": None,
        "type": "one_time",
        "unit_amount": data["unit_amount"],
        "unit_amount_decimal": str(data["unit_amount"]),
    }


def _create_product(books: Books, cause: Cause, data: dict[str, Any]) -> Obj:
    product = books.put(_product(books, data))
    books.emit("product.created", product, cause)
    return product


def _product(books: Books, data: dict[str, Any]) -> Obj:
    now_s = books.clock.now_s()
    return {
        "id": data.get("id") or new_id("prod", 14),
        "object": "product",
        "active": data.get("active", True),
        "created": now_s,
        "default_price": None,
        "description": data.get("description"),
        "images": data.get("images", []),
        "livemode": False,
        "marketing_features": [],
        "metadata": data.get("metadata", {}),
        "name": data["name"],
        "package_dimensions": None,
        "shippable": None,
        "statement_descriptor": None,
        "tax_code": None,
        "type": "service",
        "unit_label": None,
        "updated": now_s,
        "url": None,
    }


def _create(request: Request) -> Obj:
    return create_price(request.books, request.cause, dict(request.params))


def _retrieve(request: Request) -> Obj:
    return request.books.get("price", request.ids[0])


def _retrieve_product(request: Request) -> Obj:
    return request.books.get("product", request.ids[0])


ROUTES: Final = (
    Route("POST", ("v1", "prices"), _create, _CREATE, "price_created"),
    Route("GET", ("v1", "prices", "*"), _retrieve, Group({"expand": EXPAND})),
    Route("GET", ("v1", "products", "*"), _retrieve_product, Group({"expand": EXPAND})),
)
