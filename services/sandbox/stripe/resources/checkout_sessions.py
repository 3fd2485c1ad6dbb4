"""Checkout Sessions in payment mode: created by us, completed by a buyer (see ``buyer``)."""

import copy
from collections.abc import Mapping
from typing import Any, Final

from services.sandbox.stripe.books import NOBODY, Books, Cause, Obj, new_id, page, within
from services.sandbox.stripe.forms import as_nodes
from services.sandbox.stripe.params import EXPAND, PAGE, Choice, Flag, Group, Many, Metadata, Span, Text, Whole
from services.sandbox.stripe.refusals import StripeRefusal, missing_parameter, not_played
from services.sandbox.stripe.resources.prices import PRICE_DATA, create_price
from services.sandbox.stripe.routes import Request, Route

LIFE_S: Final = 24 * 3600
LIFE_S_MIN: Final = 30 * 60
AMOUNT_MIN: Final = 50
"""Stripe's least charge in US dollars and most currencies with cents; zero is free and allowed."""
LINE_ITEMS_MAX: Final = 100

_CREATE: Final = Group(
    {
        "allow_promotion_codes": Flag(),
        "allowed_payment_method_types": Many(Text()),
        "billing_address_collection": Choice(("auto", "required")),
        "cancel_url": Text(),
        "client_reference_id": Text(200),
        "currency": Text(3),
        "customer": Text(),
        "customer_creation": Choice(("always", "if_required")),
        "customer_email": Text(800),
        "expand": EXPAND,
        "expires_at": Whole(),
        "line_items": Many(
            Group(
                {"metadata": Metadata(), "price": Text(), "price_data": PRICE_DATA, "quantity": Whole()},
                elsewhere=frozenset({"adjustable_quantity", "tax_rates"}),
            ),
            most=LINE_ITEMS_MAX,
        ),
        "locale": Text(10),
        "metadata": Metadata(),
        "mode": Choice(("payment", "setup", "subscription")),
        "payment_intent_data": Group(
            {
                "description": Text(1000),
                "metadata": Metadata(),
                "receipt_email": Text(800),
                "setup_future_usage": Choice(("off_session", "on_session")),
                "statement_descriptor": Text(22),
            },
            elsewhere=frozenset(
                {
                    "application_fee_amount",
                    "capture_method",
                    "on_behalf_of",
                    "shipping",
                    "statement_descriptor_suffix",
                    "transfer_data",
                    "transfer_group",
                }
            ),
        ),
        "return_url": Text(),
        "submit_type": Choice(("auto", "book", "donate", "pay", "subscribe")),
        "success_url": Text(),
        "ui_mode": Choice(("elements", "embedded_page", "form", "hosted_page")),
    },
    elsewhere=frozenset(
        {
            "adaptive_pricing",
            "after_expiration",
            "automatic_tax",
            "branding_settings",
            "consent_collection",
            "custom_fields",
            "custom_text",
            "customer_account",
            "customer_update",
            "discounts",
            "excluded_payment_method_types",
            "integration_identifier",
            "invoice_creation",
            "managed_payments",
            "name_collection",
            "optional_items",
            "origin_context",
            "payment_method_collection",
            "payment_method_configuration",
            "payment_method_data",
            "payment_method_options",
            "permissions",
            "phone_number_collection",
            "redirect_on_completion",
            "saved_payment_method_options",
            "setup_intent_data",
            "shipping_address_collection",
            "shipping_options",
            "subscription_data",
            "tax_id_collection",
            "wallet_options",
        }
    ),
)


def open_session(books: Books, params: Mapping[str, Any], cause: Cause = NOBODY) -> Obj:
    """A new Session from Stripe's own parameters, nested as JSON. Raises StripeRefusal as the API would."""
    return _open(books, _CREATE.read(as_nodes(params)), cause)


def _create(request: Request) -> Obj:
    return _open(request.books, request.params, request.cause)


def _open(books: Books, params: Mapping[str, Any], cause: Cause) -> Obj:
    _check(books, params)
    session_id = "cs_test_" + new_id("a1", 56).replace("_", "")
    items = [
        _line_item(books, cause, line, f"line_items[{number}]") for number, line in enumerate(params["line_items"])
    ]
    currencies = {item["currency"] for item in items}
    if len(currencies) > 1 or not currencies <= {params.get("currency", next(iter(currencies))).lower()}:
        raise StripeRefusal("All prices on a Checkout Session must use the same currency.", param="line_items")
    total = sum(item["amount_total"] for item in items)
    if 0 < total < AMOUNT_MIN:
        raise StripeRefusal(
            "The Checkout Session's total amount due must add up to at least $0.50 usd",
            code="amount_too_small",
            saved=True,
        )
    books.table("line_items")[session_id] = {
        "object": "list",
        "data": items,
        "has_more": False,
        "url": f"/v1/checkout/sessions/{session_id}/line_items",
    }
    books.table("payment_intent_data")[session_id] = params.get("payment_intent_data", {})
    return books.put(_session(books, session_id, params, currencies.pop(), total))


def _check(books: Books, params: Any) -> None:
    """What the parameters must be together."""
    if "mode" not in params:
        raise missing_parameter("mode")
    if params["mode"] != "payment":
        raise not_played(f"mode={params['mode']}", "mode")
    if not params.get("line_items"):
        raise missing_parameter("line_items")
    ui_mode = params.get("ui_mode", "hosted_page")
    needed, useless = ("success_url", "return_url") if ui_mode == "hosted_page" else ("return_url", "success_url")
    if needed not in params:
        raise missing_parameter(needed)
    if useless in params:
        raise StripeRefusal(f"You can not pass `{useless}` when `ui_mode` is `{ui_mode}`.", param=useless)
    if "customer" in params:
        if "customer_email" in params:
            raise StripeRefusal(
                "You may only specify one of these parameters: customer, customer_email.", param="customer"
            )
        if "customer_creation" in params:
            raise StripeRefusal(
                "You may only specify one of these parameters: customer, customer_creation.", param="customer"
            )
        books.get("customer", params["customer"], param="customer")
    if "expires_at" in params and not LIFE_S_MIN <= params["expires_at"] - books.clock.now_s() <= LIFE_S:
        raise StripeRefusal(
            "The `expires_at` timestamp must be between 30 minutes and 24 hours from Checkout Session creation.",
            param="expires_at",
        )


def _line_item(books: Books, cause: Cause, line: dict[str, Any], name: str) -> Obj:
    if ("price" in line) == ("price_data" in line):
        raise StripeRefusal("You must pass either price or price_data for each line item.", param=name)
    if "quantity" not in line:
        raise missing_parameter(f"{name}[quantity]")
    if "price" in line:
        price = books.get("price", line["price"], param=f"{name}[price]")
    else:
        price = create_price(books, cause, line["price_data"] | {"active": False})
    amount = price["unit_amount"] * line["quantity"]
    return {
        "id": new_id("li"),
        "object": "item",
        "adjustable_quantity": None,
        "amount_discount": 0,
        "amount_subtotal": amount,
        "amount_tax": 0,
        "amount_total": amount,
        "currency": price["currency"],
        "description": books.get("product", price["product"])["name"],
        "metadata": line.get("metadata", {}),
        "price": price,
        "quantity": line["quantity"],
    }


_SHOWN_AS_GIVEN: Final = (
    "allow_promotion_codes",
    "allowed_payment_method_types",
    "billing_address_collection",
    "cancel_url",
    "client_reference_id",
    "customer",
    "customer_email",
    "locale",
    "return_url",
    "submit_type",
    "success_url",
)
_UNUSED: Final[Mapping[str, Any]] = {
    "adaptive_pricing": {"enabled": False},
    "after_expiration": None,
    "automatic_tax": {"enabled": False, "liability": None, "provider": None, "status": None},
    "branding_settings": {
        "background_color": "#ffffff",
        "border_style": "rounded",
        "button_color": "#0074d4",
        "display_name": "Rowclaim sandbox",
        "font_family": "default",
        "icon": None,
        "logo": None,
    },
    "collected_information": None,
    "consent": None,
    "consent_collection": None,
    "currency_conversion": None,
    "custom_fields": [],
    "custom_text": {
        "after_submit": None,
        "shipping_address": None,
        "submit": None,
        "terms_of_service_acceptance": None,
    },
    "customer_account": None,
    "discounts": [],
    "integration_identifier": None,
    "invoice": None,
    "invoice_creation": {
        "enabled": False,
        "invoice_data": {
            "account_tax_ids": None,
            "custom_fields": None,
            "description": None,
            "footer": None,
            "issuer": None,
            "metadata": {},
            "rendering_options": None,
        },
    },
    "origin_context": None,
    "payment_link": None,
    "payment_method_collection": "if_required",
    "payment_method_configuration_details": None,
    "payment_method_options": {"card": {"request_three_d_secure": "automatic"}},
    "permissions": None,
    "phone_number_collection": {"enabled": False},
    "recovered_from": None,
    "saved_payment_method_options": None,
    "setup_intent": None,
    "shipping_address_collection": None,
    "shipping_cost": None,
    "shipping_options": [],
    "subscription": None,
    "total_details": {"amount_discount": 0, "amount_shipping": 0, "amount_tax": 0},
    "wallet_options": None,
}
"""What Stripe shows of features no Session here uses."""


def _session(books: Books, session_id: str, params: Mapping[str, Any], currency: str, total: int) -> Obj:
    now_s = books.clock.now_s()
    ui_mode = params.get("ui_mode", "hosted_page")
    hosted = ui_mode == "hosted_page"
    shown: Obj = copy.deepcopy(dict(_UNUSED)) | {
        "id": session_id,
        "object": "checkout.session",
        "amount_subtotal": total,
        "amount_total": total,
        "client_secret": None if hosted else f"{session_id}_secret_{new_id('x', 40).removeprefix('x_')}",
        "created": now_s,
        "currency": currency,
        "customer_creation": None if "customer" in params else params.get("customer_creation", "if_required"),
        "customer_details": None,
        "expires_at": params.get("expires_at", now_s + LIFE_S),
        "livemode": False,
        "metadata": params.get("metadata", {}),
        "mode": "payment",
        "payment_intent": None,
        "payment_method_types": params.get("allowed_payment_method_types", ["card", "us_bank_account"]),
        "payment_status": "unpaid",
        "status": "open",
        "ui_mode": ui_mode,
        "url": f"https://checkout.stripe.com/c/pay/{session_id}" if hosted else None,
    }
    return shown | {name: params.get(name) for name in _SHOWN_AS_GIVEN}


def find_session(books: Books, session_id: str) -> Obj:
    """A Session as it stands now: time itself expires one that nobody completed. Raises StripeRefusal."""
    return _current(books, books.get("checkout.session", session_id))


def _current(books: Books, session: Obj) -> Obj:
    if session["status"] == "open" and session["expires_at"] <= books.clock.now_s():
        expire_session(books, session)
    return session


def expire_session(books: Books, session: Obj, **event: Any) -> Obj:
    """Close an open Session, and its event. Raises StripeRefusal for one that is not open."""
    if session["status"] != "open":
        raise StripeRefusal(
            f'Only Checkout Sessions with a status in ["open"] can be expired. This Checkout Session has a status of '
            f"{session['status']}.",
            param="session",
            saved=True,
        )
    session |= {"status": "expired", "url": None, "client_secret": None}
    books.emit("checkout.session.expired", session, **event)
    return session


def _expire(request: Request) -> Obj:
    return expire_session(request.books, _find(request), cause=request.cause)


def _find(request: Request) -> Obj:
    return find_session(request.books, request.ids[0])


def _list(request: Request) -> Obj:
    books, wanted = request.books, request.params
    email = wanted.get("customer_details", {}).get("email")

    def keep(row: Obj) -> bool:
        _current(books, row)
        return (
            all(wanted.get(name) in (None, row[name]) for name in ("customer", "payment_intent", "status"))
            and (email is None or (row["customer_details"] or {}).get("email") == email)
            and within(row["created"], wanted.get("created"))
        )

    return page(books.table("checkout.session"), wanted, request.path, keep)


def _list_line_items(request: Request) -> Obj:
    session = _find(request)
    items = request.books.table("line_items")[session["id"]]["data"]
    return page({item["id"]: item for item in reversed(items)}, request.params, request.path)


_LIST: Final = Group(
    dict(PAGE)
    | {
        "created": Span(),
        "customer": Text(),
        "customer_details": Group({"email": Text()}, required=frozenset({"email"})),
        "payment_intent": Text(),
        "status": Choice(("complete", "expired", "open")),
    },
    elsewhere=frozenset({"customer_account", "payment_link", "subscription"}),
)
_PATH: Final = ("v1", "checkout", "sessions")

ROUTES: Final = (
    Route("POST", _PATH, _create, _CREATE, "checkout_session_created"),
    Route("GET", _PATH, _list, _LIST),
    Route("GET", (*_PATH, "*"), _find, Group({"expand": EXPAND})),
    Route("GET", (*_PATH, "*", "line_items"), _list_line_items, Group(dict(PAGE))),
    Route("POST", (*_PATH, "*", "expire"), _expire, Group({"expand": EXPAND}), "checkout_session_expired"),
)
