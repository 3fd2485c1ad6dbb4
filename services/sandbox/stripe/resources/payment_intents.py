"""PaymentIntents: made by a buyer's completed Session, read by everybody else."""

from typing import Any, Final

from services.sandbox.stripe.books import Books, Obj, new_id, page, within
from services.sandbox.stripe.params import EXPAND, PAGE, Group, Span, Text
from services.sandbox.stripe.routes import Request, Route


def new_payment_intent(books: Books, session: Obj, data: dict[str, Any], method: str) -> Obj:
    """The payment behind a Session, not yet confirmed. ``data`` is the Session's ``payment_intent_data``."""
    intent_id = new_id("pi")
    return books.put(
        {
            "id": intent_id,
            "object": "payment_intent",
            "amount": session["amount_total"],
            "amount_capturable": 0,
            "amount_details": {"tip": {}},
            "amount_received": 0,
            "application": None,
            "application_fee_amount": None,
            "automatic_payment_methods": None,
            "canceled_at": None,
            "cancellation_reason": None,
            "capture_method": "automatic_async",
            "client_secret": f"{intent_id}_secret_{new_id('x', 25).removeprefix('x_')}",
            "confirmation_method": "automatic",
            "created": books.clock.now_s(),
            "currency": session["currency"],
            "customer": session["customer"],
            "customer_account": None,
            "description": data.get("description"),
            "excluded_payment_method_types": None,
            "last_payment_error": None,
            "latest_charge": None,
            "livemode": False,
            "metadata": data.get("metadata", {}),
            "next_action": None,
            "on_behalf_of": None,
            "payment_method": None,
            "payment_method_configuration_details": None,
            "payment_method_options": {},
            "payment_method_types": [method],
            "processing": None,
            "receipt_email": data.get("receipt_email"),
            "review": None,
            "setup_future_usage": data.get("setup_future_usage"),
            "shipping": None,
            "source": None,
            "statement_descriptor": data.get("statement_descriptor"),
            "statement_descriptor_suffix": None,
            "status": "requires_payment_method",
            "transfer_data": None,
            "transfer_group": None,
        }
    )


def _retrieve(request: Request) -> Obj:
    return request.books.get("payment_intent", request.ids[0])


def _list(request: Request) -> Obj:
    wanted = request.params
    return page(
        request.books.table("payment_intent"),
        wanted,
        request.path,
        lambda row: wanted.get("customer") in (None, row["customer"]) and within(row["created"], wanted.get("created")),
    )


ROUTES: Final = (
    Route(
        "GET",
        ("v1", "payment_intents"),
        _list,
        Group(dict(PAGE) | {"created": Span(), "customer": Text()}, elsewhere=frozenset({"customer_account"})),
    ),
    Route(
        "GET",
        ("v1", "payment_intents", "*"),
        _retrieve,
        Group({"expand": EXPAND}, elsewhere=frozenset({"client_secret"})),
    ),
)
