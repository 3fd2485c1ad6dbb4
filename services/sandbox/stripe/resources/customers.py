"""Customers, as far as a Session refers to them."""

from typing import Final

from services.sandbox.stripe.books import NOBODY, Books, Cause, Obj, new_id, page, within
from services.sandbox.stripe.params import EXPAND, PAGE, Group, Metadata, Span, Text
from services.sandbox.stripe.routes import Request, Route

_CREATE: Final = Group(
    {
        "description": Text(),
        "email": Text(512),
        "expand": EXPAND,
        "metadata": Metadata(),
        "name": Text(256),
        "phone": Text(20),
    },
    elsewhere=frozenset(
        {
            "address",
            "balance",
            "business_name",
            "cash_balance",
            "individual_name",
            "invoice_prefix",
            "invoice_settings",
            "next_invoice_sequence",
            "payment_method",
            "preferred_locales",
            "shipping",
            "source",
            "tax",
            "tax_exempt",
            "tax_id_data",
            "test_clock",
            "validate",
        }
    ),
)


def create_customer(
    books: Books,
    cause: Cause = NOBODY,
    *,
    email: str | None = None,
    name: str | None = None,
    phone: str | None = None,
    description: str | None = None,
    metadata: dict[str, str] | None = None,
) -> Obj:
    """A new customer, and its event."""
    customer: Obj = {
        "id": new_id("cus", 14),
        "object": "customer",
        "address": None,
        "balance": 0,
        "created": books.clock.now_s(),
        "currency": None,
        "default_source": None,
        "delinquent": False,
        "description": description,
        "discount": None,
        "email": email,
        "invoice_prefix": new_id("x", 8).removeprefix("x_").upper(),
        "invoice_settings": {
            "custom_fields": None,
            "default_payment_method": None,
            "footer": None,
            "rendering_options": None,
        },
        "livemode": False,
        "metadata": metadata or {},
        "name": name,
        "next_invoice_sequence": 1,
        "phone": phone,
        "preferred_locales": [],
        "shipping": None,
        "tax_exempt": "none",
        "test_clock": None,
    }
    books.put(customer)
    books.emit("customer.created", customer, cause)
    return customer


def _create(request: Request) -> Obj:
    params = {name: value for name, value in request.params.items() if name != "expand"}
    return create_customer(request.books, request.cause, **params)


def _retrieve(request: Request) -> Obj:
    return request.books.get("customer", request.ids[0])


def _list(request: Request) -> Obj:
    wanted = request.params
    return page(
        request.books.table("customer"),
        wanted,
        request.path,
        lambda row: wanted.get("email") in (None, row["email"]) and within(row["created"], wanted.get("created")),
    )


ROUTES: Final = (
    Route("POST", ("v1", "customers"), _create, _CREATE, "customer_created"),
    Route(
        "GET",
        ("v1", "customers"),
        _list,
        Group(dict(PAGE) | {"created": Span(), "email": Text()}, elsewhere=frozenset({"test_clock"})),
    ),
    Route("GET", ("v1", "customers", "*"), _retrieve, Group({"expand": EXPAND})),
)
