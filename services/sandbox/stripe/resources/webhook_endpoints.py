"""Webhook endpoints: who is told, of what, in which API version."""

from typing import Any, Final

from services.sandbox.stripe.books import Books, Obj, new_id, page
from services.sandbox.stripe.params import EXPAND, PAGE, Flag, Group, Kind, Many, Metadata, Text
from services.sandbox.stripe.refusals import invalid
from services.sandbox.stripe.routes import Request, Route
from services.sandbox.stripe.versions import is_known

_FIELDS: Final[dict[str, Kind]] = {
    "description": Text(),
    "enabled_events": Many(Text(), most=500),
    "expand": EXPAND,
    "metadata": Metadata(),
    "url": Text(2048),
}


def create_endpoint(
    books: Books,
    url: str,
    enabled_events: list[str],
    *,
    api_version: str | None = None,
    description: str | None = None,
    metadata: dict[str, str] | None = None,
    secret: str | None = None,
) -> Obj:
    """A new endpoint. The secret is in the answer to its creation and never again; without one a new one is minted."""
    endpoint: Obj = {
        "id": new_id("we"),
        "object": "webhook_endpoint",
        "api_version": api_version,
        "application": None,
        "created": books.clock.now_s(),
        "description": description,
        "enabled_events": enabled_events,
        "livemode": False,
        "metadata": metadata or {},
        "status": "enabled",
        "url": url,
    }
    books.put(endpoint)
    books.table("webhook_secrets")[endpoint["id"]] = {
        "secrets": [{"secret": secret or new_id("whsec", 32), "until_s": None}]
    }
    return endpoint


def active_secrets(books: Books, endpoint_id: str) -> list[str]:
    """The secrets that sign now, newest first: two while a rotation runs."""
    now_s = books.clock.now_s()
    return [
        row["secret"]
        for row in books.table("webhook_secrets")[endpoint_id]["secrets"]
        if row["until_s"] is None or row["until_s"] > now_s
    ]


def roll_secret(books: Books, endpoint_id: str, *, keep_old_s: int, secret: str | None = None) -> str:
    """A new secret, as the dashboard rolls it; the old one keeps signing beside it for ``keep_old_s``, at most 24 h."""
    if not 0 <= keep_old_s <= 24 * 3600:
        raise ValueError(f"an old secret can be kept for 0 to 86400 s, got {keep_old_s}")
    kept: Any = books.table("webhook_secrets")[endpoint_id]
    until_s = books.clock.now_s() + keep_old_s
    for row in kept["secrets"]:
        row["until_s"] = min(row["until_s"], until_s) if row["until_s"] is not None else until_s
    new_secret = secret or new_id("whsec", 32)
    kept["secrets"].insert(0, {"secret": new_secret, "until_s": None})
    return new_secret


def _create(request: Request) -> Obj:
    params = dict(request.params)
    params.pop("expand", None)
    if "api_version" in params and not is_known(params["api_version"]):
        raise invalid(f"Invalid API version: {params['api_version']}", "api_version")
    endpoint = create_endpoint(request.books, **params)
    return endpoint | {"secret": active_secrets(request.books, endpoint["id"])[0]}


def _find(request: Request) -> Obj:
    return request.books.get("webhook_endpoint", request.ids[0])


def _list(request: Request) -> Obj:
    return page(request.books.table("webhook_endpoint"), request.params, request.path)


def _update(request: Request) -> Obj:
    endpoint, params = _find(request), dict(request.params)
    params.pop("expand", None)
    if "disabled" in params:
        endpoint["status"] = "disabled" if params.pop("disabled") else "enabled"
    endpoint |= params
    return endpoint


def _delete(request: Request) -> Obj:
    endpoint = _find(request)
    del request.books.table("webhook_endpoint")[endpoint["id"]]
    return {"id": endpoint["id"], "object": "webhook_endpoint", "deleted": True}


_PATH: Final = ("v1", "webhook_endpoints")

ROUTES: Final = (
    Route(
        "POST",
        _PATH,
        _create,
        Group(
            _FIELDS | {"api_version": Text()},
            required=frozenset({"enabled_events", "url"}),
            elsewhere=frozenset({"connect"}),
        ),
        "webhook_endpoint_created",
    ),
    Route("GET", _PATH, _list, Group(dict(PAGE))),
    Route("GET", (*_PATH, "*"), _find, Group({"expand": EXPAND})),
    Route("POST", (*_PATH, "*"), _update, Group(_FIELDS | {"disabled": Flag()}), "webhook_endpoint_updated"),
    Route("DELETE", (*_PATH, "*"), _delete, Group({}), "webhook_endpoint_deleted"),
)
