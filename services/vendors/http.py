"""One way to speak HTTP: an httpx client whose every exchange crosses the HTTP door, bounded and following nothing.

An exchange ends with the last byte of the answer's body, which is read at the door: a body that breaks off is a failure
of the exchange, not of whoever parses it later.
"""

from typing import Final

import httpx

from services.kernel.doors import Crossing, Door

CONNECT_S: Final = 5.0
READ_S: Final = 15.0
POOL_S: Final = 5.0
LIMITS: Final = httpx.Limits(max_connections=20, max_keepalive_connections=10, keepalive_expiry=30.0)


class DoorTransport(httpx.AsyncBaseTransport):
    """Wraps a transport; one crossing is one request and the whole of its answer."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        with Crossing(Door.HTTP, f"{request.method} {request.url.path}"):
            response = await self._inner.handle_async_request(request)
            await response.aread()
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


def http_client(transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    """A client for vendors; the caller closes it. ``transport``: what stands behind the door (default: the network).

    Redirects are the caller's to judge: a followed one may carry a token elsewhere, or turn a PUT into a GET.
    """
    inner = transport if transport is not None else httpx.AsyncHTTPTransport(limits=LIMITS)
    return httpx.AsyncClient(
        transport=DoorTransport(inner),
        timeout=httpx.Timeout(READ_S, connect=CONNECT_S, pool=POOL_S),
        follow_redirects=False,
        trust_env=False,
    )
