"""The door: raw paths, bounds, what the log may keep, and a bug of ours told as one."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import pytest

from services.sandbox.http import BODY_BYTES_MAX, Answer, Call, Door, Outcome
from services.sandbox.log import Ending, RequestLog, Vendor
from services.sandbox.server import serving
from tests.sandbox.clients import plain
from tests.waiting import wait_until


@dataclass(slots=True)
class Echo:
    """Answers what it saw; breaks on demand."""

    calls: list[Call] = field(default_factory=list)

    async def answer(self, call: Call) -> Outcome:
        self.calls.append(call)
        if call.segments == ("bug",):
            raise RuntimeError("a bug of ours")
        if call.segments == ("none",):
            return Answer(204, b"", {"x-one": "1"})
        return Answer(200, json.dumps([call.segments, call.query_pairs(), call.base_url]).encode(), {})


@pytest.fixture
def log() -> RequestLog:
    return RequestLog()


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def http(log: RequestLog, echo: Echo) -> AsyncIterator[httpx.AsyncClient]:
    door = Door(Vendor.GITHUB, "/github", echo, log, asyncio.Event())
    async with (
        serving(door, 0) as base,
        plain(base_url=f"{base}/github") as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("path", "segments"),
    [
        ("/users/octocat", ["users", "octocat"]),
        ("/users/a%2Fb", ["users", "a/b"]),
        ("/users/%2e%2e", ["users", ".."]),
        ("/users/", ["users", ""]),
        ("/users/%C3%A9%F0%9F%98%80", ["users", "é😀"]),
        ("/users/%FF", ["users", "�"]),
        ("/users/a%0Ab", ["users", "a\nb"]),
        ("/", [""]),
    ],
)
async def test_paths_are_split_before_they_are_decoded(
    http: httpx.AsyncClient, log: RequestLog, path: str, segments: list[str]
) -> None:
    response = await http.get(f"{path}?q=a%20b&empty=")
    assert response.json()[0] == segments
    assert response.json()[1] == [["q", "a b"], ["empty", ""]]
    assert response.json()[2] == str(http.base_url).rstrip("/")
    assert (log.entries()[0].path, log.entries()[0].query) == (path, "q=a%20b&empty=")


async def test_the_log_keeps_what_helps_and_no_credential(http: httpx.AsyncClient, log: RequestLog) -> None:
    headers = {
        "authorization": "Bearer github_pat_secret_1234",
        "cookie": "no",
        "idempotency-key": "k",
        "user-agent": "u",
    }
    await http.post("/x", json={"permission": "pull"}, headers=headers)
    await http.post("/x", data={"a[b]": "c d"})
    await http.post("/x", content=b"\xff{")
    json_entry, form_entry, unreadable = log.entries()
    assert json_entry.body == {"permission": "pull"}
    assert json_entry.headers["authorization"] == "Bearer …1234"
    assert json_entry.headers["idempotency-key"] == "k"
    assert "cookie" not in json_entry.headers
    assert form_entry.body == [("a[b]", "c d")]
    assert (unreadable.body, unreadable.body_bytes) == (None, 2)


async def test_a_body_without_bound_is_refused(http: httpx.AsyncClient, log: RequestLog, echo: Echo) -> None:
    assert (await http.post("/x", content=b"x" * BODY_BYTES_MAX)).status_code == 200
    assert (await http.post("/x", content=b"x" * (BODY_BYTES_MAX + 1))).status_code == 413
    assert len(echo.calls) == 1
    assert log.entries()[1].status == 413


async def test_a_request_that_breaks_off_is_not_acted_upon(
    http: httpx.AsyncClient, log: RequestLog, echo: Echo
) -> None:
    _, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
    writer.write(b"POST /github/x HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nemail=half")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await wait_until(log.entries, within_s=10, what="the broken request is written down")
    assert (log.entries()[0].ending, log.entries()[0].body_bytes) == (Ending.UNHEARD, 10)
    assert echo.calls == []


async def test_a_chunked_body_is_put_together(http: httpx.AsyncClient, echo: Echo) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for part in (b"ab", b"", b"cd"):
            yield part

    assert (await http.post("/x", content=chunks())).status_code == 200
    assert echo.calls[0].body == b"abcd"


async def test_no_body_means_none(http: httpx.AsyncClient) -> None:
    response = await http.get("/none")
    assert (response.status_code, response.content) == (204, b"")
    assert "content-length" not in response.headers


async def test_a_bug_of_ours_is_logged_as_one(
    http: httpx.AsyncClient, log: RequestLog, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await http.get("/bug")).status_code == 500
    assert (log.entries()[0].ending, log.entries()[0].status) == (Ending.FAILED, 500)
    assert "a bug of ours" in caplog.text


async def test_a_connection_is_used_again(http: httpx.AsyncClient, echo: Echo) -> None:
    for _ in range(3):
        await http.get("/x")
    assert len(echo.calls) == 3
