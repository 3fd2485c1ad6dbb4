"""The HTTP side: health, problem documents, traces, metrics, and a stop that answers what was asked."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import structlog
from fastapi import APIRouter
from prometheus_client import REGISTRY
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from services.kernel.auth import Access, PublicRoute
from services.kernel.errors import CODES, Invariant, Refusal, Retryable, Stop
from services.operations import web
from tests.fixtures.tokens import make_guard
from tests.waiting import wait_until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def well() -> str | None:
    return None


class Client:
    """An app in this process, and what it told of broken laws."""

    def __init__(self, *routes: BaseRoute, checks: web.Checks | None = None, alive: web.Alive | None = None) -> None:
        self.told: list[Invariant] = []
        app = web.make_app(routes, checks or {}, self._tell, alive)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://test")

    async def _tell(self, error: Invariant) -> None:
        self.told.append(error)

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.http.get(path, headers=headers)


def bare(path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> PublicRoute:
    return PublicRoute(path, endpoint, name="bare", operation={"responses": {}})


def raising(error: Exception) -> PublicRoute:
    async def endpoint(_: Request) -> Response:
        raise error

    return bare("/raise", endpoint)


def api() -> APIRouter:
    """Routes that anybody may call."""
    return make_guard().routes(Access.PUBLIC)


async def test_live_is_the_loop_or_the_consumer() -> None:
    assert (await Client().get("/health/live")).json() == {"live": True}

    async def dead() -> bool:
        return False

    answer = await Client(alive=dead).get("/health/live")
    assert (answer.status_code, answer.json()) == (503, {"live": False})


async def test_ready_is_every_check() -> None:
    answer = await Client(checks={"one": well}).get("/health/ready")
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "checks": {"one": "ok"}})

    async def amiss() -> str | None:
        return "two weeks are missing"

    async def gone() -> str | None:
        raise Retryable("database_unavailable", "ConnectionRefusedError")

    answer = await Client(checks={"one": well, "two": amiss, "three": gone}).get("/health/ready")
    assert answer.status_code == 503
    assert answer.json() == {
        "ready": False,
        "checks": {"one": "ok", "two": "two weeks are missing", "three": "database_unavailable"},
    }


async def test_a_check_that_hangs_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hanging() -> str | None:
        await asyncio.Event().wait()
        return None

    monkeypatch.setattr(web, "CHECK_S", 0.05)
    answer = await Client(checks={"slow": hanging}).get("/health/ready")
    assert (answer.status_code, answer.json()["checks"]) == (503, {"slow": "no answer"})


async def test_a_refusal_says_what_to_do() -> None:
    answer = await Client(raising(Refusal("body_too_large", "300 bytes"))).get("/raise")
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert (answer.status_code, body["status"], body["code"], body["detail"]) == (
        413,
        413,
        "body_too_large",
        "300 bytes",
    )
    assert body["title"].startswith("The body is longer than ")


async def test_not_now_is_a_503_with_a_wait() -> None:
    answer = await Client(raising(Retryable("database_unavailable", "TimeoutError"))).get("/raise")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json() == {
        "type": "urn:rowclaim:error:database_unavailable",
        "title": CODES["database_unavailable"].sentence,
        "status": 503,
        "code": "database_unavailable",
        "detail": "TimeoutError",
    }


async def test_a_broken_law_is_told_inside_and_not_outside() -> None:
    client = Client(raising(Invariant("fence_refused", "purchases row 12")))
    answer = await client.get("/raise")
    assert (answer.status_code, answer.json()["code"]) == (500, "fence_refused")
    assert "detail" not in answer.json()
    assert [str(error) for error in client.told] == ["fence_refused: purchases row 12"]


async def test_what_nobody_foresaw_is_a_500() -> None:
    answer = await Client(raising(ZeroDivisionError("secret"))).get("/raise")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert answer.headers["content-type"] == "application/problem+json"
    assert "secret" not in answer.text


async def test_what_nobody_foresaw_in_the_api_is_one_too() -> None:
    router = api()

    @router.get("/api")
    async def broken() -> None:
        raise ZeroDivisionError("secret")

    answer = await Client(*router.routes).get("/api")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "secret" not in answer.text


async def test_an_answer_that_is_not_as_described_is_told_inside_without_what_stood_there() -> None:
    router = api()

    @router.get("/api")
    async def broken() -> dict[str, int]:
        return {"count": "ann@example.com"}

    client = Client(*router.routes)
    with structlog.testing.capture_logs() as logs:
        answer = await client.get("/api")
    assert (answer.status_code, answer.json()["code"]) == (500, "response_invalid")
    assert [str(error) for error in client.told] == ["response_invalid: response.count"]
    assert "ann@example.com" not in answer.text + repr(logs)


async def test_an_error_says_when_to_come_again_and_what_belongs_to_it() -> None:
    refusal = Refusal(
        "rate_limited", retry_after_s=59.2, members={"cooldownUntil": "2026-12-01T00:00:00Z", "code": "x"}
    )
    answer = await Client(raising(refusal)).get("/raise")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")
    assert (answer.json()["cooldownUntil"], answer.json()["code"]) == ("2026-12-01T00:00:00Z", "rate_limited")
    answer = await Client(raising(Retryable("gate_closed", retry_after_s=0.0))).get("/raise")
    assert answer.headers["retry-after"] == "1"
    answer = await Client(raising(Refusal("token_expired"))).get("/raise")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("route", [Route("/a", lambda request: request), Mount("/sub", APIRouter())])
async def test_a_route_that_is_neither_guarded_nor_public_is_refused_at_boot(route: BaseRoute) -> None:
    with pytest.raises(Invariant, match="route_unguarded: /"):
        Client(route)


async def test_a_route_of_fastapis_own_router_is_refused_at_boot() -> None:
    router = APIRouter()
    router.add_api_route("/a", well)
    with pytest.raises(Invariant, match="route_unguarded: /a"):
        Client(*router.routes)
    nested = api()
    nested.include_router(router)
    with pytest.raises(Invariant, match="route_unguarded"):
        Client(*nested.routes)


@pytest.mark.parametrize(
    ("content", "kind", "code"),
    [
        (b"{", "application/json", "request_not_json"),
        (b"\xff", "application/json", "request_not_json"),
        (b"[" * 60_000, "application/json", "request_not_json"),
        (b'{"name": "ann"}', "text/plain", "request_not_json"),
        (b"name=ann", "application/x-www-form-urlencoded", "request_not_json"),
        (b'{"name": "ann"}', "", "request_not_json"),
        (b"", "application/json", "request_invalid"),
        (b"[]", "application/json", "request_invalid"),
        (b'"ann"', "application/json", "request_invalid"),
        (b"null", "application/json", "request_invalid"),
        (b'{"name": 7}', "application/json", "request_invalid"),
        (b'{"name": "\\ud800"}', "application/json", "request_not_json"),
        (b'{"name": "\\u0000"}', "application/json", "request_invalid"),
    ],
)
async def test_a_body_that_is_not_as_described_is_a_422(content: bytes, kind: str, code: str) -> None:
    class Body(BaseModel):
        name: str

    router = api()

    @router.post("/api")
    async def named(body: Body) -> str:
        return body.name

    client = Client(*router.routes)
    headers = {"content-type": kind} if kind else {}
    answer = await client.http.post("/api", content=content, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    for name in ("ann", "\\u0000", "é\U0001f600\t", "\x01"):
        assert (await client.http.post("/api", json={"name": name})).json() == name


async def test_a_slash_too_many_is_not_found_rather_than_led_elsewhere() -> None:
    router = api()
    router.add_api_route("/api", well)
    answer = await Client(*router.routes).get("/api/")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/absent", 404, "not_found"),
        ("POST", "/metrics/", 404, "not_found"),
        ("DELETE", "/health/live", 405, "method_not_allowed"),
    ],
)
async def test_what_is_not_there_has_a_code(method: str, path: str, status: int, code: str, described: bool) -> None:
    router = api()
    router.add_api_route("/api", well)
    answer = await Client(*(router.routes if described else ())).http.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"


async def test_other_http_errors_keep_their_status_and_headers() -> None:
    answer = await Client(raising(HTTPException(418, "teapot", {"x-kind": "pot"}))).get("/raise")
    assert (answer.status_code, answer.json()["code"], answer.headers["x-kind"]) == (418, "http_418", "pot")


async def test_an_api_request_that_is_not_as_described_names_the_place() -> None:
    router = api()

    @router.get("/rows/{row_id}")
    async def find(row_id: int, page: int) -> dict[str, int]:
        return {"row": row_id, "page": page}

    client = Client(*router.routes)
    assert (await client.get("/rows/7?page=1")).json() == {"row": 7, "page": 1}
    answer = await client.get("/rows/private?page=secret")
    assert (answer.status_code, answer.json()["code"]) == (422, "request_invalid")
    assert answer.json()["detail"] == "path.row_id, query.page"
    assert "secret" not in answer.text


async def bound(_: Request) -> Response:
    return JSONResponse(structlog.contextvars.get_contextvars())


async def test_a_callers_trace_goes_on_inside_and_comes_back() -> None:
    client = Client(bare("/bound", bound))
    answer = await client.get("/bound", traceparent=PARENT)
    assert answer.json()["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    assert answer.headers["traceparent"].split("-")[1] == "0af7651916cd43dd8448eb211c80319c"
    assert answer.json()["span_id"] == answer.headers["traceparent"].split("-")[2] != "b7ad6b7169203331"
    for header in ("", "garbage"):
        answer = await client.get("/bound", traceparent=header)
        assert answer.json()["trace_id"] != "0af7651916cd43dd8448eb211c80319c"


def counted(route: str, status: int) -> float:
    labels = {"route": route, "method": "GET", "status": str(status)}
    return REGISTRY.get_sample_value("rowclaim_http_requests_total", labels) or 0.0


async def test_answers_are_counted_by_pattern_never_by_path() -> None:
    async def found(_: Request) -> Response:
        return PlainTextResponse("ok")

    router = api()

    @router.get("/api/{row_id}")
    async def described(row_id: int) -> int:
        return row_id

    client = Client(bare("/rows/{row_id}", found), raising(ZeroDivisionError()), *router.routes)
    expected = [("/rows/{row_id}", 200), ("/api/{row_id}", 200), ("none", 404), ("/raise", 500)]
    before = [counted(*labels) for labels in expected]
    for path in ("/rows/314159", "/api/161803", "/nowhere/271828", "/raise"):
        await client.get(path)
    after = [counted(*labels) for labels in expected]
    assert [now - was for now, was in zip(after, before, strict=True)] == [1, 1, 1, 1]
    metrics = (await client.get("/metrics")).text
    assert 'rowclaim_http_requests_total{method="GET",route="/rows/{row_id}",status="200"}' in metrics
    assert [number for number in ("314159", "161803", "271828") if number in metrics] == []


Serving = Callable[..., Any]


@asynccontextmanager
async def serving(*routes: PublicRoute) -> AsyncIterator[tuple[str, asyncio.Event, "asyncio.Future[None]"]]:
    async def nobody(_: Invariant) -> None:
        return

    listener = web.bind("127.0.0.1", 0)
    stopping = asyncio.Event()
    served = asyncio.ensure_future(web.serve_http(web.make_app(routes, {}, nobody), listener, stopping))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", stopping, served
    finally:
        stopping.set()
        await served


async def test_a_request_in_hand_is_answered_after_the_stop() -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> Response:
        entered.set()
        await release.wait()
        return PlainTextResponse("answered")

    async with serving(bare("/slow", slow)) as (url, stopping, served), httpx.AsyncClient(trust_env=False) as http:
        asked = asyncio.ensure_future(http.get(f"{url}/slow"))
        await entered.wait()
        stopping.set()

        async def refused() -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            except OSError:
                return True
            writer.close()
            await writer.wait_closed()
            return False

        await wait_until(refused, within_s=5, what="no new connection is taken")
        assert not served.done()
        release.set()
        assert (await asked).text == "answered"


async def test_signals_stay_the_processs_own() -> None:
    import signal

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    async with serving() as (url, _, _), httpx.AsyncClient(trust_env=False) as http:
        assert (await http.get(f"{url}/health/live")).status_code == 200
        assert {number: signal.getsignal(number) for number in before} == before


async def test_no_server_name_is_told() -> None:
    async with serving() as (url, _, _), httpx.AsyncClient(trust_env=False) as http:
        assert "server" not in (await http.get(f"{url}/health/live")).headers


def test_a_taken_port_is_told_before_anything_runs() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(Stop, match=r"port_taken: 127.0.0.1:") as stopped,
    ):
        web.bind("127.0.0.1", taken.getsockname()[1])
    assert stopped.value.code.exit == 69
