"""``expand``: ids replaced by their objects, and parts that are only there when asked for."""

import copy
from collections.abc import Mapping
from typing import Any, Final

from services.sandbox.stripe.books import Books, Obj
from services.sandbox.stripe.refusals import StripeRefusal, not_played

DEPTH_MAX: Final = 4

EXPANDABLE: Final[Mapping[str, Mapping[str, str | None]]] = {
    "checkout.session": {
        "customer": "customer",
        "payment_intent": "payment_intent",
        "line_items": "line_items",
        "invoice": None,
        "payment_link": None,
        "setup_intent": None,
        "subscription": None,
    },
    "payment_intent": {
        "customer": "customer",
        "application": None,
        "latest_charge": "charge",
        "on_behalf_of": None,
        "payment_method": None,
        "review": None,
    },
    "charge": {
        "customer": "customer",
        "payment_intent": "payment_intent",
        "application": None,
        "application_fee": None,
        "balance_transaction": None,
        "failure_balance_transaction": None,
        "on_behalf_of": None,
        "refunds": None,
        "review": None,
        "source_transfer": None,
    },
    "price": {"product": "product", "tiers": None},
    "product": {"default_price": "price", "tax_code": None},
    "item": {},
    "customer": {"default_source": None, "sources": None, "subscriptions": None, "tax": None, "tax_ids": None},
}
"""Per object, what can be expanded and into what; None for what Stripe expands and this sandbox does not hold."""

ASKED_FOR_ONLY: Final = frozenset({"line_items"})
"""Not an id in the object, but a list kept beside it under the object's own id."""


def expand(answer: Obj, paths: list[str], books: Books) -> Obj:
    """A copy of the answer with these paths expanded. Raises StripeRefusal for a path that cannot be."""
    expanded = copy.deepcopy(answer)
    for path in paths:
        parts = path.split(".")
        if len(parts) > DEPTH_MAX:
            raise StripeRefusal(f"You cannot expand more than {DEPTH_MAX} levels: {path}", param="expand")
        _expand(expanded, parts, path, books)
    return expanded


def _expand(node: Any, parts: list[str], path: str, books: Books) -> None:
    if not parts or node is None:
        return
    if isinstance(node, list):
        for one in node:
            _expand(one, parts, path, books)
        return
    name, *rest = parts
    if node.get("object") == "list":
        if name != "data":
            raise _cannot(path)
        _expand(node["data"], rest, path, books)
        return
    fields = EXPANDABLE.get(node["object"], {})
    if name in fields:
        _replace(node, name, fields[name], books)
    elif not (rest and isinstance(node.get(name), dict) and "object" in node[name]):
        raise _cannot(path)
    _expand(node.get(name), rest, path, books)


def _replace(node: Obj, name: str, target: str | None, books: Books) -> None:
    if name in ASKED_FOR_ONLY:
        node[name] = copy.deepcopy(books.table(name)[node["id"]])
    elif isinstance(held := node.get(name), str):
        if target is None:
            raise not_played(f"Expanding {name}", "expand")
        node[name] = copy.deepcopy(books.get(target, held))


def _cannot(path: str) -> StripeRefusal:
    return StripeRefusal(f"This property cannot be expanded ({path}).", param="expand")
