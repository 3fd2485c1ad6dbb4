"""The door of the API: who calls, may they, not too often, not too much. Only then is anything of a body parsed.

Imported by processes that serve such routes, and by whoever describes them: it brings FastAPI along.
"""

import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from http import HTTPStatus
from typing import Any, ClassVar, Final, Protocol

import structlog
from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive

from services.kernel.auth import CALLER, Access, Caller, refusal
from services.kernel.bodies import CutOff, read_body
from services.kernel.errors import Refusal
from services.operations.limits import RateLimits
from services.operations.process import Process
from services.operations.tokens import Keys, Tokens

log = structlog.get_logger()

MakeKeys = Callable[[Process], Awaitable[Keys]]
"""How a process gets the issuer's keys; wired where vendors are known."""
CUT_OFF: Final = {"too_large": "request_too_large", "too_slow": "request_too_slow"}


class Callers(Protocol):
    """Tells whose token it is."""

    async def caller_of(self, authorization: Sequence[str]) -> Caller:
        """``authorization``: every header of that name. Raises Refusal (401), Retryable("keys_unavailable")."""
        ...


class Limits(Protocol):
    """Counts requests."""

    async def count(self, kind: str, who: str) -> None:
        """One more of ``who``, a ``user`` or an ``address``. Raises Refusal("rate_limited")."""
        ...


class Guard:
    """``kernel.auth.Auth`` of a serving process."""

    def __init__(self, callers: Callers, limits: Limits, *, body_bytes_max: int) -> None:
        self._callers = callers
        self._limits = limits
        self.body_bytes_max = body_bytes_max

    def routes(self, access: Access) -> APIRouter:
        guarding = {"guard": self, "access": access}
        return APIRouter(
            route_class=type("GuardedRoute", (GuardedRoute,), guarding),
            responses=refusals(access),
            generate_unique_id_function=lambda route: route.name,
        )

    async def admit(self, request: Request, access: Access) -> None:
        """Let a request in. Raises Refusal, Retryable; nothing of its body was read."""
        if access is Access.PUBLIC:
            await self._limits.count("address", request.client.host if request.client else "")
            return
        who = await self._callers.caller_of(request.headers.getlist("authorization"))
        if access is Access.ADMIN and not who.is_admin:
            raise Refusal("role_missing")
        await self._limits.count("user", who.user_id)
        request.scope[CALLER] = who


class GuardedRoute(APIRoute):
    """A route of the API. ``Guard.routes`` makes the class whose guard and access are set."""

    guard: ClassVar[Guard]
    access: ClassVar[Access]

    def __init__(self, path: str, endpoint: Callable[..., Any], **described: Any) -> None:
        if self.access is not Access.PUBLIC:
            described["openapi_extra"] = {"security": [{"bearer": []}], **(described.get("openapi_extra") or {})}
        super().__init__(path, endpoint, **described)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            await self.guard.admit(request, self.access)
            body = await read_body(request.receive, self.guard.body_bytes_max)
            if body is None:
                return Response(status_code=HTTPStatus.BAD_REQUEST)  # who hung up reads no answer
            if isinstance(body, CutOff):
                raise Refusal(CUT_OFF[body.why])
            _refuse_unstorable(request, body)
            return await handle(Request(request.scope, _replayed(body, request.receive)))

        return guarded


def _refuse_unstorable(request: Request, body: bytes) -> None:
    """Refuse what no database takes as text (a NUL, half of a surrogate pair), once for every field of every route."""
    if "\x00" in request.scope["path"] or b"%00" in request.scope["query_string"]:
        raise Refusal("request_invalid", "path or query")
    # The parser would guess UTF-16 and UTF-32, whose escapes are not found below; both hold NULs, or are no UTF-8.
    if b"\x00" in body or not _is_utf8(body):
        raise Refusal("request_not_json")
    if b"\\u" not in body:
        return  # neither can stand in JSON but as an escape
    try:
        text = json.dumps(json.loads(body), ensure_ascii=False)
        text.encode()
    except (RecursionError, ValueError):
        raise Refusal("request_not_json") from None
    if "\\u0000" in text.replace("\\\\", ""):
        raise Refusal("request_invalid", "body")


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once more for who parses it, then whatever comes (the hanging up)."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


def refusals(access: Access) -> dict[int | str, dict[str, Any]]:
    """What every route may answer beside its own, for the API's document."""
    known = {
        HTTPStatus.BAD_REQUEST: "The request cannot be taken as it is.",
        HTTPStatus.REQUEST_TIMEOUT: "The body did not arrive in time.",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too long.",
        HTTPStatus.UNPROCESSABLE_ENTITY: "The request is not as described.",
        HTTPStatus.TOO_MANY_REQUESTS: "Too many requests; come again after `retry-after` seconds.",
        HTTPStatus.INTERNAL_SERVER_ERROR: "Something of ours is broken.",
        HTTPStatus.SERVICE_UNAVAILABLE: "Not now; the same request may succeed later.",
    }
    if access is not Access.PUBLIC:
        known[HTTPStatus.UNAUTHORIZED] = "No token, or none that is good."
    if access is Access.ADMIN:
        known[HTTPStatus.FORBIDDEN] = "The token lacks the role."
    return {status.value: refusal(sentence) for status, sentence in sorted(known.items())}


async def open_guard(process: Process, make_keys: MakeKeys | None) -> Guard:
    """The guard of a serving process, by its settings."""
    settings = process.settings
    valkey_url = settings.valkey_url.get_secret_value() if settings.valkey_url else None
    limits = RateLimits(settings.http_rate_per_minute, valkey_url)
    process.on_close(limits.aclose)
    callers: Callers = _Nobody()
    if settings.auth_issuer is None or make_keys is None:
        log.warning("auth.unconfigured")
    else:
        callers = Tokens(
            await make_keys(process),
            issuer=settings.auth_issuer,
            parties=settings.auth_authorized_parties,
            role_claim=settings.auth_role_claim,
        )
    return Guard(callers, limits, body_bytes_max=settings.http_body_bytes_max)


class _Nobody:
    """Lets nobody in: no issuer is known."""

    async def caller_of(self, authorization: Sequence[str]) -> Caller:
        raise Refusal("auth_unconfigured")


class _Uncounted:
    async def count(self, kind: str, who: str) -> None:
        raise Refusal("auth_unconfigured")


def undetermined() -> Guard:
    """A guard that is wired to nothing, for documents: nobody gets in."""
    return Guard(_Nobody(), _Uncounted(), body_bytes_max=0)
