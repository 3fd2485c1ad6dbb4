"""Telling endpoints: signed, in their version, at once or when the script says."""

import hmac
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from services.sandbox.outbox import Delivery, Outbox, Parcel, Plan, Posting, Sender
from services.sandbox.stripe.books import API_VERSION, Books, Obj, new_id
from services.sandbox.stripe.resources.events import wants
from services.sandbox.stripe.resources.webhook_endpoints import active_secrets
from services.sandbox.stripe.versions import render_event

USER_AGENT: Final = "Stripe/1.0 (+https://stripe.com/docs/webhooks)"
THIN: Final = "v2.core.event"


def signature(payload: bytes, secrets: Sequence[str], signed_at_s: int) -> str:
    """The ``Stripe-Signature`` header: one ``v1`` per secret, so a receiver with either one is satisfied."""
    signed = b"%d." % signed_at_s + payload
    parts = [hmac.new(secret.encode(), signed, sha256).hexdigest() for secret in secrets]
    return ",".join([f"t={signed_at_s}", *(f"v1={part}" for part in parts)])


@dataclass(slots=True)
class Webhooks:
    """Between the books, where events come from, and the outbox, where they go."""

    books: Books
    outbox: Outbox
    posting: dict[str, Posting] = field(default_factory=dict)
    """By endpoint id; AUTO when not there."""
    untaken: set[tuple[str, str]] = field(default_factory=set)
    """Which events which endpoints have not taken yet: what ``pending_webhooks`` counts."""

    def __post_init__(self) -> None:
        self.books.listeners.append(self._on_event)

    def _on_event(self, event: Obj) -> None:
        for endpoint in self._endpoints_for(event):
            self.untaken.add((event["id"], endpoint["id"]))
            event["pending_webhooks"] += 1
            if self.posting.get(endpoint["id"], Posting.AUTO) is Posting.AUTO:
                self.outbox.post(self._parcel(event, endpoint), self._taken)

    async def play(self, plan: Plan) -> list[Delivery]:
        """Carry out a plan. Raises StripeRefusal for unknown ids."""
        parcels = [
            self._parcel(event, endpoint, plan)
            for event in (self._event(event_id) for event_id in plan.events)
            for endpoint in self._endpoints_for(event, plan.endpoints)
            for _ in range(plan.copies)
        ]
        deliveries = await self.outbox.play(parcels, plan)
        for delivery in deliveries:
            if delivery.taken:
                self._taken(delivery)
        return deliveries

    def _taken(self, delivery: Delivery) -> None:
        if (delivery.event_id, delivery.endpoint) in self.untaken:
            self.untaken.remove((delivery.event_id, delivery.endpoint))
            self._event(delivery.event_id)["pending_webhooks"] -= 1

    def _event(self, event_id: str) -> Obj:
        return self.books.table(THIN).get(event_id) or self.books.get("event", event_id)

    def thin_event(self, event_type: str, related_object: Obj | None = None) -> Obj:
        """A v2 event: it names the object and carries nothing of it."""
        related = related_object and {
            "id": related_object["id"],
            "type": related_object["object"],
            "url": f"/v1/{_path_of(related_object)}",
        }
        event: Obj = {
            "id": new_id("evt_test", 40),
            "object": THIN,
            "changes": None,
            "context": None,
            "created": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "livemode": False,
            "reason": None,
            "related_object": related,
            "type": event_type,
        }
        return self.books.put(event)

    def _endpoints_for(self, event: Obj, ids: tuple[str, ...] = ()) -> list[Obj]:
        if ids:
            return [self.books.get("webhook_endpoint", endpoint_id) for endpoint_id in ids]
        return [
            endpoint
            for endpoint in self.books.table("webhook_endpoint").values()
            if endpoint["status"] == "enabled" and wants(endpoint["enabled_events"], event["type"])
        ]

    def _parcel(self, event: Obj, endpoint: Obj, plan: Plan | None = None) -> Parcel:
        version = (plan and plan.api_version) or endpoint["api_version"] or API_VERSION
        shown: Mapping[str, Any] = event if event["object"] == THIN else render_event(event, version)
        body = json.dumps(shown, indent=2).encode()
        age_s = plan.signed_ago_s if plan else 0

        def headers() -> dict[str, str]:
            secrets = plan.secrets if plan and plan.secrets is not None else active_secrets(self.books, endpoint["id"])
            return {
                "content-type": "application/json; charset=utf-8",
                "user-agent": USER_AGENT,
                "accept": "*/*; q=0.5, application/xml",
                "cache-control": "no-cache",
                "stripe-signature": signature(body, secrets, int(time.time()) - age_s),
            }

        return Parcel(Sender.STRIPE, endpoint["id"], event["id"], event["type"], endpoint["url"], body, headers)


def _path_of(obj: Obj) -> str:
    return {"checkout.session": "checkout/sessions"}.get(obj["object"], f"{obj['object']}s") + f"/{obj['id']}"
