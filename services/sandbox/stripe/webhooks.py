"""Telling endpoints: signed, in their version, at once or when the script says."""

import asyncio
import hmac
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

from services.sandbox.outbox import Delivery, Outbox, Parcel, Sender
from services.sandbox.stripe.books import API_VERSION, Books, Obj, new_id
from services.sandbox.stripe.resources.events import wants
from services.sandbox.stripe.resources.webhook_endpoints import active_secrets
from services.sandbox.stripe.versions import render_event

USER_AGENT: Final = "Stripe/1.0 (+https://stripe.com/docs/webhooks)"
COPIES_MAX: Final = 100


def signature(payload: bytes, secrets: Sequence[str], signed_at_s: int) -> str:
    """The ``Stripe-Signature`` header: one ``v1`` per secret, so a receiver with either one is satisfied."""
    signed = b"%d." % signed_at_s + payload
    parts = [hmac.new(secret.encode(), signed, sha256).hexdigest() for secret in secrets]
    return ",".join([f"t={signed_at_s}", *(f"v1={part}" for part in parts)])


class Posting(StrEnum):
    """When an endpoint is told."""

    AUTO = "auto"
    """At once, and again until it answers 2xx."""
    HELD = "held"
    """Only when a plan names the event."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A scripted delivery: these events, in this order, so often, so wrongly."""

    events: tuple[str, ...]
    """Event ids in the wanted order; one may stand there twice."""
    endpoints: tuple[str, ...] = ()
    """Endpoint ids; none means every enabled endpoint that wants the event's type."""
    copies: int = 1
    """How often each is sent, one after the other."""
    simultaneous: bool = False
    """Everything at one instant, instead of each after the answer to the one before."""
    shuffle_seed: int | None = None
    """Shuffle the whole list, copies included."""
    pause_ms: int = 0
    """Waited between one answer and the next sending."""
    api_version: str | None = None
    """Instead of the endpoint's."""
    signed_ago_s: int = 0
    """The signature's age; negative for the future."""
    secrets: tuple[str, ...] | None = None
    """Instead of the endpoint's: a wrong one, an old one, or several."""


@dataclass(slots=True)
class Webhooks:
    """Between the books, where events come from, and the outbox, where they go."""

    books: Books
    outbox: Outbox
    posting: dict[str, Posting] = field(default_factory=dict)
    """By endpoint id; AUTO when not there."""

    def __post_init__(self) -> None:
        self.books.listeners.append(self._on_event)

    def _on_event(self, event: Obj) -> None:
        for endpoint in self._endpoints_for(event):
            if self.posting.get(endpoint["id"], Posting.AUTO) is Posting.AUTO:
                event["pending_webhooks"] += 1
                self.outbox.post(self._parcel(event, endpoint), lambda: _delivered(event))

    async def play(self, plan: Plan) -> list[Delivery]:
        """Carry out a plan; one attempt each, no retries. Raises StripeRefusal for unknown ids, ValueError for too many copies."""
        if not 1 <= plan.copies <= COPIES_MAX:
            raise ValueError(f"copies must be 1 to {COPIES_MAX}, got {plan.copies}")
        parcels = [
            self._parcel(event, endpoint, plan)
            for event in (self.books.get("event", id) for id in plan.events)
            for endpoint in self._endpoints_for(event, plan.endpoints)
            for _ in range(plan.copies)
        ]
        if plan.shuffle_seed is not None:
            random.Random(plan.shuffle_seed).shuffle(parcels)
        if plan.simultaneous:
            return list(await asyncio.gather(*(self.outbox.send(parcel) for parcel in parcels)))
        deliveries = []
        for number, parcel in enumerate(parcels):
            if number and plan.pause_ms:
                await asyncio.sleep(plan.pause_ms / 1000)
            deliveries.append(await self.outbox.send(parcel))
        return deliveries

    def thin_event(self, type: str, related_object: Obj | None = None) -> Obj:
        """A v2 event: it names the object and carries nothing of it."""
        related = related_object and {
            "id": related_object["id"],
            "type": related_object["object"],
            "url": f"/v1/{_path_of(related_object)}",
        }
        event: Obj = {
            "id": new_id("evt_test", 40),
            "object": "v2.core.event",
            "changes": None,
            "context": None,
            "created": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "livemode": False,
            "reason": None,
            "related_object": related,
            "type": type,
        }
        self.books.table("event")[event["id"]] = event
        return event

    def _endpoints_for(self, event: Obj, ids: tuple[str, ...] = ()) -> list[Obj]:
        if ids:
            return [self.books.get("webhook_endpoint", id) for id in ids]
        return [
            endpoint
            for endpoint in self.books.table("webhook_endpoint").values()
            if endpoint["status"] == "enabled" and wants(endpoint["enabled_events"], event["type"])
        ]

    def _parcel(self, event: Obj, endpoint: Obj, plan: Plan | None = None) -> Parcel:
        version = (plan and plan.api_version) or endpoint["api_version"] or API_VERSION
        shown: Mapping[str, Any] = event if event["object"] == "v2.core.event" else render_event(event, version)
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


def _delivered(event: Obj) -> None:
    event["pending_webhooks"] -= 1


def _path_of(obj: Obj) -> str:
    return {"checkout.session": "checkout/sessions"}.get(obj["object"], f"{obj['object']}s") + f"/{obj['id']}"
