"""Every resource this Stripe has. A new one is a module in ``resources`` and a line here."""

from typing import Final

from services.sandbox.stripe.resources import (
    charges,
    checkout_sessions,
    customers,
    events,
    payment_intents,
    prices,
    webhook_endpoints,
)
from services.sandbox.stripe.routes import Route

ROUTES: Final[tuple[Route, ...]] = (
    *charges.ROUTES,
    *checkout_sessions.ROUTES,
    *customers.ROUTES,
    *events.ROUTES,
    *payment_intents.ROUTES,
    *prices.ROUTES,
    *webhook_endpoints.ROUTES,
)


def find_route(method: str, segments: tuple[str, ...]) -> tuple[Route, tuple[str, ...]] | None:
    """The route for a path and the ids in it."""
    for route in ROUTES:
        if (ids := route.match(method, segments)) is not None:
            return route, ids
    return None
