"""The issuer's keys: fetched when needed and not more often, kept while the issuer is away, never another kind's."""

import asyncio
import json
from typing import Any

import httpx
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from services.kernel.errors import Retryable
from services.kernel.gate import Gates
from services.vendors.http import http_client
from services.vendors.jwks import ANEW_S, BODY_BYTES_MAX, FIRST_ANEW_S, FRESH_S, Jwks, usable
from tests.fixtures.database import Connect
from tests.fixtures.tokens import jwk, private_key
from tests.waiting import wait_until

ROLE = "rowclaim_ingress"


class Issuer:
    """Publishes keys, or fails as it is told to; and a clock that a test moves."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.answer: httpx.Response | Exception | bytes = b""
        self.publish(*keys)
        self.requests: list[httpx.Request] = []
        self.now = 0.0
        self.held = asyncio.Event()
        self.held.set()

    def publish(self, *keys: dict[str, Any]) -> None:
        self.answer = json.dumps({"keys": keys}).encode()

    async def _answered(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        await self.held.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return httpx.Response(200, content=self.answer) if isinstance(self.answer, bytes) else self.answer

    def keys(self, gates: Gates) -> Jwks:
        client = http_client(httpx.MockTransport(self._answered), body_bytes_max=BODY_BYTES_MAX)
        return Jwks(client, gates, "https://issuer.test/keys", clock=lambda: self.now)

    async def asked(self, times: int) -> None:
        async def probe() -> bool:
            return len(self.requests) == times

        await wait_until(probe, within_s=5, what=f"{times} fetches")


@pytest.fixture
async def gates(connect: Connect) -> Gates:
    return Gates(await connect(ROLE))


async def test_keys_are_fetched_once_and_kept(gates: Gates) -> None:
    issuer = Issuer(jwk("a"), jwk("b"))
    keys = issuer.keys(gates)
    found = await keys.find("a")
    assert found is not None
    assert found.public_numbers() == private_key("a").public_key().public_numbers()
    assert await keys.find("b") is not None
    issuer.now += FRESH_S - 1
    assert await keys.find("a") is found
    (request,) = issuer.requests
    assert (str(request.url), request.headers["accept-encoding"]) == ("https://issuer.test/keys", "identity")


async def test_an_unknown_id_asks_again_at_most_every_half_minute(gates: Gates) -> None:
    issuer = Issuer(jwk("a"))
    keys = issuer.keys(gates)
    await keys.find("a")
    issuer.publish(jwk("b"))
    issuer.now += ANEW_S - 1
    for _ in range(3):
        assert await keys.find("b") is None
    assert len(issuer.requests) == 1
    issuer.now += 1
    assert await keys.find("b") is not None, "the rotation is seen"
    assert await keys.find("a") is None, "a withdrawn key is gone with it"
    assert len(issuer.requests) == 2


async def test_all_who_wait_share_one_fetch(gates: Gates) -> None:
    issuer = Issuer(jwk("a"))
    issuer.held.clear()
    keys = issuer.keys(gates)
    waiting = [asyncio.create_task(keys.find(kid)) for kid in ("a", "a", "b", "a")]
    await issuer.asked(1)
    waiting[0].cancel()  # and takes nothing from the others
    issuer.held.set()
    await asyncio.wait(waiting)
    assert waiting[0].cancelled()
    assert [task.result() is not None for task in waiting[1:]] == [True, False, True]
    assert len(issuer.requests) == 1


FAULTS: list[httpx.Response | Exception | bytes] = [
    httpx.ConnectError("refused"),
    httpx.ReadTimeout("late"),
    httpx.Response(500),
    httpx.Response(301, headers={"location": "https://elsewhere.test/"}),
    b"",
    b"<html>",
    b"\xff",
    b"[]",
    b"null",
    b'{"keys": {}}',
    b'{"keys": []}',
    b"[" * 100_000,
    b" " * (BODY_BYTES_MAX + 1),
]


@pytest.mark.parametrize("fault", FAULTS, ids=range(len(FAULTS)))
async def test_keys_serve_on_while_the_issuer_is_away(gates: Gates, fault: httpx.Response | Exception | bytes) -> None:
    issuer = Issuer(jwk("a"))
    keys = issuer.keys(gates)
    before = await keys.find("a")
    issuer.answer = fault
    issuer.now += FRESH_S
    with structlog.testing.capture_logs() as logs:
        assert await keys.find("b") is None
    assert await keys.find("a") is before
    assert [line["kept"] for line in logs] == [1]
    assert len(issuer.requests) == 2
    assert await keys.find("b") is None
    assert len(issuer.requests) == 2, "nobody is asked again at once"


async def test_without_ever_a_key_nobody_can_be_judged_yet(gates: Gates) -> None:
    issuer = Issuer(jwk("a"))
    good, issuer.answer = issuer.answer, httpx.ConnectError("refused")
    keys = issuer.keys(gates)
    for _ in range(2):
        with pytest.raises(Retryable, match="keys_unavailable"):
            await keys.find("a")
    assert len(issuer.requests) == 1
    issuer.answer = good
    issuer.now += FIRST_ANEW_S
    assert await keys.find("a") is not None


async def test_old_keys_are_asked_for_again_behind_the_requests_back(gates: Gates) -> None:
    issuer = Issuer(jwk("a"))
    keys = issuer.keys(gates)
    await keys.find("a")
    issuer.publish(jwk("b"))
    issuer.held.clear()
    issuer.now += FRESH_S
    assert await keys.find("a") is not None, "nobody waits for it"
    await issuer.asked(2)
    issuer.held.set()

    async def gone() -> bool:
        return await keys.find("a") is None

    await wait_until(gone, within_s=5, what="the withdrawn key to go")
    assert len(issuer.requests) == 2


async def test_a_closed_gate_is_an_issuer_that_is_away(gates: Gates) -> None:
    issuer = Issuer(jwk("a"))
    await gates.refuse("jwks", "paused", "ann")
    with pytest.raises(Retryable, match="keys_unavailable"):
        await issuer.keys(gates).find("a")
    assert issuer.requests == []


async def test_a_fetch_under_way_ends_with_the_process(gates: Gates) -> None:
    issuer = Issuer(jwk("a"))
    issuer.held.clear()
    keys = issuer.keys(gates)
    waiting = asyncio.create_task(keys.find("a"))
    await issuer.asked(1)
    await keys.aclose()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await keys.aclose()


def test_only_rsa_signing_keys_are_taken() -> None:
    elliptic = json.loads(ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key()))
    private = json.loads(RSAAlgorithm.to_jwk(private_key()))
    document = {
        "keys": [
            jwk("good"),
            jwk("bare", use=None, alg=None),
            jwk("good", name="second of this id"),
            jwk("encrypts", use="enc"),
            jwk("hashes", alg="RS512"),
            jwk("short", bits=1024),
            elliptic | {"kid": "elliptic"},
            private | {"kid": "private"},
            {"kty": "oct", "kid": "shared", "k": "c2VjcmV0", "alg": "HS256"},
            {"kty": "RSA", "kid": "empty"},
            {"kty": "RSA", "kid": "odd", "n": 7, "e": []},
            {"kty": "RSA", "kid": "broken", "n": "!", "e": "AQAB"},
            {name: value for name, value in jwk("nameless").items() if name != "kid"},
            jwk("numbered") | {"kid": 7},
            "text",
            None,
        ]
    }
    found = usable(document)
    assert set(found) == {"good", "bare"}
    assert found["good"].public_numbers() == private_key("good").public_key().public_numbers()


@pytest.mark.parametrize("document", [None, [], "keys", 7, {}, {"keys": None}, {"keys": "abc"}])
def test_a_document_of_another_shape_has_no_keys(document: object) -> None:
    assert usable(document) == {}
