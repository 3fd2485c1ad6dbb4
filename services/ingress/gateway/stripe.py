"""Stripe: ``Stripe-Signature: t=<seconds>,v1=<hex>[,v1=<hex>]``, an HMAC over ``<t>.<body>`` by the whole secret.

Only the SDK's ``verify_header`` is used. Its ``construct_event`` builds objects nobody here needs (most of a request's
CPU), raises five kinds of exception that are not its own for signed garbage, and lets any future instant pass.
While Stripe rolls a secret it signs with both, so one ``v1`` out of several is enough; one of ours out of several too.
"""

from collections.abc import Sequence
from typing import Final

import stripe

from services.ingress.gateway.head import EXTERNAL_ID, KIND, Head, read_head, utf8
from services.ingress.gateway.proof import TOLERANCE_S_MAX, active_secrets, misdated, sole_header
from services.ingress.machine import THIN_EVENT, Headers, Rejected, Rejection, Verdict, Verified

SNAPSHOT_OBJECT: Final = "event"
THIN_OBJECT: Final = "v2.core.event"


def misshapen(head: Head) -> Rejection | None:
    """Why an event's own id and type cannot be kept; None: they can."""
    if not EXTERNAL_ID.fullmatch(head.id):
        return Rejection.EVENT_ID
    return None if KIND.fullmatch(head.type) else Rejection.EVENT_KIND


class StripeVerifier:
    """Verifies Stripe's webhooks, snapshot and thin, with any of ``secrets``."""

    def __init__(self, secrets: Sequence[str], *, tolerance_s: int = TOLERANCE_S_MAX) -> None:
        self._secrets = active_secrets(secrets)
        self._tolerance_s = min(tolerance_s, TOLERANCE_S_MAX)

    def verify(self, headers: Headers, body: bytes) -> Verdict:
        """Judge a request by its bytes alone. Never raises for anything a sender can send."""
        proof = self._proved(headers, body)
        if isinstance(proof, Rejection):
            return Rejected(proof)
        head = read_head(body)
        if isinstance(head, Rejection):
            return Rejected(head)
        if head.object not in (SNAPSHOT_OBJECT, THIN_OBJECT):
            return Rejected(Rejection.EVENT_OBJECT)
        if (fault := misshapen(head)) is not None:
            return Rejected(fault)
        parked_reason = THIN_EVENT if head.object == THIN_OBJECT else None
        return Verified(head.id, head.type, secret=proof, api_version=head.api_version, parked_reason=parked_reason)

    def _proved(self, headers: Headers, body: bytes) -> str | Rejection:
        """The label of the secret that signed these bytes lately."""
        if not self._secrets:
            return Rejection.SIGNATURE_UNCONFIGURED
        header = sole_header(headers, b"stripe-signature")
        if isinstance(header, Rejection):
            return header
        fields = [field.partition("=") for field in header.split(",")]
        timestamps = [value for name, _, value in fields if name == "t"]
        # The SDK would take the first of two instants; a sender writes one.
        if len(timestamps) != 1 or any(not separator for _, separator, _ in fields):
            return Rejection.SIGNATURE_MALFORMED
        if not any(name == stripe.WebhookSignature.EXPECTED_SCHEME for name, _, _ in fields):
            return Rejection.SIGNATURE_SCHEME
        if (fault := misdated(timestamps[0], self._tolerance_s)) is not None:
            return fault
        text = utf8(body)
        if isinstance(text, Rejection):
            return text
        for secret in self._secrets:
            try:
                stripe.WebhookSignature.verify_header(text, header, secret.value, TOLERANCE_S_MAX)
            except stripe.SignatureVerificationError:  # it holds the whole body: it goes no further than here
                continue
            return secret.label
        return Rejection.SIGNATURE_MISMATCH
