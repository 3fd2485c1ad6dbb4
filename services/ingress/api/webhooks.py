"""The webhooks' routes.

A route is a bare ASGI callable: at the rate of a sender's burst, a request object and a dependency graph would cost
more than verifying and storing do. Errors are raised; the app around the routes makes problem documents of them.
"""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from services.ingress.flow.intake import Intake
from services.ingress.machine import Receipt, Rejection, Source

BODY_WITHIN_S: Final = 10.0
"""How long a body may take to arrive. Senders give up after 15 s or so; who dribbles is not one."""

ANSWERS: Final = {
    Receipt.STORED: (HTTPStatus.ACCEPTED, b'{"event":"stored"}'),
    Receipt.PARKED: (HTTPStatus.ACCEPTED, b'{"event":"parked"}'),
    Receipt.DUPLICATE: (HTTPStatus.OK, b'{"event":"duplicate"}'),
}


def routes(intake: Intake, *, body_bytes_max: int) -> Sequence[BaseRoute]:
    """``POST /webhooks/<source>``: 2xx once the event is committed, 400, 408 or 413 with nothing of it kept, or 503."""
    return [
        Route(
            f"/webhooks/{source}", Webhook(intake, source, body_bytes_max), methods=["POST"], name=f"webhook_{source}"
        )
        for source in Source
    ]


class Webhook:
    """One sender's endpoint (ASGI)."""

    def __init__(self, intake: Intake, source: Source, body_bytes_max: int) -> None:
        self._intake = intake
        self._source = source
        self._body_bytes_max = body_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._read(receive)
        if body is None:
            return
        receipt = await self._intake.receive(self._source, scope["headers"], body)
        status, text = ANSWERS[receipt]
        length = str(len(text)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": status.value, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    async def _read(self, receive: Receive) -> bytes | None:
        """The body as received; None: the sender hung up. Counted as it comes: a length that was announced may lie,
        and a chunked request announces none. Raises Refusal for a body too large or too slow."""
        pieces: list[bytes] = []
        held_bytes = 0
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    piece: bytes = message.get("body", b"")
                    held_bytes += len(piece)
                    if held_bytes > self._body_bytes_max:
                        raise self._intake.refusal(self._source, Rejection.BODY_TOO_LARGE, b"".join(pieces))
                    pieces.append(piece)
                    if not message.get("more_body", False):
                        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        except TimeoutError:
            raise self._intake.refusal(self._source, Rejection.BODY_TOO_SLOW, b"".join(pieces)) from None
