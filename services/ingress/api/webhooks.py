"""The webhooks' routes.

A route is a bare ASGI callable: at the rate of a sender's burst, a request object and a dependency graph would cost
more than verifying and storing do. Errors are raised; the app around the routes makes problem documents of them.
"""

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from services.ingress.flow.intake import Intake
from services.ingress.machine import Receipt, Rejection, Source
from services.kernel.auth import PublicRoute, refusal, unwired
from services.kernel.bodies import CutOff, read_body

SIGNED_BY: Final[Mapping[Source, Sequence[str]]] = {
    Source.STRIPE: ("stripe-signature",),
    Source.CLERK: ("svix-id", "svix-timestamp", "svix-signature"),
}

ANSWERS: Final = {
    Receipt.STORED: (HTTPStatus.ACCEPTED, b'{"event":"stored"}'),
    Receipt.PARKED: (HTTPStatus.ACCEPTED, b'{"event":"parked"}'),
    Receipt.DUPLICATE: (HTTPStatus.OK, b'{"event":"duplicate"}'),
}
CUT_OFF: Final = {"too_large": Rejection.BODY_TOO_LARGE, "too_slow": Rejection.BODY_TOO_SLOW}


def routes(intake: Intake, *, body_bytes_max: int) -> Sequence[BaseRoute]:
    """``POST /webhooks/<source>``: 2xx once the event is committed, 400, 408 or 413 with nothing of it kept, or 503."""
    return _routes(lambda source: Webhook(intake, source, body_bytes_max))


def described() -> Sequence[BaseRoute]:
    """The same, wired to nothing."""
    return _routes(lambda _: unwired)


def _routes(endpoint: Callable[[Source], Callable[..., Any]]) -> Sequence[BaseRoute]:
    return [
        PublicRoute(
            f"/webhooks/{source}",
            endpoint(source),
            methods=("POST",),
            name=f"webhook_{source}",
            operation=operation(source),
        )
        for source in Source
    ]


def operation(source: Source) -> Mapping[str, object]:
    """What the API's document says of a sender's endpoint."""
    body = {"schema": {"type": "object", "properties": {"event": {"enum": [receipt.value for receipt in Receipt]}}}}
    taken = {"application/json": body}
    return {
        "summary": f"A signed event of {source.value.capitalize()}",
        "description": "The signature is made over the raw bytes of the body; no content type is asked for.",
        "parameters": [
            {"name": name, "in": "header", "required": True, "schema": {"type": "string"}} for name in SIGNED_BY[source]
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
        "responses": {
            "200": {"description": "It had been stored before.", "content": taken},
            "202": {"description": "It is stored.", "content": taken},
            "400": refusal("No good signature of the sender's over these bytes, or no event in them."),
            "408": refusal("The body did not arrive in time."),
            "413": refusal("The body is too long."),
            "503": refusal("Not now; send it again."),
        },
    }


class Webhook:
    """One sender's endpoint (ASGI)."""

    def __init__(self, intake: Intake, source: Source, body_bytes_max: int) -> None:
        self._intake = intake
        self._source = source
        self._body_bytes_max = body_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive, self._body_bytes_max)
        if body is None:
            return
        if isinstance(body, CutOff):
            raise self._intake.refusal(self._source, CUT_OFF[body.why], body.received)
        receipt = await self._intake.receive(self._source, scope["headers"], body)
        status, text = ANSWERS[receipt]
        length = str(len(text)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": status.value, "headers": headers})
        await send({"type": "http.response.body", "body": text})
