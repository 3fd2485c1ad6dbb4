"""``rowclaim openapi``: the one document of everything that answers HTTP, and the list of who may call what.

Both are read off the routes themselves, as the cards describe them: a route that is missing here does not exist.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from services.kernel.auth import Access, PublicRoute
from services.kernel.service import Service
from services.operations.terminal import Terminal

if TYPE_CHECKING:
    from starlette.routing import BaseRoute, Route

TITLE: Final = "rowclaim"
VERSION: Final = "1"
PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "title": "Problem",
    "description": "RFC 9457. A program reads `code`; docs/reference/errors.md lists them all.",
    "required": ["type", "title", "status", "code"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
    },
}
BEARER: Final[dict[str, Any]] = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}


@dataclass(frozen=True, slots=True)
class Listed:
    """One route, as ``docs/reference/routes.md`` lists it."""

    method: str
    path: str
    access: Access
    summary: str


def openapi(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="On one line.")] = False,
) -> None:
    """The OpenAPI document of every route, to standard output."""
    terminal: Terminal = context.obj
    typer.echo(json.dumps(document(terminal.services), indent=None if as_json else 2))


def described(services: Iterable[Service]) -> "list[BaseRoute]":
    """Every route there is, wired to nothing: health, the operators', the slices'."""
    from services.operations import gate_routes
    from services.operations.access import undetermined
    from services.operations.web import health_routes

    auth = undetermined()
    routes = [*health_routes({}, None), *gate_routes.described(auth)]
    for service in services:
        if service.describe is not None:
            routes += service.describe(auth)
    return routes


def document(services: Iterable[Service]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    from fastapi.openapi.utils import get_openapi

    routes = described(services)
    whole = get_openapi(title=TITLE, version=VERSION, routes=[r for r in routes if not isinstance(r, PublicRoute)])
    for route in routes:
        if isinstance(route, PublicRoute):
            whole["paths"].setdefault(route.path, {})[method_of(route)] = dict(route.operation)
    components = whole.setdefault("components", {})
    components.setdefault("schemas", {})["Problem"] = PROBLEM
    components["securitySchemes"] = {"bearer": BEARER}
    whole["paths"] = dict(sorted(whole["paths"].items()))
    return whole


def listed(services: Iterable[Service]) -> list[Listed]:
    """Every route with who may call it, by path."""
    from services.operations.access import GuardedRoute

    rows = []
    for route in described(services):
        if isinstance(route, GuardedRoute):
            rows.append(Listed(method_of(route).upper(), route.path, route.access, route.summary or route.name))
        elif isinstance(route, PublicRoute):
            summary = str(route.operation.get("summary", route.name))
            rows.append(Listed(method_of(route).upper(), route.path, Access.PUBLIC, summary))
    return sorted(rows, key=lambda row: (row.path, row.method))


def method_of(route: "Route") -> str:
    """The route's one method, HEAD beside GET left out."""
    (method,) = (route.methods or set()) - {"HEAD"}
    return method.lower()
