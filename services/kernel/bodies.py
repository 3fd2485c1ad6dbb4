"""The body of an HTTP request, bounded in size and time while it comes.

Counted as it is read: a length that was announced may lie, and a chunked request announces none.
"""

import asyncio
from dataclasses import dataclass
from typing import Final, Literal

from starlette.types import Receive

WITHIN_S: Final = 10.0
"""How long a body may take to arrive. Senders give up after 15 s or so; who dribbles is not one."""


@dataclass(frozen=True, slots=True)
class CutOff:
    """A body that was not read to its end. ``received``: what had come by then and was within the bound."""

    why: Literal["too_large", "too_slow"]
    received: bytes


async def read_body(receive: Receive, bytes_max: int) -> bytes | CutOff | None:
    """The body as received; None: who sent it hung up."""
    pieces: list[bytes] = []
    held_bytes = 0
    try:
        async with asyncio.timeout(WITHIN_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                piece: bytes = message.get("body", b"")
                held_bytes += len(piece)
                if held_bytes > bytes_max:
                    return CutOff("too_large", b"".join(pieces))
                pieces.append(piece)
                if not message.get("more_body", False):
                    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    except TimeoutError:
        return CutOff("too_slow", b"".join(pieces))
