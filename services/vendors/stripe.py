"""Stripe's own client over our HTTP door, and what its errors mean.

The class names mislead: an idempotency key in use is an ``APIError``, a 429 is not retried, a connection error says
nothing about what happened. ``failure_of`` reads them once, for everybody.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx
import stripe


class FailureKind(StrEnum):
    """What a failed call to Stripe means for its caller."""

    UNKNOWN = "unknown"
    """No answer, or one that leaves the outcome open: the call may have been carried out."""
    REFUSED = "refused"
    """Stripe decided against this very request."""
    CONFIG = "config"
    """Our key or its rights."""
    BUSY = "busy"
    """Not carried out, and may be later: a rate limit, or the same key in flight."""
    KEY_CONFLICT = "key_conflict"
    """The idempotency key was used for something else: never send again under a new one, look first."""


@dataclass(frozen=True, slots=True)
class Failure:
    """``code`` is Stripe's own where it has one, else the HTTP status or the kind."""

    kind: FailureKind
    code: str
    param: str | None = None
    """The parameter Stripe took exception to, where it names one."""


def failure_of(error: stripe.StripeError) -> Failure:
    """What an error of Stripe's client means."""
    named = getattr(error.error, "code", None) if error.error is not None else None
    code = str(error.code or named or error.http_status or "no_answer")
    match error:
        case stripe.APIConnectionError():
            return Failure(FailureKind.UNKNOWN, "no_answer")
        case stripe.AuthenticationError() | stripe.PermissionError():
            return Failure(FailureKind.CONFIG, code)
        case stripe.RateLimitError():
            return Failure(FailureKind.BUSY, code)
        case stripe.IdempotencyError():
            return Failure(FailureKind.KEY_CONFLICT, code)
        case stripe.APIError() if code == "idempotency_key_in_use":
            return Failure(FailureKind.BUSY, code)
        case stripe.InvalidRequestError() | stripe.CardError():
            return Failure(FailureKind.REFUSED, code, error.param or None)
        case _:
            return Failure(FailureKind.UNKNOWN, code)


class DoorClient(stripe.HTTPClient):
    """Stripe's transport seam over one of our HTTP clients, which the caller closes."""

    name = "httpx"

    def __init__(self, http: httpx.AsyncClient) -> None:
        super().__init__()
        self._http = http

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        try:
            response = await self._http.request(method, url, headers=dict(headers), content=post_data or None)
        except httpx.HTTPError as error:
            raise stripe.APIConnectionError(type(error).__name__) from error  # type: ignore[no-untyped-call]  # theirs has no types
        return response.content, response.status_code, response.headers

    async def close_async(self) -> None:
        """Closed by whoever opened the HTTP client."""


def stripe_client(api_key: str, http: httpx.AsyncClient, *, api_url: str | None = None) -> stripe.StripeClient:
    """Stripe's client. It tries once: whether and when to try again is decided by rows, not by a library."""
    return stripe.StripeClient(
        api_key,
        base_addresses={"api": api_url.rstrip("/")} if api_url else {},
        http_client=DoorClient(http),
        max_network_retries=0,
    )
