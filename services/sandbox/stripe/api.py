"""The door's inside: credentials, version, idempotency, parameters, execution, expansion, rendering, in this order."""

import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl

from services.sandbox.clock import SandboxClock, http_date
from services.sandbox.faults import Act, Armed, Fault, FaultScript, performs, trouble
from services.sandbox.http import Answer, Call, Cut, Dropped, Outcome
from services.sandbox.log import Vendor
from services.sandbox.stripe.books import API_VERSION, Books, Cause, new_id
from services.sandbox.stripe.expansion import expand
from services.sandbox.stripe.forms import decode
from services.sandbox.stripe.idempotency import IdempotencyLayer
from services.sandbox.stripe.refusals import StripeRefusal, invalid, not_played
from services.sandbox.stripe.registry import find_route
from services.sandbox.stripe.routes import Request
from services.sandbox.stripe.versions import is_known, render

DEFAULT_KEY: Final = "sk_test_rowclaim_sandbox"
UNSAVED_STATUSES: Final = frozenset({401, 403, 409, 429})
"""Answers given before an endpoint begins to execute."""


@dataclass(slots=True)
class StripeApi:
    """Handler behind the Stripe door."""

    books: Books
    clock: SandboxClock
    faults: FaultScript
    keys: set[str] = field(default_factory=lambda: {DEFAULT_KEY})
    idempotency: IdempotencyLayer = field(init=False)

    def __post_init__(self) -> None:
        self.idempotency = IdempotencyLayer(self.clock)

    async def answer(self, call: Call) -> Outcome:
        """Every call gets an outcome; a scripted fault may replace it."""
        request_id = new_id("req", 14)
        try:
            self._check_key(call)
            version = _version(call)
            _check_form(call)
            if "stripe-account" in call.headers:
                raise not_played("Acting for a connected account")

            def execute() -> tuple[Answer, bool]:
                return self._execute(call, request_id, version)

            key = call.headers.get("idempotency-key") if call.method == "POST" else None
            if key is None:
                outcome = await self._play(call, self.faults.take(Vendor.STRIPE, call), lambda: execute()[0])
            else:
                outcome = await self._idempotently(call, request_id, key, execute)
        except StripeRefusal as refused:
            outcome = _refusal_answer(refused)
        match outcome:
            case Answer():
                return self._dress(outcome, call, request_id)
            case Cut(answer):
                return Cut(self._dress(answer, call, request_id))
            case Dropped():
                return outcome

    async def _idempotently(
        self, call: Call, request_id: str, key: str, execute: Callable[[], tuple[Answer, bool]]
    ) -> Outcome:
        with self.idempotency.hold(key, f"{call.method} {call.path}", _canonical(call)) as slot:
            if slot.saved is not None:
                replay = _replayed(slot.saved, slot.request_id)
                # The layer speaks for the endpoint now; only what lies in front of it can still go wrong.
                armed = self.faults.take(Vendor.STRIPE, call, lambda fault: not _is_of_endpoint(fault))
                return await self._play(call, armed, lambda: replay)

            def perform() -> Answer:
                answer, begun = execute()
                if begun:
                    slot.save(answer, request_id)
                return answer

            armed = self.faults.take(Vendor.STRIPE, call)
            outcome = await self._play(call, armed, perform)
            if armed is not None and isinstance(outcome, Answer) and _is_of_endpoint(armed.fault):
                # Stripe repeats what it said, not what it did: a 500 after the commit hides the object for 24 hours.
                slot.save(outcome, request_id)
            return outcome

    async def _play(self, call: Call, armed: Armed | None, perform: Callable[[], Answer]) -> Outcome:
        """The truth, or what the script says instead."""
        if armed is None:
            return perform()
        await call.pause(armed.fault.delay_ms / 1000)
        return await trouble(armed, perform() if performs(armed.fault) else None, call, self.clock)

    def _execute(self, call: Call, request_id: str, version: str) -> tuple[Answer, bool]:
        """The answer, and whether the endpoint began to execute, which is what an idempotency key remembers."""
        try:
            found = find_route(call.method, call.segments)
            if found is None:
                raise StripeRefusal(
                    f"Unrecognized request URL ({call.method}: {call.path}). Please see "
                    "https://stripe.com/docs or we can help at https://support.stripe.com/.",
                    status=404,
                )
            route, ids = found
            params = route.params.read(decode(_pairs(call)))
            cause = Cause(request_id, call.headers.get("idempotency-key"))
            result = route.verb(Request(self.books, call.path, ids, params, cause))
            call.entry.effect = route.effect
            call.entry.subject = result.get("id")
            shown = render(expand(result, params.get("expand", []), self.books), version)
            return Answer(200, json.dumps(shown).encode(), {"content-type": "application/json"}), True
        except StripeRefusal as refused:
            return _refusal_answer(refused), refused.saved

    def _check_key(self, call: Call) -> None:
        scheme, _, credential = call.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            credential = _basic_user(credential)
        elif scheme.lower() != "bearer":
            credential = ""
        if not credential:
            raise StripeRefusal(
                "You did not provide an API key. You need to provide your API key in the Authorization header, using "
                "Bearer auth (e.g. 'Authorization: Bearer YOUR_SECRET_KEY').",
                status=401,
            )
        if credential not in self.keys:
            shown = f"{credential[:8]}{'*' * max(0, len(credential) - 12)}{credential[-4:]}"
            raise StripeRefusal(f"Invalid API Key provided: {shown}", status=401)

    def _dress(self, answer: Answer, call: Call, request_id: str) -> Answer:
        headers = {
            "server": "nginx",
            "date": http_date(self.clock.now()),
            "request-id": request_id,
            "stripe-version": call.headers.get("stripe-version", API_VERSION),
            "cache-control": "no-cache, no-store",
        }
        if (key := call.headers.get("idempotency-key")) is not None and call.method == "POST":
            headers["idempotency-key"] = key
        return Answer(answer.status, answer.body, headers | dict(answer.headers))


def _is_of_endpoint(fault: Fault) -> bool:
    """Whether a fault's reply is given by the executing endpoint, and so kept under the key."""
    status = fault.reply.status
    return fault.act is Act.ANSWER and fault.reply.saved and status is not None and status not in UNSAVED_STATUSES


def _replayed(saved: Answer, request_id: str | None) -> Answer:
    return Answer(
        saved.status,
        saved.body,
        dict(saved.headers) | {"idempotent-replayed": "true", "original-request": request_id or ""},
    )


def _check_form(call: Call) -> None:
    kind = call.headers.get("content-type", "")
    if call.body and not kind.startswith("application/x-www-form-urlencoded"):
        raise StripeRefusal(
            "Invalid request (check that your POST content type is application/x-www-form-urlencoded). "
            f"Yours is {kind or 'missing'}."
        )


def _version(call: Call) -> str:
    version = call.headers.get("stripe-version", API_VERSION)
    if not is_known(version):
        raise invalid(f"Invalid Stripe API version: {version}", "Stripe-Version")
    return version


def _pairs(call: Call) -> Sequence[tuple[str, str]]:
    """Parameters travel in the query of GET and DELETE, and in the form of POST."""
    if call.method != "POST":
        return call.query_pairs()
    try:
        return parse_qsl(call.body.decode(), keep_blank_values=True)
    except UnicodeDecodeError as error:
        raise StripeRefusal("Invalid request: the body is no UTF-8 form.") from error


def _canonical(call: Call) -> str:
    """The parameters in one order, for comparing: the form's order and escaping do not matter."""
    return json.dumps(sorted(_pairs(call)))


def _basic_user(credential: str) -> str:
    try:
        return b64decode(credential, validate=True).decode().partition(":")[0]
    except ValueError:
        return ""


def _refusal_answer(refused: StripeRefusal) -> Answer:
    return Answer(refused.status, json.dumps({"error": refused.error}).encode(), {"content-type": "application/json"})
