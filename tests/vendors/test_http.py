"""The HTTP client of every vendor: one crossing an exchange, bounded, and led nowhere."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from services.kernel import doors
from services.kernel.doors import Door, Moment
from services.vendors.http import http_client

Crossed = list[tuple[Door, str, Moment]]


@pytest.fixture
def crossed() -> Iterator[Crossed]:
    seen: Crossed = []
    before = doors.watch(lambda door, what, moment: seen.append((door, what, moment)))
    yield seen
    doors.watch(before)


async def test_an_exchange_crosses_the_door_once_its_body_included(crossed: Crossed) -> None:
    at_body: list[Crossed] = []

    async def body() -> AsyncIterator[bytes]:
        at_body.append(list(crossed))
        yield b"late"

    async with http_client(httpx.MockTransport(lambda request: httpx.Response(200, content=body()))) as client:
        answer = await client.put("https://vendor.test/a?b=c", json={})
    assert answer.text == "late"
    assert crossed == [(Door.HTTP, "PUT /a", "before"), (Door.HTTP, "PUT /a", "after")]
    assert at_body == [crossed[:1]], "the body was read before the exchange was over"


async def test_a_body_that_breaks_off_fails_the_exchange(crossed: Crossed) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"hal"
        raise httpx.ReadError("cut")

    async with http_client(httpx.MockTransport(lambda request: httpx.Response(201, content=body()))) as client:
        with pytest.raises(httpx.ReadError):
            await client.get("https://vendor.test/a")
    assert crossed == [(Door.HTTP, "GET /a", "before")]


@pytest.mark.parametrize("bytes_max", [None, 1_000])
async def test_where_a_body_is_bounded_a_packed_one_is_not_taken(bytes_max: int | None) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield gzip.compress(b" " * 100_000)

    packed = httpx.Response(200, headers={"content-encoding": "gzip"}, content=body())
    async with http_client(httpx.MockTransport(lambda request: packed), body_bytes_max=bytes_max) as client:
        if bytes_max is None:
            assert len((await client.get("https://vendor.test/a")).content) == 100_000
        else:
            with pytest.raises(httpx.ReadError, match="packed"):
                await client.get("https://vendor.test/a")


async def test_a_redirect_is_an_answer_like_any_other() -> None:
    moved = httpx.Response(307, headers={"location": "https://elsewhere.test/"})
    async with http_client(httpx.MockTransport(lambda request: moved)) as client:
        assert (await client.put("https://vendor.test/a")).status_code == 307


async def test_it_is_bounded_and_takes_nothing_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.test:3128")
    async with http_client() as client:
        assert None not in (client.timeout.connect, client.timeout.read, client.timeout.write, client.timeout.pool)
        assert (client.follow_redirects, client.trust_env) == (False, False)
        assert client._mounts == {}


async def test_it_speaks_to_real_servers_and_closes_its_connections() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()
        await reader.read()  # until the client leaves
        writer.close()
        left.set()

    left = asyncio.Event()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = http_client()
    assert (await client.get(f"http://127.0.0.1:{port}/")).status_code == 204
    await client.aclose()
    async with asyncio.timeout(5):
        await left.wait()
    server.close()
    await server.wait_closed()
