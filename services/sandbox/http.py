"""A vendor's door: one request in, written down, one answer out, or none at all.

Two things no web framework gives are the reason for this file. Paths are split before they are percent-decoded, so a
login written ``a%2Fb`` stays one segment, as it does at the vendors. And a connection can be closed without an
answer, or in the middle of one, because that is what a network does.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, assert_never
from urllib.parse import parse_qsl, unquote

from services.sandbox.log import Ending, OpenRequest, RequestLog, Vendor

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

BODY_BYTES_MAX: Final = 1 << 20
TRANSPORT: Final = "rowclaim.sandbox.transport"
"""Scope key under which our server hands over the connection itself."""
LOGGED_HEADERS: Final = frozenset(
    {
        "accept",
        "content-type",
        "idempotency-key",
        "stripe-account",
        "stripe-version",
        "traceparent",
        "user-agent",
        "x-github-api-version",
    }
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Header names are lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Cut:
    """Half of this answer, then the connection closes."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Dropped:
    """The connection closes without a byte."""


Outcome: TypeAlias = Answer | Cut | Dropped

TOO_LARGE: Final = Answer(413, b"", {})


@dataclass(frozen=True, slots=True)
class Call:
    """One request as the vendor sees it."""

    method: str
    path: str
    """Raw, without the mount point: ``/users/a%2Fb``."""
    segments: tuple[str, ...]
    """The path split at its slashes, each part decoded afterwards; a trailing slash leaves an empty last one."""
    query: str
    headers: Mapping[str, str]
    body: bytes
    base_url: str
    """The vendor's root as the caller addressed it, for links in answers."""
    entry: OpenRequest
    until_left: "UntilLeft"
    closing: asyncio.Event

    def query_pairs(self) -> list[tuple[str, str]]:
        """The query, decoded, empty values kept."""
        return parse_qsl(self.query, keep_blank_values=True)

    async def pause(self, seconds: float) -> None:
        """Wait, but not into the sandbox's own stop."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.closing.wait(), seconds)


class UntilLeft(Protocol):
    """Waits until the caller hangs up, the sandbox closes, or the given event is set."""

    async def __call__(self, cleared: asyncio.Event) -> None: ...


class Handler(Protocol):
    """A vendor: gives every call an outcome, never an exception."""

    async def answer(self, call: Call) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class Door:
    """ASGI application for one vendor."""

    vendor: Vendor
    mount: str
    handler: Handler
    log: RequestLog
    closing: asyncio.Event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw, early = await _read_body(receive)
        call = self._call(scope, raw, receive)
        ending: Ending = Ending.FAILED
        status: int | None = 500
        try:
            outcome = early or await self.handler.answer(call)
            ending, status = await _send(outcome, scope, send)
            if ending in (Ending.CUT, Ending.DROPPED):
                # The server must see the connection gone before we return, or it would try to finish the answer.
                await _left(receive)
        finally:
            self.log.end(call.entry, ending, status)

    def _call(self, scope: Scope, raw: bytes, receive: Receive) -> Call:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        path = scope["raw_path"].decode("latin-1").removeprefix(self.mount)
        query = scope["query_string"].decode("latin-1")
        entry = self.log.arrive(
            self.vendor,
            method=scope["method"],
            path=path,
            query=query,
            headers=_logged_headers(headers),
            raw=raw,
            body=_readable(raw, headers.get("content-type", "")),
        )
        return Call(
            method=scope["method"],
            path=path,
            segments=tuple(unquote(part) for part in path.removeprefix("/").split("/")),
            query=query,
            headers=headers,
            body=raw,
            base_url=f"{scope['scheme']}://{headers.get('host', '127.0.0.1')}{self.mount}",
            entry=entry,
            until_left=_until_left(receive, self.closing),
            closing=self.closing,
        )


async def _read_body(receive: Receive) -> tuple[bytes, Outcome | None]:
    """The body, and what becomes of a request nobody may act on: one above BODY_BYTES_MAX, one that broke off."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"".join(parts), Dropped()
        part = message.get("body", b"")
        size += len(part)
        if size <= BODY_BYTES_MAX:
            parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts), TOO_LARGE if size > BODY_BYTES_MAX else None


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _until_left(receive: Receive, closing: asyncio.Event) -> UntilLeft:
    async def wait(cleared: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(one) for one in (_left(receive), cleared.wait(), closing.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    return wait


async def _send(outcome: Outcome, scope: Scope, send: Send) -> tuple[Ending, int | None]:
    if _transport(scope).is_closing():
        return Ending.UNHEARD, None
    match outcome:
        case Answer():
            await _send_head(outcome, send)
            await send({"type": "http.response.body", "body": outcome.body})
            return Ending.ANSWERED, outcome.status
        case Cut(answer):
            await _send_head(answer, send)
            await send({"type": "http.response.body", "body": answer.body[: len(answer.body) // 2], "more_body": True})
            _transport(scope).close()
            return Ending.CUT, answer.status
        case Dropped():
            _transport(scope).abort()
            return Ending.DROPPED, None
        case _:
            assert_never(outcome)


async def _send_head(answer: Answer, send: Send) -> None:
    headers = dict(answer.headers)
    if answer.status not in (204, 304):
        headers["content-length"] = str(len(answer.body))
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        }
    )


def _transport(scope: Scope) -> asyncio.Transport:
    transport: asyncio.Transport = scope[TRANSPORT]
    return transport


def _logged_headers(headers: Mapping[str, str]) -> dict[str, str]:
    logged = {name: value for name, value in headers.items() if name in LOGGED_HEADERS}
    if authorization := headers.get("authorization"):
        scheme, _, secret = authorization.partition(" ")
        logged["authorization"] = f"{scheme} …{secret[-4:]}"
    return logged


def _readable(raw: bytes, content_type: str) -> Any:
    """JSON or form for the log; None when there is nothing or it cannot be read."""
    if not raw:
        return None
    try:
        if content_type.startswith("application/x-www-form-urlencoded"):
            return parse_qsl(raw.decode(), keep_blank_values=True)
        return json.loads(raw)
    except ValueError:
        return None
