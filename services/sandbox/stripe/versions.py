"""Older API versions: today's objects walked back through the breaking changes that touch them.

Stripe renders a webhook in the version of the *endpoint*, whatever the caller's library speaks, so a consumer must
read an old shape and know a new one it has never seen. Additions are in every version; only breaking changes are here.
"""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from services.sandbox.stripe.books import API_VERSION, Obj

_LOOK: Final = re.compile(r"^(?P<day>20\d\d-\d\d-\d\d)(\.[a-z]+)?$")


@dataclass(frozen=True, slots=True)
class Change:
    """A breaking change: objects rendered for a version before ``day`` are changed back."""

    day: str
    object_name: str
    back: Callable[[Obj], None]


def _old_ui_mode(session: Obj) -> None:
    session["ui_mode"] = {
        "elements": "custom",
        "embedded_page": "embedded",
        "hosted_page": "hosted",
    }.get(session["ui_mode"], session["ui_mode"])


def _shipping_details_outside(session: Obj) -> None:
    session["shipping_details"] = (session["collected_information"] or {}).get("shipping_details")
    session.pop("collected_information")


def _shipping_before_cost(session: Obj) -> None:
    session["shipping"] = session.pop("shipping_details")
    cost = session.pop("shipping_cost")
    session["shipping_rate"] = cost and cost["shipping_rate"]


def _invoice_inside(charge: Obj) -> None:
    charge["invoice"] = None


CHANGES: Final = (
    Change("2026-03-25", "checkout.session", _old_ui_mode),
    Change("2025-03-31", "charge", _invoice_inside),
    Change("2025-03-31", "checkout.session", _shipping_details_outside),
    Change("2022-08-01", "checkout.session", _shipping_before_cost),
)
"""Newest first, the order in which they are undone."""


def is_known(version: str) -> bool:
    """Whether Stripe would accept this as a version: the right look, and not after the current one."""
    match = _LOOK.match(version)
    return match is not None and match["day"] <= API_VERSION[:10]


def render(obj: Obj, version: str) -> Obj:
    """A copy in the shape of that version; a version nobody knows yet has today's shape."""
    rendered = copy.deepcopy(obj)
    _walk(rendered, version[:10])
    return rendered


def render_event(event: Obj, version: str) -> Obj:
    """The event as an endpoint of that version receives it."""
    rendered = render(event, version)
    rendered["api_version"] = version
    return rendered


def _walk(node: object, day: str) -> None:
    if isinstance(node, list):
        for one in node:
            _walk(one, day)
    elif isinstance(node, dict):
        for change in CHANGES:
            if node.get("object") == change.object_name and day < change.day:
                change.back(node)
        for inner in node.values():
            _walk(inner, day)
