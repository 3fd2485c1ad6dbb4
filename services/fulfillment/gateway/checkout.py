"""Stripe, as far as fulfillment needs it: a Checkout Session as it is now."""

from typing import Final, assert_never

import stripe
from pydantic import SecretStr

from services.fulfillment.machine import (
    Fetched,
    SessionAnswer,
    SessionMisconfigured,
    SessionMissing,
    SessionTrouble,
)
from services.kernel.errors import Retryable
from services.kernel.gate import Gates, vendor
from services.kernel.service import OnClose
from services.vendors.http import http_client
from services.vendors.stripe import FailureKind, failure_of, stripe_client

FETCH_BOUND_S: Final = 10.0


def open_checkout(api_key: SecretStr, api_url: str | None, gates: Gates, on_close: OnClose) -> "StripeCheckout":
    """Stripe, over an HTTP client of its own that ends with the process. ``api_url`` None: Stripe's own."""
    http = http_client()
    on_close(http.aclose)
    return StripeCheckout(stripe_client(api_key.get_secret_value(), http, api_url=api_url), gates)


class StripeCheckout:
    """The flow's ``Checkout``."""

    def __init__(self, client: stripe.StripeClient, gates: Gates) -> None:
        self._client = client
        self.gates = gates

    async def fetch(self, session_id: str) -> SessionAnswer:
        """The Session; every failure is an answer."""
        try:
            return Fetched(await self._retrieve(session_id))
        except TimeoutError:
            return SessionTrouble("timed_out")
        except Retryable as error:  # the gate is closed, or the database that keeps it is lost
            return SessionTrouble(error.code.name)
        except stripe.StripeError as error:
            failure = failure_of(error)
        match failure.kind:
            case FailureKind.UNKNOWN | FailureKind.BUSY | FailureKind.KEY_CONFLICT:
                return SessionTrouble(failure.code)
            case FailureKind.CONFIG:
                return SessionMisconfigured(failure.code)
            case FailureKind.REFUSED:
                return SessionMissing()
            case never:
                assert_never(never)

    @vendor("stripe", bound_s=FETCH_BOUND_S)
    async def _retrieve(self, session_id: str) -> object:
        found: object = await self._client.v1.checkout.sessions.retrieve_async(session_id)
        # An answer that is JSON but no object is not turned into theirs; the flow finds it unreadable.
        return found.to_dict() if isinstance(found, stripe.StripeObject) else found
