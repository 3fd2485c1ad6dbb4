"""Events: what happened, for whoever was not told or did not listen. Kept 30 days."""

from fnmatch import fnmatchcase
from typing import Final

from services.sandbox.stripe.books import Obj, page, within
from services.sandbox.stripe.params import EXPAND, PAGE, Flag, Group, Many, Span, Text
from services.sandbox.stripe.refusals import StripeRefusal, no_such
from services.sandbox.stripe.routes import Request, Route

KEPT_S: Final = 30 * 24 * 3600
TYPES_MAX: Final = 20


def wants(patterns: list[str], event_type: str) -> bool:
    """Whether an event type is among these names, where ``*`` stands for any part (``checkout.session.*``)."""
    return any(fnmatchcase(event_type, pattern) for pattern in patterns)


def _list(request: Request) -> Obj:
    wanted = request.params
    if "type" in wanted and "types" in wanted:
        raise StripeRefusal("You may only specify one of these parameters: type, types.", param="type")
    patterns = wanted.get("types") or ([wanted["type"]] if "type" in wanted else ["*"])
    oldest_s = request.books.clock.now_s() - KEPT_S

    def keep(row: Obj) -> bool:
        delivered = row["pending_webhooks"] == 0
        return (
            row["created"] > oldest_s
            and wants(patterns, row["type"])
            and within(row["created"], wanted.get("created"))
            and wanted.get("delivery_success", delivered) == delivered
        )

    return page(request.books.table("event"), wanted, request.path, keep)


def _retrieve(request: Request) -> Obj:
    event = request.books.get("event", request.ids[0])
    if event["created"] <= request.books.clock.now_s() - KEPT_S:
        raise no_such("event", event["id"], "id")
    return event


def _retrieve_thin(request: Request) -> Obj:
    return request.books.get("v2.core.event", request.ids[0])


ROUTES: Final = (
    Route(
        "GET",
        ("v1", "events"),
        _list,
        Group(
            dict(PAGE)
            | {"created": Span(), "delivery_success": Flag(), "type": Text(), "types": Many(Text(), most=TYPES_MAX)}
        ),
    ),
    Route("GET", ("v1", "events", "*"), _retrieve, Group({"expand": EXPAND})),
    Route("GET", ("v2", "core", "events", "*"), _retrieve_thin),
)
