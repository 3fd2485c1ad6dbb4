"""The load generator, a process of its own: keep-alive connections that each send the next request on the answer.

It reads commands (one JSON object a line) and answers each with one line. Bodies are made and signed before the clock
starts, each with an id of its own. Run as ``python -m bench.load``.
"""

import asyncio
import json
import secrets
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final, cast

import stripe
import uvloop

from bench.measure import percentile_ms

SECRET: Final = "whsec_benchmark_0123456789abcdef"  # noqa: S105 - made up
REQUESTS_PER_S_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class Order:
    """What to do: ``connections`` senders against ``port`` for ``seconds``."""

    port: int
    seconds: float
    connections: int


@dataclass(frozen=True, slots=True)
class Answered:
    """What was answered with a success within the time, and how fast; anything else is an error of the run."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    refused: int


def event(event_id: str) -> bytes:
    """A checkout of usual size (some 2 kB), as Stripe renders it."""
    unused = {f"unused_field_{n}": None for n in range(24)}
    address = {"city": "Berlin", "country": "DE", "line1": "Street 1", "line2": None, "postal_code": "10115"}
    session = {
        "id": "cs_test_a1b2c3d4e5f6g7h8i9j0",
        "object": "checkout.session",
        "amount_subtotal": 4900,
        "amount_total": 4900,
        "client_reference_id": "user_123",
        "currency": "usd",
        "customer": "cus_ABCDEF123456",
        "customer_details": {"address": address, "email": "buyer@example.com", "name": "Some Buyer"},
        "metadata": {"rowclaim_slice": "fulfillment", "github_username": "octocat"},
        "mode": "payment",
        "payment_intent": "pi_3ABCDEF",
        "payment_method_types": ["card"],
        "payment_status": "paid",
        "status": "complete",
        "success_url": "https://example.com/success?session_id={CHECKOUT_SESSION_ID}",
        "total_details": {"amount_discount": 0, "amount_shipping": 0, "amount_tax": 0},
        **unused,
    }
    return json.dumps(
        {
            "id": event_id,
            "object": "event",
            "api_version": "2026-10-28.endive",
            "created": 1796043609,
            "livemode": False,
            "pending_webhooks": 1,
            "request": {"id": None, "idempotency_key": None},
            "type": "checkout.session.completed",
            "data": {"object": session},
        },
        indent=2,
    ).encode()


def requests(count: int) -> list[bytes]:
    """Whole requests, ready to be written."""
    template = event("EVENT_ID")
    now, tag = int(time.time()), secrets.token_hex(6)
    made: list[bytes] = []
    for nth in range(count):
        body = template.replace(b"EVENT_ID", b"evt_%s_%d" % (tag.encode(), nth))
        signature = stripe.WebhookSignature.generate_signature_header(body.decode(), SECRET, now)
        head = (
            "POST /webhooks/stripe HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json; charset=utf-8\r\n"
            f"stripe-signature: {signature}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        made.append(head.encode() + body)
    return made


class Sender(asyncio.Protocol):
    """One connection: one request in flight. Answers are as small as ours are, and come with their length."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._held = b""
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._run.waiting.pop())

    def data_received(self, data: bytes) -> None:
        self._held += data
        head, found, rest = self._held.partition(b"\r\n\r\n")
        if not found:
            return
        at = head.lower().find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(rest) < length:
            return
        self._held = b""
        if self._run.is_cold(self):
            return
        now = time.perf_counter()
        if now >= self._run.ends_at or not self._run.waiting:
            self._run.stop(self._transport)
            return
        if head[9:12] in (b"200", b"202"):
            self._run.latencies.append(now - self._sent_at)
        else:
            self._run.refused += 1
        self.send()

    def connection_lost(self, error: Exception | None) -> None:
        self._run.lost()


class Run:
    """All connections of one slice."""

    def __init__(self, waiting: list[bytes], seconds: float) -> None:
        self.waiting = waiting
        self.began = 0.0
        self._seconds = seconds
        self._cold: set[Sender] = set()
        self._warm: list[Sender] = []
        self.latencies: list[float] = []
        self.refused = 0
        self.ends_at = 0.0
        self._open = 0
        self._ended = asyncio.Event()

    async def answered(self, order: Order) -> Answered:
        loop = asyncio.get_running_loop()
        pairs = [
            await loop.create_connection(lambda: Sender(self), "127.0.0.1", order.port)
            for _ in range(order.connections)
        ]
        self._open = len(pairs)
        self._cold = {sender for _, sender in pairs}
        for _, sender in pairs:
            sender.send()
        async with asyncio.timeout(order.seconds + 30):
            await self._ended.wait()
        taken_s = min(time.perf_counter() - self.began, order.seconds)
        p50_ms, p99_ms = (percentile_ms(self.latencies, share) for share in (0.5, 0.99))
        return Answered(len(self.latencies), taken_s, p50_ms, p99_ms, self.refused)

    def is_cold(self, sender: Sender) -> bool:
        """Whether this was a connection's first answer. The clock starts when each has had one: what a server does
        once (a first import, a first connection of its own) is not what is compared."""
        if self.began:
            return False
        self._cold.discard(sender)
        self._warm.append(sender)
        if not self._cold:
            self.began = time.perf_counter()
            self.ends_at = self.began + self._seconds
            for warm in self._warm:
                warm.send()
        return True

    def stop(self, transport: asyncio.Transport) -> None:
        transport.close()

    def lost(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._ended.set()


def main() -> None:
    for line in sys.stdin:
        order = Order(**json.loads(line))
        ready = requests(int(order.seconds * REQUESTS_PER_S_MAX))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            answered = runner.run(Run(ready, order.seconds).answered(order))
        print(json.dumps(asdict(answered)), flush=True)


if __name__ == "__main__":
    main()
