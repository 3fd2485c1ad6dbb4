"""The few fields of a verified body that the door reads. The rest is the consumers', who read the stored bytes."""

import re
from typing import Final

import msgspec

from services.ingress.machine import Rejection

# The characters by which ids are joined into something larger (the dot in what Svix signs, the colon in our own names,
# spaces) are not among these, and neither is anything that PostgreSQL's text cannot hold.
EXTERNAL_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,255}", re.ASCII)
KIND: Final = re.compile(r"[!-~]{1,255}", re.ASCII)


class Head(msgspec.Struct, frozen=True):
    """The head of an event; a field that is absent is empty."""

    object: str = ""
    id: str = ""
    type: str = ""
    api_version: str | None = None


_decode: Final = msgspec.json.Decoder(Head).decode


def read_head(body: bytes) -> Head | Rejection:
    """The head of a body in UTF-8, or why it is no event. Checks that the whole body is one JSON object."""
    try:
        return _decode(body)
    except msgspec.ValidationError:
        return Rejection.EVENT_MALFORMED if body.lstrip()[:1] == b"{" else Rejection.BODY_NOT_OBJECT
    except (msgspec.DecodeError, RecursionError):
        return Rejection.BODY_NOT_JSON


def utf8(body: bytes) -> str | Rejection:
    """The body as text, unchanged: what the vendors' libraries sign. Strict, so that no byte is replaced."""
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return Rejection.BODY_NOT_UTF8
