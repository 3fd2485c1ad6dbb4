"""Requests as the senders make them, signed by the senders' own libraries."""

import base64
import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import standardwebhooks
import stripe

OLD: Final = "whsec_stripe_old_0123456789abcdef"
NEW: Final = "whsec_stripe_new_0123456789abcdef"
CLERK_OLD: Final = "whsec_" + base64.b64encode(b"the older secret of clerk").decode()
CLERK_NEW: Final = "whsec_" + base64.b64encode(b"the newer secret of clerk").decode()

Headers = list[tuple[bytes, bytes]]


def stripe_event(event_id: str = "evt_1", kind: str = "checkout.session.completed", **fields: object) -> bytes:
    event = {
        "id": event_id,
        "object": "event",
        "api_version": "2026-10-28.endive",
        "type": kind,
        "created": 1796043609,
        "data": {"object": {"id": "cs_1", "object": "checkout.session", "customer_details": {"name": "Zoë"}}},
    }
    return json.dumps(event | fields, ensure_ascii=False).encode()


def thin_event(event_id: str = "evt_thin_1") -> bytes:
    event = {
        "id": event_id,
        "object": "v2.core.event",
        "type": "v1.invoice.paid",
        "created": "2026-11-30T12:00:00.000Z",
        "related_object": {"id": "in_1", "type": "invoice", "url": "/v1/invoices/in_1"},
    }
    return json.dumps(event).encode()


def clerk_event(kind: str = "user.created", **fields: object) -> bytes:
    return json.dumps({"object": "event", "type": kind, "data": {"id": "user_1"}, "timestamp": 1} | fields).encode()


def seconds(offset_s: int = 0) -> int:
    return int(time.time()) + offset_s


def stripe_signature(body: bytes, secret: str = NEW, *, offset_s: int = 0) -> str:
    """The header as Stripe's library makes it; a body that is no UTF-8 is signed by its bytes."""
    signed_at = seconds(offset_s)
    try:
        return stripe.WebhookSignature.generate_signature_header(body.decode(), secret, signed_at)
    except UnicodeDecodeError:
        return stripe.WebhookSignature.generate_signature_header(body.decode("latin-1"), secret, signed_at)


def both(body: bytes) -> str:
    """As Stripe signs while a secret is rolled: by the new one and by the old one."""
    new, old = stripe_signature(body, NEW), stripe_signature(body, OLD)
    return new + "," + old.partition(",")[2]


def stripe_headers(body: bytes, secret: str = NEW, *, offset_s: int = 0) -> Headers:
    return [(b"stripe-signature", stripe_signature(body, secret, offset_s=offset_s).encode())]


def clerk_signature(body: bytes, secret: str = CLERK_NEW, *, message_id: str = "msg_1", signed_at: int) -> str:
    at = datetime.fromtimestamp(signed_at, UTC)
    return standardwebhooks.Webhook(secret).sign(message_id, at, body.decode("utf-8", "replace"))


def clerk_headers(
    body: bytes, secrets: Sequence[str] = (CLERK_NEW,), *, message_id: str = "msg_1", offset_s: int = 0
) -> Headers:
    signed_at = seconds(offset_s)
    signatures = [clerk_signature(body, secret, message_id=message_id, signed_at=signed_at) for secret in secrets]
    return [
        (b"svix-id", message_id.encode()),
        (b"svix-timestamp", str(signed_at).encode()),
        (b"svix-signature", " ".join(signatures).encode()),
    ]


def changed(headers: Headers, **values: bytes | None) -> Headers:
    """The headers with some replaced (``svix_id=b"..."``) or taken away (None)."""
    new: Mapping[bytes, bytes | None] = {name.replace("_", "-").encode(): value for name, value in values.items()}
    kept = [(name, value) for name, value in headers if name not in new]
    return kept + [(name, value) for name, value in new.items() if value is not None]
