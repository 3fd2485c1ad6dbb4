"""What one Stripe account holds: objects by kind, events, and who wants to hear of them."""

import copy
import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from services.sandbox.clock import SandboxClock
from services.sandbox.stripe.refusals import StripeRefusal, no_such

Obj: TypeAlias = dict[str, Any]

API_VERSION: Final = "2026-10-28.endive"
_LETTERS: Final = string.ascii_letters + string.digits


def new_id(prefix: str, length: int = 24) -> str:
    """An id of Stripe's looks: ``pi_3Nz…``."""
    return f"{prefix}_" + "".join(secrets.choice(_LETTERS) for _ in range(length))


@dataclass(frozen=True, slots=True)
class Cause:
    """The API request behind an event; both None when a person or time caused it."""

    request_id: str | None = None
    idempotency_key: str | None = None


NOBODY: Final = Cause()


@dataclass(slots=True)
class Books:
    """The state. Objects are JSON objects in the current version's shape; older shapes are made when rendering."""

    clock: SandboxClock
    tables: dict[str, dict[str, Obj]] = field(default_factory=dict)
    """By object name, then id, in order of creation."""
    listeners: list[Callable[[Obj], None]] = field(default_factory=list)

    def table(self, object_name: str) -> dict[str, Obj]:
        """All objects of one kind, oldest first."""
        return self.tables.setdefault(object_name, {})

    def put(self, obj: Obj) -> Obj:
        """Keep a new object."""
        self.table(obj["object"])[obj["id"]] = obj
        return obj

    def get(self, object_name: str, object_id: str, *, param: str = "id") -> Obj:
        """An object by id; raises StripeRefusal (resource_missing) naming ``param``."""
        obj = self.table(object_name).get(object_id)
        if obj is None:
            raise no_such(object_name, object_id, param)
        return obj

    def emit(self, event_type: str, obj: Obj, cause: Cause = NOBODY) -> Obj:
        """Record an event holding the object as it is now, and tell the listeners."""
        event = self.put(
            {
                "id": new_id("evt"),
                "object": "event",
                "api_version": API_VERSION,
                "created": self.clock.now_s(),
                "data": {"object": copy.deepcopy(obj)},
                "livemode": False,
                "pending_webhooks": 0,
                "request": {"id": cause.request_id, "idempotency_key": cause.idempotency_key},
                "type": event_type,
            }
        )
        for listener in self.listeners:
            listener(event)
        return event


def page(
    rows: Mapping[str, Obj], params: Mapping[str, Any], url: str, keep: Callable[[Obj], bool] = lambda _: True
) -> Obj:
    """A list answer, newest first, by cursor. Raises StripeRefusal for a cursor that is no row."""
    for cursor in ("starting_after", "ending_before"):
        if cursor in params and params[cursor] not in rows:
            raise no_such("object", params[cursor], cursor)
    if "starting_after" in params and "ending_before" in params:
        raise StripeRefusal("Received both starting_after and ending_before parameters.", param="ending_before")
    limit = params.get("limit", 10)
    ids = list(rows)[::-1]
    if "ending_before" in params:
        newer = [rows[row_id] for row_id in ids[: ids.index(params["ending_before"])] if keep(rows[row_id])]
        shown, has_more = newer[-limit:], len(newer) > limit
    else:
        start = ids.index(params["starting_after"]) + 1 if "starting_after" in params else 0
        older = [rows[row_id] for row_id in ids[start:] if keep(rows[row_id])]
        shown, has_more = older[:limit], len(older) > limit
    return {"object": "list", "data": shown, "has_more": has_more, "url": url}


def within(instant_s: int, span: Mapping[str, int] | None) -> bool:
    """Whether an instant lies within a Span parameter's bounds."""
    if span is None:
        return True
    return (
        instant_s > span.get("gt", -1)
        and instant_s >= span.get("gte", 0)
        and instant_s < span.get("lt", instant_s + 1)
        and instant_s <= span.get("lte", instant_s)
    )
