"""A webhook receiver that keeps what arrives, byte for byte."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from services.sandbox.http import Receive, Scope, Send


@dataclass(frozen=True, slots=True)
class Received:
    """One request."""

    headers: dict[str, str]
    query: str
    body: bytes


@dataclass(slots=True)
class Receiver:
    """ASGI application; answers ``statuses`` in turn, then 200."""

    url: str = ""
    requests: list[Received] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    barrier: asyncio.Barrier | None = None
    """When set, nobody is answered before so many have arrived."""

    def event_ids(self) -> list[Any]:
        """The id in each body, in order of arrival."""
        return [json.loads(request.body)["id"] for request in self.requests]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.requests.append(Received(headers, scope["query_string"].decode(), body))
        if self.barrier is not None:
            async with asyncio.timeout(5):
                await self.barrier.wait()
        status = self.statuses.pop(0) if self.statuses else 200
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})
