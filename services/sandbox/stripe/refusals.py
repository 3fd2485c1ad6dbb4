"""Stripe's error bodies."""

import json
from typing import Any, Final

from services.sandbox.faults import Reply

DOCS: Final = "https://docs.stripe.com/error-codes"


class StripeRefusal(Exception):
    """Ends a request with this error.

    ``saved`` tells whether an idempotency key keeps it: Stripe keeps a result once the endpoint began to execute, so
    not for refused credentials, refused parameters, rate limits and conflicts.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        saved: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.saved = saved
        self.error: dict[str, Any] = {"message": message, "type": kind}
        if code is not None:
            self.error |= {"code": code, "doc_url": f"{DOCS}/{code.replace('_', '-')}"}
        if param is not None:
            self.error["param"] = param


def error_reply(
    status: int,
    message: str,
    *,
    kind: str = "invalid_request_error",
    code: str | None = None,
    saved: bool = True,
    **headers: str,
) -> Reply:
    """An error for a fault to play; header names with underscores for hyphens."""
    refusal = StripeRefusal(message, status=status, kind=kind, code=code)
    return Reply(
        status=status,
        headers={"content-type": "application/json"}
        | {name.replace("_", "-"): value for name, value in headers.items()},
        body=json.dumps({"error": refusal.error}),
        saved=saved,
    )


def server_error(*, should_retry: bool | None = False, saved: bool = True) -> Reply:
    """500 that the key keeps; Stripe then says ``stripe-should-retry: false``, since it would only repeat itself."""
    headers = {} if should_retry is None else {"stripe_should_retry": str(should_retry).lower()}
    return error_reply(
        500,
        "Sorry! There was an error while talking to one of our backends.",
        kind="api_error",
        saved=saved,
        **headers,
    )


def rate_limited(*, lock_timeout: bool = False) -> Reply:
    """429, either too many requests or a lock that could not be had."""
    if lock_timeout:
        return error_reply(
            429,
            "This object cannot be accessed right now because another API request or Stripe process is accessing it.",
            code="lock_timeout",
            saved=False,
        )
    return error_reply(
        429, "Request rate limit exceeded. Learn more about rate limits.", code="rate_limit", saved=False
    )


def key_in_use_reply(key: str = "…") -> Reply:
    """409: the same key is being worked on."""
    return error_reply(409, KEY_IN_USE.format(key=key), code="idempotency_key_in_use", saved=False)


def bad_gateway() -> Reply:
    """502 HTML from something in front of Stripe: nothing began to execute, nothing is kept."""
    return Reply(
        status=502,
        headers={"content-type": "text/html"},
        body="<html><head><title>502 Bad Gateway</title></head><body></body></html>",
        saved=False,
    )


KEY_IN_USE: Final = (
    "There is currently another in-progress request using this Idempotent Key (that probably means you submitted "
    "twice, and the other request is still going through): {key}. Please try again later."
)


def unknown_parameter(param: str) -> StripeRefusal:
    """A parameter Stripe does not have (any more)."""
    return StripeRefusal(f"Received unknown parameter: {param}", code="parameter_unknown", param=param)


def not_played(what: str, param: str | None = None) -> StripeRefusal:
    """Stripe has this; the sandbox does not. Said plainly, because doing nothing silently would be a lie."""
    return StripeRefusal(
        f"{what} exists at Stripe, but this sandbox does not play it.", code="sandbox_not_played", param=param
    )


def missing_parameter(param: str) -> StripeRefusal:
    """A parameter that must be there."""
    return StripeRefusal(f"Missing required param: {param}.", code="parameter_missing", param=param)


def invalid(message: str, param: str, code: str | None = None) -> StripeRefusal:
    """A parameter with a value it cannot have."""
    return StripeRefusal(message, code=code, param=param)


def no_such(noun: str, object_id: str, param: str) -> StripeRefusal:
    """An id that belongs to nothing. In a path it is 404, in a parameter 400."""
    return StripeRefusal(
        f"No such {noun}: '{object_id}'",
        status=404 if param == "id" else 400,
        code="resource_missing",
        param=param,
        saved=True,
    )
