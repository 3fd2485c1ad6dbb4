"""Who calls, and how a route comes to exist: ``Auth.routes`` for the API, ``PublicRoute`` for everything else.

There is no third way: a serving process refuses at boot a route that is neither. The checks themselves (token, role,
rate, size of the body) are the serving process's (``operations/access.py``); a slice only says who may call.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.kernel.errors import Invariant

if TYPE_CHECKING:
    from fastapi import APIRouter

CALLER: Final = "rowclaim.caller"
ADMIN_ROLE: Final = "admin"


class Access(StrEnum):
    """Who may call a route."""

    PUBLIC = "public"
    """Anybody; limited by address."""
    USER = "user"
    """Whoever shows a good token. What is another's must read as absent: that is the slice's SQL."""
    ADMIN = "admin"
    """Whoever's token says the role ``admin``."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose token it is; ``role`` as the token says it."""

    user_id: str
    role: str | None = None

    @property
    def is_admin(self) -> bool:
        return self.role == ADMIN_ROLE


class Auth(Protocol):
    """The door of a serving process."""

    def routes(self, access: Access) -> "APIRouter":
        """A router for one kind of caller. A request to a route of it is let in (401, 403), counted (429) and read
        (413, 408) before anything of its body is parsed. Give its ``.routes`` to the card; never nest routers."""
        ...


def caller(request: Request) -> Caller:
    """In a handler: ``who: Annotated[Caller, Depends(caller)]``. Raises Invariant where anybody may call."""
    found = request.scope.get(CALLER)
    if not isinstance(found, Caller):
        raise Invariant("caller_unknown", request.url.path)
    return found


def refusal(description: str) -> dict[str, object]:
    """An OpenAPI response whose body is a problem document (RFC 9457)."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": description, "content": {"application/problem+json": {"schema": schema}}}


class PublicRoute(Route):
    """A bare route (a webhook, health) that carries its OpenAPI operation. It guards itself, and is not limited."""

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        methods: Collection[str] = ("GET",),
        name: str,
        operation: Mapping[str, object],
    ) -> None:
        super().__init__(path, endpoint, methods=methods, name=name)
        self.operation = {"operationId": name, **operation}


async def unwired(request: Request) -> Response:
    """The endpoint of a bare route that is only described."""
    raise Invariant("route_unwired", request.url.path)
