"""Clerk, which sends through Svix: ``svix-id``, ``svix-timestamp`` and ``svix-signature: v1,<base64> v1,<base64>``.

The scheme is Standard Webhooks under other header names, so its reference library does the cryptography. What it signs
is ``<id>.<timestamp>.<body>``: with dots allowed in an id, one signature would fit several splits of the same bytes.
The event's id is the header's: it is the same for every delivery of the event.
"""

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Final

import standardwebhooks

from services.ingress.gateway.head import EXTERNAL_ID, KIND, read_head, utf8
from services.ingress.gateway.proof import TOLERANCE_S_MAX, active_secrets, misdated, sole_header
from services.ingress.machine import Headers, Rejected, Rejection, Verdict, Verified

KEY_PREFIX: Final = "whsec_"
SIGNATURE: Final = re.compile(r"v1,[A-Za-z0-9+/]{43}=", re.ASCII)
OTHER_SCHEME: Final = re.compile(r"(?!v1,)[a-z0-9]+,[A-Za-z0-9+/=]+", re.ASCII)


def is_key(secret: str) -> bool:
    """Whether a secret is ``whsec_`` and base64 of at least one byte, so that it can verify anything."""
    if not secret.startswith(KEY_PREFIX):
        return False
    try:
        return base64.b64decode(secret.removeprefix(KEY_PREFIX), validate=True) != b""
    except (binascii.Error, ValueError):
        return False


class ClerkVerifier:
    """Verifies Clerk's webhooks with any of ``secrets``; what is no key verifies nothing."""

    def __init__(self, secrets: Sequence[str], *, tolerance_s: int = TOLERANCE_S_MAX) -> None:
        self._keys = [
            (standardwebhooks.Webhook(secret.value), secret.label)
            for secret in active_secrets(secrets)
            if is_key(secret.value)
        ]
        self._tolerance_s = min(tolerance_s, TOLERANCE_S_MAX)

    def verify(self, headers: Headers, body: bytes) -> Verdict:
        """Judge a request by its bytes alone. Never raises for anything a sender can send."""
        if not self._keys:
            return Rejected(Rejection.SIGNATURE_UNCONFIGURED)
        external_id = sole_header(headers, b"svix-id")
        if isinstance(external_id, Rejection):
            return Rejected(external_id)
        if not EXTERNAL_ID.fullmatch(external_id):
            return Rejected(Rejection.EVENT_ID)
        proof = self._proved(external_id, headers, body)
        if isinstance(proof, Rejection):
            return Rejected(proof)
        head = read_head(body)
        if isinstance(head, Rejection):
            return Rejected(head)
        if head.object != "event":
            return Rejected(Rejection.EVENT_OBJECT)
        if not KIND.fullmatch(head.type):
            return Rejected(Rejection.EVENT_KIND)
        return Verified(external_id, head.type, secret=proof, api_version=head.api_version)

    def _proved(self, external_id: str, headers: Headers, body: bytes) -> str | Rejection:
        """The label of the secret that signed these bytes under this id lately."""
        timestamp = sole_header(headers, b"svix-timestamp")
        if isinstance(timestamp, Rejection):
            return timestamp
        signatures = sole_header(headers, b"svix-signature")
        if isinstance(signatures, Rejection):
            return signatures
        listed = signatures.split(" ")
        if not all(SIGNATURE.fullmatch(one) or OTHER_SCHEME.fullmatch(one) for one in listed):
            return Rejection.SIGNATURE_MALFORMED
        if not any(SIGNATURE.fullmatch(one) for one in listed):
            return Rejection.SIGNATURE_SCHEME
        if (fault := misdated(timestamp, self._tolerance_s)) is not None:
            return fault
        text = utf8(body)
        if isinstance(text, Rejection):
            return text
        named = {"webhook-id": external_id, "webhook-timestamp": timestamp, "webhook-signature": signatures}
        for key, label in self._keys:
            try:
                key.verify(text, named, json_parse=False)
            except standardwebhooks.WebhookVerificationError:
                continue
            return label
        return Rejection.SIGNATURE_MISMATCH
