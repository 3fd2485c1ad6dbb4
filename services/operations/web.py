"""The HTTP side of a process: the slices' routes in one app, health, metrics, and errors as problem documents.

GET /health/live    the loop turns, and a consuming process consumes
GET /health/ready   the database answers and events can still be stored; 503 names what is not so
GET /metrics        Prometheus text
"""

import asyncio
import contextlib
import math
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import structlog
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, Counter, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.kernel.auth import PublicRoute
from services.kernel.errors import CODES, Invariant, Refusal, Retryable, ServiceError, Stop
from services.kernel.telemetry import Trace, unit_of_work

log = structlog.get_logger()

REQUESTS: Final = Counter("rowclaim_http_requests", "Requests answered.", ["route", "method", "status"])
SECONDS: Final = Histogram("rowclaim_http_request_seconds", "How long requests took.", ["route", "method"])

CHECK_S: Final = 2.0
DRAIN_S: Final = 5
# A sender that was told "not now" should not come back at once.
RETRY_AFTER_S: Final = 5
HTTP_CODES: Final[Mapping[int, str]] = {
    HTTPStatus.BAD_REQUEST: "request_not_json",  # what FastAPI answers for a body it cannot decode at all
    HTTPStatus.NOT_FOUND: "not_found",
    HTTPStatus.METHOD_NOT_ALLOWED: "method_not_allowed",
}

_JSON: Final = {"application/json": {"schema": {"type": "object"}}}
LIVE: Final[Mapping[str, object]] = {
    "summary": "Whether the process works",
    "responses": {
        "200": {"description": "The loop turns, and a consuming process consumes.", "content": _JSON},
        "503": {"description": "Start it anew.", "content": _JSON},
    },
}
READY: Final[Mapping[str, object]] = {
    "summary": "Whether requests should be sent here",
    "responses": {
        "200": {"description": "Every check is well.", "content": _JSON},
        "503": {"description": "One is not; it is named.", "content": _JSON},
    },
}
METRICS: Final[Mapping[str, object]] = {
    "summary": "Metrics, as Prometheus reads them",
    "responses": {"200": {"description": "Text.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
}

Checks = Mapping[str, Callable[[], Awaitable[str | None]]]
"""Readiness, by name: None when it is as it should be, else what is not."""
Alive = Callable[[], Awaitable[bool]]
OnInvariant = Callable[[Invariant], Awaitable[None]]


def make_app(
    routes: Sequence[BaseRoute], checks: Checks, on_invariant: OnInvariant, alive: Alive | None = None
) -> ASGIApp:
    """One app of all routes, with health, metrics and problem documents. Raises Invariant("route_unguarded").

    Bare routes (the webhooks) are answered by Starlette alone; FastAPI's own stand behind it, with all that costs.
    """
    handlers = exception_handlers(on_invariant)
    bare = [route for route in routes if isinstance(route, PublicRoute)]
    guarded = [route for route in routes if not isinstance(route, PublicRoute)]
    app = Starlette(routes=[*health_routes(checks, alive), *bare], exception_handlers=handlers)
    app.router.redirect_slashes = False  # a redirected POST is a lost one for most senders
    if guarded:
        app.router.default = api_of(guarded, handlers)
    return Observed(app)


def api_of(routes: Sequence[BaseRoute], handlers: Mapping[Any, Any]) -> ASGIApp:
    """The routes that FastAPI describes and reads, every one of them guarded."""
    # Imported here: a process without such a route starts a quarter of a second sooner.
    from fastapi import FastAPI
    from fastapi.exceptions import RequestValidationError, ResponseValidationError

    from services.operations.access import GuardedRoute

    async def invalid(_: Request, error: RequestValidationError) -> Response:
        # A body that was not decoded is handed over as it came: its type was not given as JSON.
        if isinstance(error.body, bytes) or any(fault["type"] == "json_invalid" for fault in error.errors()):
            return problem_of(Refusal("request_not_json"))
        return problem_of(Refusal("request_invalid", places_of(error.errors())))

    async def misshapen(request: Request, error: ResponseValidationError) -> Response:
        # Told anew: the original shows what was to be answered, and the log must name no person.
        told: Response = await handlers[ServiceError](request, Invariant("response_invalid", places_of(error.errors())))
        return told

    for route in routes:
        if not isinstance(route, GuardedRoute):
            raise Invariant("route_unguarded", getattr(route, "path", type(route).__name__))
    own: dict[Any, Any] = {**handlers, RequestValidationError: invalid, ResponseValidationError: misshapen}
    api = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, exception_handlers=own)
    api.router.routes.extend(routes)
    return api


def places_of(faults: Sequence[Any]) -> str:
    """Where something is not as described; never what stood there, nor a member's name of the sender's making."""
    places = [fault["loc"][:-1] if fault["type"] == "extra_forbidden" else fault["loc"] for fault in faults]
    return ", ".join(dict.fromkeys(".".join(str(part) for part in place) for place in places))


def exception_handlers(on_invariant: OnInvariant) -> dict[Any, Any]:
    """Every error as a problem document."""

    async def service_error(_: Request, error: ServiceError) -> Response:
        if isinstance(error, Invariant):
            log.critical("http.invariant", exc_info=error)
            await on_invariant(error)
        return problem_of(error)

    async def http_error(_: Request, error: HTTPException) -> Response:
        name = HTTP_CODES.get(error.status_code)
        if name is None:
            return problem(error.status_code, f"http_{error.status_code}", error.detail, headers=error.headers)
        code = CODES[name]
        return problem(code.status or error.status_code, name, code.sentence, headers=error.headers)

    async def unforeseen(_: Request, _error: Exception) -> Response:
        # Told to the caller only: the error goes on to the server, which logs it.
        return problem_of(ServiceError("internal_error"))

    return {ServiceError: service_error, HTTPException: http_error, Exception: unforeseen}


def health_routes(checks: Checks, alive: Alive | None) -> list[PublicRoute]:
    async def live(_: Request) -> Response:
        lives = alive is None or await alive()
        return JSONResponse({"live": lives}, HTTPStatus.OK if lives else HTTPStatus.SERVICE_UNAVAILABLE)

    async def ready(_: Request) -> Response:
        found = {name: await _checked(check) for name, check in checks.items()}
        status = HTTPStatus.OK if not any(found.values()) else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse(
            {"ready": status == HTTPStatus.OK, "checks": {n: f or "ok" for n, f in found.items()}}, status
        )

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return [
        PublicRoute("/health/live", live, name="live", operation=LIVE),
        PublicRoute("/health/ready", ready, name="ready", operation=READY),
        PublicRoute("/metrics", metrics, name="metrics", operation=METRICS),
    ]


async def _checked(check: Callable[[], Awaitable[str | None]]) -> str | None:
    try:
        async with asyncio.timeout(CHECK_S):
            return await check()
    except (Retryable, TimeoutError) as error:
        return error.code.name if isinstance(error, Retryable) else "no answer"


def problem_of(error: ServiceError) -> Response:
    """The answer to an error of the list. What broke inside us is for the log, not for the caller."""
    status = error.code.status or HTTPStatus.INTERNAL_SERVER_ERROR
    headers: dict[str, str] = {}
    wait_s = error.retry_after_s
    if wait_s is None and isinstance(error, Retryable):
        wait_s = RETRY_AFTER_S
    if wait_s is not None:
        headers["retry-after"] = str(max(math.ceil(wait_s), 1))
    if status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    detail = "" if status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, Retryable) else error.detail
    return problem(status, error.code.name, error.code.sentence, detail, members=error.members, headers=headers)


def problem(
    status: int,
    code: str,
    title: str,
    detail: str = "",
    *,
    members: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A problem document (RFC 9457); ``code`` is the member a program reads."""
    body = {"type": f"urn:rowclaim:error:{code}", "title": title, "status": int(status), "code": code}
    if detail:
        body["detail"] = detail
    body = {**(members or {}), **body}
    return JSONResponse(body, status, headers, media_type="application/problem+json")


class Observed:
    """Around the app: the caller's trace or a new one for every line logged, and one count for every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"traceparent"), b"")
        caller = Trace.parse(given.decode("latin-1"))
        trace = caller.child() if caller is not None else Trace.begin()
        status = HTTPStatus.INTERNAL_SERVER_ERROR.value

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"traceparent", trace.header.encode())]
            await send(message)

        began = asyncio.get_running_loop().time()
        try:
            with unit_of_work(trace=trace):
                await self._app(scope, receive, observed)
        finally:
            # The pattern, not the path: a path holds ids.
            route = getattr(scope.get("route"), "path", "none")
            REQUESTS.labels(route, scope["method"], status).inc()
            SECONDS.labels(route, scope["method"]).observe(asyncio.get_running_loop().time() - began)


class _Server(uvicorn.Server):
    """Signals are the process's: uvicorn would raise a captured one a second time after it has stopped."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """Our own listening socket, before anything runs. Raises Stop("port_taken")."""
    try:
        return socket.create_server((host, port), backlog=2048, reuse_port=False)
    except OSError as error:
        raise Stop("port_taken", f"{host}:{port}: {error.strerror}") from error


async def serve_http(app: ASGIApp, listener: socket.socket, stopping: asyncio.Event) -> None:
    """Answer on ``listener`` until ``stopping`` is set; requests in hand are then answered, within five seconds."""
    config = uvicorn.Config(
        app,
        loop="none",
        http="httptools",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_S,
    )
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    told = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({serving, told}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
    finally:
        told.cancel()
        listener.close()
