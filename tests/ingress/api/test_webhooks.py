"""The webhooks over HTTP: what a sender is told, and what stands in the database afterwards."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import asyncpg
import httpx
import pytest
import structlog
from prometheus_client import REGISTRY
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.ingress.gateway.clerk import ClerkVerifier
from services.ingress.gateway.stripe import StripeVerifier
from services.ingress.machine import Source
from services.kernel import bodies
from services.operations import web
from tests.fixtures.database import Connect, Server
from tests.ingress.conftest import BODY_BYTES_MAX, Door, Stored, make_door
from tests.ingress.signing import (
    CLERK_OLD,
    NEW,
    OLD,
    Headers,
    both,
    changed,
    clerk_event,
    clerk_headers,
    seconds,
    stripe_event,
    stripe_headers,
    thin_event,
)


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"{name}_total", labels) or 0.0


async def test_an_event_is_stored_with_its_bytes_and_rung_for(door: Door, stored: Stored) -> None:
    body = stripe_event("evt_1")
    answer = await door.stripe(body)
    assert (answer.status_code, answer.json()) == (202, {"event": "stored"})
    assert await stored.events() == [("stripe", "evt_1", "checkout.session.completed")]
    assert await stored.bodies() == [body]
    ((event_id, consumer, state),) = await stored.deliveries()
    assert (consumer, state) == ("fulfillment", "pending")
    assert door.bell.rings == [("stripe.events.v1", [event_id])]


async def test_clerks_event_rings_its_own_topic(door: Door, stored: Stored) -> None:
    body = clerk_event()
    answer = await door.clerk(body)
    assert answer.status_code == 202
    assert await stored.events() == [("clerk", "msg_1", "user.created")]
    ((event_id, _, _),) = await stored.deliveries()
    assert door.bell.rings == [("clerk.events.v1", [event_id])]


async def test_an_event_that_nobody_is_owed_is_kept_and_rings_for_nobody(door: Door, stored: Stored) -> None:
    assert (await door.stripe(stripe_event(kind="invoice.created"))).status_code == 202
    assert len(await stored.events()) == 1
    assert await stored.deliveries() == []
    assert door.bell.rings == []


@pytest.mark.promise("F88")
async def test_a_verified_thin_event_is_stored_and_shown_as_parked(
    door: Door, stored: Stored, owner: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    body = thin_event()
    answer = await door.stripe(body)
    assert (answer.status_code, answer.json()) == (202, {"event": "parked"})
    assert await stored.bodies() == [body]
    shown = await owner.fetch("select state, why from desk.ingress_parked")
    assert [tuple(row) for row in shown] == [("parked", "thin_event")]
    again = await door.stripe(body)
    assert (again.status_code, again.json()) == (200, {"event": "duplicate"})
    assert door.bell.rings == []


GARBAGE: dict[str, tuple[str, Callable[[], tuple[bytes, Headers]], str]] = {
    "invalid UTF-8": ("stripe", lambda: (b"\xff\xfe", stripe_headers(b"\xff\xfe")), "body_not_utf8"),
    "no JSON": ("stripe", lambda: (b"nope", stripe_headers(b"nope")), "body_not_json"),
    "a list": ("stripe", lambda: (b"[]", stripe_headers(b"[]")), "body_not_object"),
    "an empty object": ("stripe", lambda: (b"{}", stripe_headers(b"{}")), "event_object"),
    "no signature": ("stripe", lambda: (stripe_event(), []), "signature_missing"),
    "two signatures' headers": (
        "stripe",
        lambda: (stripe_event(), stripe_headers(stripe_event()) * 2),
        "signature_repeated",
    ),
    "a signature that is not ASCII": (
        "stripe",
        lambda: (stripe_event(), [(b"stripe-signature", f"t={seconds()},v1=".encode() + b"\xe9")]),
        "signature_malformed",
    ),
    "a signature of an older scheme": (
        "stripe",
        lambda: (stripe_event(), [(b"stripe-signature", b"t=%d,v0=00" % seconds())]),
        "signature_scheme",
    ),
    "an instant that is no whole number": (
        "clerk",
        lambda: (clerk_event(), changed(clerk_headers(clerk_event()), svix_timestamp=b"nan")),
        "signature_timestamp",
    ),
    "an id that is no text": (
        "stripe",
        lambda: (stripe_event(id=7), stripe_headers(stripe_event(id=7))),
        "event_malformed",
    ),
    "a type with a space": (
        "stripe",
        lambda: (stripe_event(kind="a b"), stripe_headers(stripe_event(kind="a b"))),
        "event_kind",
    ),
    "a malformed signature": (
        "clerk",
        lambda: (clerk_event(), changed(clerk_headers(clerk_event()), svix_signature=b"v1,!!!A")),
        "signature_malformed",
    ),
    "a Clerk id with a dot": (
        "clerk",
        lambda: (clerk_event(), clerk_headers(clerk_event(), message_id="msg.1")),
        "event_id",
    ),
    "stale": ("stripe", lambda: (stripe_event(), stripe_headers(stripe_event(), offset_s=-302)), "signature_stale"),
    "future": ("clerk", lambda: (clerk_event(), clerk_headers(clerk_event(), offset_s=302)), "signature_future"),
    "another's secret": (
        "stripe",
        lambda: (stripe_event(), stripe_headers(stripe_event(), "whsec_unknown")),
        "signature_mismatch",
    ),
}


@pytest.mark.promise("F88", "F89")
@pytest.mark.parametrize("case", GARBAGE)
async def test_garbage_is_a_400_with_its_code_and_nothing_is_stored(door: Door, stored: Stored, case: str) -> None:
    source, make, code = GARBAGE[case]
    body, headers = make()
    before = counted("rowclaim_ingress_refused", source=source, reason=code)
    with structlog.testing.capture_logs() as lines:
        answer = await door.http.post(f"/webhooks/{source}", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.json()["code"], answer.json()["status"]) == (code, 400)
    assert await stored.nothing()
    assert door.bell.rings == []
    assert counted("rowclaim_ingress_refused", source=source, reason=code) == before + 1
    refused = [line for line in lines if line["event"] == "ingress.refused"]
    assert [(line["code"], line["body_bytes"]) for line in refused] == [(code, len(body))]
    assert not body or body.decode("latin-1") not in json.dumps(lines), "not a byte of it is logged"


@pytest.mark.promise("F90")
async def test_during_a_rotation_old_new_and_both_are_good_and_the_metric_tells_which(
    door: Door, stored: Stored
) -> None:
    def verified() -> dict[str, float]:
        labels = (
            sample.labels["secret"]
            for metric in REGISTRY.collect()
            if metric.name == "rowclaim_ingress_verified"
            for sample in metric.samples
            if sample.labels["source"] == "stripe" and sample.name.endswith("_total")
        )
        return {place: counted("rowclaim_ingress_verified", source="stripe", secret=place) for place in set(labels)}

    before = verified()
    bodies = [stripe_event(f"evt_{n}") for n in range(4)]
    statuses = [
        (await door.stripe(bodies[0], stripe_headers(bodies[0], OLD))).status_code,
        (await door.stripe(bodies[1], stripe_headers(bodies[1], NEW))).status_code,
        (await door.stripe(bodies[2], [(b"stripe-signature", both(bodies[2]).encode())])).status_code,
        (await door.stripe(bodies[3], stripe_headers(bodies[3], "whsec_none_of_them"))).status_code,
    ]
    assert statuses == [202, 202, 202, 400]
    assert [event[1] for event in await stored.events()] == ["evt_0", "evt_1", "evt_2"]
    gained = {label[:2]: count - before.get(label, 0) for label, count in verified().items()}
    assert {place: count for place, count in gained.items() if count} == {"1:": 2, "2:": 1}
    clerk = clerk_event()
    assert (await door.clerk(clerk, clerk_headers(clerk, [CLERK_OLD]))).status_code == 202


@pytest.mark.promise("F90")
async def test_without_a_secret_everything_is_a_400(door: Door, stored: Stored) -> None:
    verifiers = {Source.STRIPE: StripeVerifier([]), Source.CLERK: ClerkVerifier([" "])}
    unset = make_door(door.db, door.bell, verifiers)
    answers = [await unset.stripe(stripe_event()), await unset.clerk(clerk_event())]
    await unset.http.aclose()
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(400, "signature_unconfigured")] * 2
    assert await stored.nothing()


async def test_a_body_that_a_middleware_encoded_anew_is_refused(door: Door, stored: Stored) -> None:
    class Reencoding:
        def __init__(self, app: ASGIApp) -> None:
            self._app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            async def reencoded() -> Message:
                message = await receive()
                body = message["body"]
                return {**message, "body": json.dumps(json.loads(body)).encode() if body else b""}

            await self._app(scope, reencoded, send)

    body = stripe_event()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(Reencoding(door.app)), base_url="http://door") as http:
        answer = await http.post("/webhooks/stripe", content=body, headers=stripe_headers(body))
    assert answer.json()["code"] == "signature_mismatch"
    assert await stored.nothing()


async def test_only_post_is_answered(door: Door) -> None:
    assert (await door.http.get("/webhooks/stripe")).status_code == 405
    assert (await door.http.post("/webhooks/paypal", content=b"{}")).status_code == 404


# ------------------------------------------------------------------------------------------------- the body as it comes


@pytest.mark.promise("F92")
async def test_a_body_is_counted_whatever_length_was_announced(door: Door, stored: Stored) -> None:
    limit = stripe_event(padding="x" * (BODY_BYTES_MAX - len(stripe_event(padding=""))))
    assert len(limit) == BODY_BYTES_MAX
    over = limit + b" "
    announced = [*stripe_headers(over), (b"content-length", b"5")]
    assert (await door.stripe(over, announced)).json()["code"] == "body_too_large"
    assert (await door.stripe(over)).status_code == 413
    assert await stored.nothing()
    assert (await door.stripe(limit)).status_code == 202


@asynccontextmanager
async def listening(door: Door) -> AsyncIterator[int]:
    """The door behind a real server, as ``rowclaim serve`` runs it; the port."""
    listener = web.bind("127.0.0.1", 0)
    stopping = asyncio.Event()
    serving = asyncio.ensure_future(web.serve_http(door.app, listener, stopping))
    try:
        yield listener.getsockname()[1]
    finally:
        stopping.set()
        await serving


async def exchange(port: int, *pieces: bytes) -> bytes:
    """Write pieces to the server and read what it says until it has answered or hung up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with suppress(ConnectionError):  # a server that has refused need not read on
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            return head + await reader.readexactly(length)
    finally:
        writer.close()


def request(body: bytes, *fields: bytes) -> bytes:
    signature = stripe_headers(body)[0][1]
    lines = [b"POST /webhooks/stripe HTTP/1.1", b"host: door", b"stripe-signature: " + signature, *fields]
    return b"\r\n".join([*lines, b"", b""])


def chunks(body: bytes, size: int) -> list[bytes]:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces] + [b"0\r\n\r\n"]


@pytest.mark.promise("F92")
async def test_a_chunked_body_is_taken_below_the_limit_and_413_over_it(door: Door, stored: Stored) -> None:
    small = stripe_event("evt_small", padding="x" * 30_000)
    large = stripe_event("evt_large", padding="x" * (4 * BODY_BYTES_MAX))
    async with listening(door) as port:
        answer = await exchange(port, request(large, b"transfer-encoding: chunked"), *chunks(large, 4096))
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b'"body_too_large"' in answer
        assert await stored.nothing()
        answer = await exchange(port, request(small, b"transfer-encoding: chunked"), *chunks(small, 1000))
        assert answer.startswith(b"HTTP/1.1 202 ")
    assert await stored.bodies() == [small]


async def test_a_body_shorter_than_announced_stores_nothing(door: Door, stored: Stored) -> None:
    body = stripe_event()
    async with listening(door) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(body, b"content-length: %d" % (len(body) + 10)) + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        answer = await exchange(port, request(body, b"content-length: %d" % len(body)), body)
    assert answer.startswith(b"HTTP/1.1 202 "), "the whole one that follows is the first that is stored"
    assert len(await stored.events()) == 1


async def test_a_body_longer_than_announced_is_not_the_body_that_was_signed(door: Door, stored: Stored) -> None:
    body = stripe_event()
    async with listening(door) as port:
        answer = await exchange(port, request(body, b"content-length: %d" % (len(body) - 10)), body)
    assert answer.startswith(b"HTTP/1.1 400 "), "by us, or by the server that reads the rest as a request"
    assert await stored.nothing()


async def test_a_body_that_dribbles_is_given_up(door: Door, stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "WITHIN_S", 0.05)
    body = stripe_event()
    async with listening(door) as port:
        answer = await exchange(port, request(body, b"content-length: %d" % len(body)), body[:-1])
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert "body_too_slow" in answer.decode()
    assert await stored.nothing()


# ---------------------------------------------------------------------------------------------------- the database away


@pytest.mark.durable
@pytest.mark.promise("F92")
async def test_a_database_that_is_down_is_a_503_and_the_next_try_is_stored(
    database_server: Server, connect: Connect, door: Door
) -> None:
    body = stripe_event()
    assert (await door.stripe(stripe_event("evt_before"))).status_code == 202
    database_server.postgres.kill()
    answers = await asyncio.gather(*(door.stripe(stripe_event(f"evt_{n}")) for n in range(20)), door.stripe(body))
    assert {answer.status_code for answer in answers} == {503}
    assert {answer.json()["code"] for answer in answers} == {"database_unavailable"}
    assert "retry-after" in answers[0].headers
    await database_server.postgres.start()
    db = await connect()
    assert await db.value("select array_agg(external_id) from event_ids") == ["evt_before"]
    assert (await door.stripe(body)).status_code == 202
    assert await db.value("select count(*) from event_ids") == 2
