"""One way to speak HTTP: an httpx client whose every exchange crosses the HTTP door, bounded and following nothing.

An exchange ends with the last byte of the answer's body, which is read at the door: a body that breaks off is a failure
of the exchange, not of whoever parses it later.
"""

from collections.abc import AsyncIterator
from typing import Final

import httpx

from services.kernel.doors import Crossing, Door

CONNECT_S: Final = 5.0
READ_S: Final = 15.0
POOL_S: Final = 5.0
LIMITS: Final = httpx.Limits(max_connections=20, max_keepalive_connections=10, keepalive_expiry=30.0)


class Bounded(httpx.AsyncByteStream):
    """An answer's body that breaks off behind ``bytes_max``."""

    def __init__(self, inner: httpx.AsyncByteStream, bytes_max: int) -> None:
        self._inner = inner
        self._bytes_max = bytes_max

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for piece in self._inner:
            read += len(piece)
            if read > self._bytes_max:
                await self.aclose()
                raise httpx.ReadError(f"the answer is longer than {self._bytes_max} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


class DoorTransport(httpx.AsyncBaseTransport):
    """Wraps a transport; one crossing is one request and the whole of its answer."""

    def __init__(self, inner: httpx.AsyncBaseTransport, *, body_bytes_max: int | None = None) -> None:
        self._inner = inner
        self._body_bytes_max = body_bytes_max

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        with Crossing(Door.HTTP, f"{request.method} {request.url.path}"):
            response = await self._inner.handle_async_request(request)
            if self._body_bytes_max is not None and isinstance(response.stream, httpx.AsyncByteStream):
                response.stream = Bounded(response.stream, self._body_bytes_max)
                if response.headers.get("content-encoding", "identity") != "identity":
                    await response.aclose()  # packed, a body within the bound unfolds to any length
                    raise httpx.ReadError("the answer is packed, and what it unfolds to has no bound")
            await response.aread()
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


def http_client(
    transport: httpx.AsyncBaseTransport | None = None, *, body_bytes_max: int | None = None
) -> httpx.AsyncClient:
    """A client for vendors; the caller closes it. ``transport``: what stands behind the door (default: the network).
    A body longer than ``body_bytes_max``, or a packed one, is httpx.ReadError; None: any length.

    Redirects are the caller's to judge: a followed one may carry a token elsewhere, or turn a PUT into a GET.
    """
    inner = transport if transport is not None else httpx.AsyncHTTPTransport(limits=LIMITS)
    return httpx.AsyncClient(
        transport=DoorTransport(inner, body_bytes_max=body_bytes_max),
        timeout=httpx.Timeout(READ_S, connect=CONNECT_S, pool=POOL_S),
        follow_redirects=False,
        trust_env=False,
    )
