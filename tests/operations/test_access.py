"""The door of the API: let in, counted and read, in this order and before anything is parsed."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

import httpx
import pytest
import structlog
from fastapi import Depends
from starlette.types import Message

from services.kernel import bodies
from services.kernel.auth import Access, Caller, caller, unwired
from services.kernel.errors import Invariant, Refusal, Retryable
from services.operations import web
from services.operations.access import Guard, open_guard, undetermined
from services.operations.process import Process
from tests.fixtures.tokens import ISSUER, PublishedKeys, bearer, make_guard, token
from tests.operations.conftest import TOY, MakeTerminal, log_sender

ADMIN = bearer(token("user_admin", role="admin"))
USER = bearer(token("user_1"))


async def raised(error: Invariant) -> None:
    raise error


class Counted:
    """``access.Limits`` that remembers, and lets so many through."""

    def __init__(self, most: int = 1_000) -> None:
        self.seen: list[tuple[str, str]] = []
        self._most = most

    async def count(self, kind: str, who: str) -> None:
        self.seen.append((kind, who))
        if len(self.seen) > self._most:
            raise Refusal("rate_limited", retry_after_s=7.0)


class Api:
    """Three routes that echo, one for each kind of caller, behind a guard."""

    def __init__(self, guard: Guard) -> None:
        self.handled: list[Any] = []
        routes = [route for kind in Access for route in self._routes(guard, kind)]

        self.app = web.make_app(routes, {}, raised)
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://test")

    def _routes(self, guard: Guard, kind: Access) -> Sequence[Any]:
        router = guard.routes(kind)

        @router.post(f"/{kind}")
        async def echo(body: dict[str, int]) -> dict[str, int]:
            self.handled.append(body)
            return body

        return router.routes

    async def post(self, path: str, headers: dict[str, str] | None = None, **body: Any) -> tuple[int, str]:
        answer = await self.http.post(path, headers=headers, **(body or {"json": {"a": 1}}))
        return answer.status_code, answer.json().get("code", "")


@pytest.mark.parametrize(
    ("path", "headers", "status", "code"),
    [
        ("/public", {}, 200, ""),
        ("/public", {"authorization": "Bearer nonsense"}, 200, ""),
        ("/user", {}, 401, "token_missing"),
        ("/user", USER, 200, ""),
        ("/user", ADMIN, 200, ""),
        ("/admin", {}, 401, "token_missing"),
        ("/admin", USER, 403, "role_missing"),
        ("/admin", ADMIN, 200, ""),
    ],
)
async def test_who_may_call_is_the_routers_kind(path: str, headers: dict[str, str], status: int, code: str) -> None:
    api = Api(make_guard())
    assert await api.post(path, headers) == (status, code)
    assert api.handled == ([{"a": 1}] if status == 200 else [])


async def test_nothing_is_read_of_who_is_not_let_in() -> None:
    api = Api(make_guard())
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        read += 1
        yield b"{"

    assert await api.post("/user", {}, content=body()) == (401, "token_missing")
    assert await api.post("/admin", USER, content=body()) == (403, "role_missing")
    limited = Api(Guard(make_guard()._callers, Counted(0), body_bytes_max=10))
    assert await limited.post("/user", USER, content=body()) == (429, "rate_limited")
    assert read == 0
    assert await api.post("/user", USER, content=body()) == (422, "request_not_json")
    assert read == 1


async def test_a_user_is_counted_once_let_in_and_an_address_where_anybody_may_call() -> None:
    counted = Counted(3)
    api = Api(Guard(make_guard()._callers, counted, body_bytes_max=100))
    await api.post("/user")
    await api.post("/admin", USER)
    assert counted.seen == [], "who is not let in uses up nobody's limit"
    await api.post("/user", USER)
    await api.post("/admin", ADMIN)
    await api.post("/public", USER)
    assert counted.seen == [("user", "user_1"), ("user", "user_admin"), ("address", "127.0.0.1")]
    answer = await api.http.post("/user", headers=USER, json={"a": 1})
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (429, "rate_limited", "7")
    assert len(api.handled) == 3


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize(("size", "status"), [(1_000, 200), (1_001, 413), (100_000, 413)])
async def test_a_body_is_bounded_as_it_comes(size: int, status: int, announced: bool) -> None:
    api = Api(make_guard(body_bytes_max=1_000))
    whole = b'{"a": 1' + b" " * (size - 8) + b"}"

    async def chunked() -> AsyncIterator[bytes]:
        for at in range(0, len(whole), 64):
            yield whole[at : at + 64]

    headers = USER | {"content-type": "application/json"}
    assert (await api.post("/user", headers, content=whole if announced else chunked()))[0] == status
    assert len(api.handled) == (status == 200)


@pytest.mark.parametrize("path", ["/user%00", "/user?a=%00"])
async def test_an_address_that_no_database_takes_is_refused(path: str) -> None:
    router = make_guard().routes(Access.USER)
    router.add_api_route("/{name}", unwired, response_model=None)
    transport = httpx.ASGITransport(web.make_app(router.routes, {}, raised))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.get(path, headers=USER)
    assert (answer.status_code, answer.json()["code"]) == (422, "request_invalid")


@pytest.mark.parametrize(
    "content",
    [
        *(r'{"a": "b\u0000"}'.encode(of) for of in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le")),
        *('{"a": 1}'.encode(of) for of in ("utf-16", "utf-16-be", "utf-32")),
        *(b'{"a": "\xed\xa0\x80"}', b'{"a": "\xff"}', b'{"a": "b\x00"}', b'{"a": "\\ud800"}'),
    ],
)
async def test_a_body_is_utf_8_and_nothing_that_a_parser_might_guess(content: bytes) -> None:
    api = Api(make_guard())
    said = USER | {"content-type": "application/json; charset=utf-16"}
    assert await api.post("/user", said, content=content) == (422, "request_not_json")
    assert api.handled == []


async def test_a_body_that_dribbles_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "WITHIN_S", 0.05)
    api = Api(make_guard())
    status, body = await posted(api, {"type": "http.request", "body": b'{"a": 1', "more_body": True})
    assert (status, json.loads(body)["code"], api.handled) == (408, "request_too_slow", [])


async def test_who_hangs_up_midway_is_not_worked_for() -> None:
    api = Api(make_guard())
    begun: Message = {"type": "http.request", "body": b'{"a": 1}', "more_body": True}
    status, _ = await posted(api, begun, {"type": "http.disconnect"})
    assert (status, api.handled) == (400, [])


async def posted(api: Api, *messages: Message) -> tuple[int, bytes]:
    """The answer to a body that comes in these pieces, and then no more."""
    coming, sent = list(messages), list[Message]()

    async def receive() -> Message:
        if not coming:
            await asyncio.Event().wait()
        return coming.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"authorization", USER["authorization"].encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/user", "query_string": b"", "headers": headers}
    await api.app(scope | {"client": ("127.0.0.1", 1), "server": ("test", 80), "scheme": "http"}, receive, send)
    return sent[0]["status"], sent[1].get("body", b"")


async def test_a_handler_knows_its_caller() -> None:
    router = make_guard().routes(Access.USER)

    @router.get("/me")
    async def me(who: Annotated[Caller, Depends(caller)]) -> str:
        return f"{who.user_id} {who.role}"

    transport = httpx.ASGITransport(web.make_app(router.routes, {}, raised))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.get("/me", headers=bearer(token("user_9", role="member")))
        assert answer.json() == "user_9 member"
        assert (await http.get("/elsewhere")).status_code == 404, "an unknown path asks for no token"


async def test_keys_that_cannot_be_had_are_nobodys_fault() -> None:
    class Away(PublishedKeys):
        async def find(self, kid: str) -> Any:
            raise Retryable("keys_unavailable")

    guard = make_guard()
    guard._callers._keys = Away()
    answer = await Api(guard).http.post("/user", headers=USER, json={"a": 1})
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "keys_unavailable", "5")


@pytest.mark.parametrize("path", ["/public", "/user", "/admin"])
async def test_a_guard_that_is_wired_to_nothing_lets_nobody_in(path: str) -> None:
    assert await Api(undetermined()).post(path, ADMIN) == (503, "auth_unconfigured")


async def make_keys(_: Process) -> PublishedKeys:
    return PublishedKeys()


@pytest.mark.parametrize(("issuer", "status"), [(ISSUER, 200), (f"{ISSUER}/other", 401), (None, 503)])
async def test_the_settings_say_whose_tokens_are_good(
    make_terminal: MakeTerminal, issuer: str | None, status: int
) -> None:
    line = make_terminal(**({"AUTH_ISSUER": issuer} if issuer else {}))
    async with Process.open("toy", (TOY,), line.load((TOY,)), log_sender) as process:
        with structlog.testing.capture_logs() as logs:
            api = Api(await open_guard(process, make_keys))
        assert [one["event"] for one in logs] == ([] if issuer else ["auth.unconfigured"])
        assert (await api.post("/user", USER))[0] == status
        assert (await api.post("/public"))[0] == 200


async def test_the_settings_bound_bodies_and_rates(make_terminal: MakeTerminal) -> None:
    settings = {"AUTH_ISSUER": ISSUER, "HTTP_BODY_BYTES_MAX": "1024", "HTTP_RATE_PER_MINUTE": "2"}
    line = make_terminal(**settings, AUTH_ROLE_CLAIM="a.role", AUTH_AUTHORIZED_PARTIES="https://app.example")
    async with Process.open("toy", (TOY,), line.load((TOY,)), log_sender) as process:
        api = Api(await open_guard(process, make_keys))
        assert await api.post("/user", USER) == (401, "token_party")
        admin = bearer(token("user_2", a={"role": "admin"}, azp="https://app.example"))
        assert await api.post("/admin", admin, content=b" " * 1025) == (413, "request_too_large")
        assert await api.post("/admin", admin) == (200, "")
        assert await api.post("/admin", admin) == (429, "rate_limited")
