"""Stripe's list of its own events, for those that never reached the door. It goes back 30 days.

The list is asked for as bytes and cut, not built into objects: what is stored is the event as Stripe rendered it, like
what comes through the door. Its id and kind are held to the same shapes.
"""

from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
import stripe
from pydantic import SecretStr

from services.ingress.gateway.head import EXTERNAL_ID, Head
from services.ingress.gateway.stripe import SNAPSHOT_OBJECT, misshapen
from services.ingress.machine import HistoryAnswer, HistoryPage, HistoryQuery, HistoryRefused, HistoryTrouble, PastEvent
from services.kernel.gate import Gates, vendor
from services.kernel.service import OnClose
from services.vendors.http import http_client
from services.vendors.stripe import FailureKind, failure_of, stripe_client

LIST_BOUND_S: Final = 20.0
PAGE: Final = 100
"""The most that Stripe lists at once."""


class Past(Head, frozen=True):
    """The head of a listed event, and when it happened (seconds since 1970)."""

    created: Annotated[int, msgspec.Meta(ge=0, lt=2**35)] = 0


class Listed(msgspec.Struct, frozen=True):
    """One answer of the list, newest event first, each left as it was rendered."""

    data: list[msgspec.Raw]
    has_more: bool


_decode_list: Final = msgspec.json.Decoder(Listed).decode
_decode_past: Final = msgspec.json.Decoder(Past).decode


def open_history(api_key: SecretStr, api_url: str | None, gates: Gates, on_close: OnClose) -> "StripeHistory":
    """Stripe, over an HTTP client of its own that ends with the process. ``api_url`` None: Stripe's own."""
    http = http_client()
    on_close(http.aclose)
    return StripeHistory(stripe_client(api_key.get_secret_value(), http, api_url=api_url), gates)


class StripeHistory:
    """The flow's ``History``."""

    def __init__(self, client: stripe.StripeClient, gates: Gates) -> None:
        self._client = client
        self.gates = gates

    async def page(self, query: HistoryQuery) -> HistoryAnswer:
        """One page; every failure is an answer, but for a closed gate (Retryable)."""
        try:
            return read_page(await self._list(query))
        except TimeoutError:
            return HistoryTrouble("timed_out")
        except stripe.StripeError as error:
            failure = failure_of(error)
        if failure.kind is FailureKind.CONFIG:
            return HistoryRefused(failure.code)
        return HistoryTrouble(failure.code)

    @vendor("stripe", bound_s=LIST_BOUND_S)
    async def _list(self, query: HistoryQuery) -> bytes:
        cursor = {} if query.after is None else {"starting_after": query.after}
        answer = await self._client.raw_request_async(
            "get",
            "/v1/events",
            types=list(query.kinds),
            created={"gte": int(query.since.timestamp()), "lte": int(query.until.timestamp())},
            limit=PAGE,
            **cursor,
        )
        return str(answer.body).encode()


def read_page(body: bytes) -> HistoryPage | HistoryTrouble:
    """A page out of the list's own JSON. What is no event of ours to store is counted, and goes no further."""
    try:
        listed = _decode_list(body)
        heads = [_decode_past(raw) for raw in listed.data]
    except (msgspec.DecodeError, RecursionError):
        return HistoryTrouble("unreadable_list")
    if listed.has_more and not (heads and EXTERNAL_ID.fullmatch(heads[-1].id)):
        return HistoryTrouble("unreadable_list")  # without a cursor nobody could go on, or all would begin anew
    events = [
        PastEvent(head.id, head.type, bytes(raw))
        for raw, head in zip(listed.data, heads, strict=True)
        if head.object == SNAPSHOT_OBJECT and misshapen(head) is None
    ]
    return HistoryPage(
        events=events,
        unreadable=len(heads) - len(events),
        oldest=datetime.fromtimestamp(heads[-1].created, UTC) if heads else None,
        after=heads[-1].id if listed.has_more else None,
    )
