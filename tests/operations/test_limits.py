"""How often one may call: counted in Valkey for all, in memory while it is away, and never at a price for long."""

import asyncio
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import structlog
from prometheus_client import REGISTRY
from redis.asyncio import Redis

from services.kernel.errors import Refusal
from services.operations import limits
from services.operations.limits import ANSWER_S, RateLimits
from services.sandbox.embedded.valkey import Valkey

NOWHERE = "redis://127.0.0.1:1/0"
MakeLimits = Callable[..., RateLimits]


@pytest.fixture
async def make_limits(valkey_server: Valkey) -> AsyncIterator[MakeLimits]:
    """One more process's limits; the suite's Valkey unless told otherwise."""
    made: list[RateLimits] = []

    def make(per_minute: int = 2, url: str | None = valkey_server.url) -> RateLimits:
        made.append(RateLimits(per_minute, url))
        return made[-1]

    yield make
    for one in made:
        await one.aclose()


@pytest.fixture
def user() -> str:
    """Nobody else's: the server is the whole run's."""
    return f"user_{secrets.token_hex(8)}"


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"{name}_total", labels) or 0.0


async def taken(rates: RateLimits, who: str, times: int, kind: str = "user") -> list[bool]:
    """Which of so many requests were let through."""
    answers = await asyncio.gather(*(rates.count(kind, who) for _ in range(times)), return_exceptions=True)
    refused = [answer for answer in answers if answer is not None]
    assert {error.code.name for error in refused if isinstance(error, Refusal)} <= {"rate_limited"}
    assert all(isinstance(error, Refusal) and 0 <= (error.retry_after_s or -1) <= 60 for error in refused)
    return sorted((answer is None for answer in answers), reverse=True)


async def test_a_user_has_one_limit_in_all_processes(make_limits: MakeLimits, user: str) -> None:
    first, second = make_limits(3), make_limits(3)
    before = counted("rowclaim_http_rate_limited", kind="user")
    assert await taken(first, user, 2) == [True, True]
    assert await taken(second, user, 2) == [True, False]
    assert await taken(first, f"{user}_other", 1) == [True]
    assert await taken(first, user, 1, kind="address") == [True], "an address is counted for itself"
    assert counted("rowclaim_http_rate_limited", kind="user") - before == 1


async def test_what_is_kept_names_nobody_and_ends_by_itself(
    make_limits: MakeLimits, valkey_server: Valkey, user: str
) -> None:
    client = Redis.from_url(valkey_server.url, decode_responses=True)
    before = set(await client.keys(f"{limits.KEY_PREFIX}:*"))
    await make_limits().count("user", user)
    (key,) = set(await client.keys(f"{limits.KEY_PREFIX}:*")) - before
    assert user not in key
    assert 0 < await client.ttl(key) <= 60
    await client.aclose()


async def test_without_valkey_each_process_counts_for_itself(make_limits: MakeLimits, user: str) -> None:
    before = counted("rowclaim_rate_limit_in_memory")
    one, another = make_limits(2, None), make_limits(2, None)
    assert await taken(one, user, 3) == [True, True, False]
    assert await taken(another, user, 1) == [True]
    assert counted("rowclaim_rate_limit_in_memory") == before, "nothing is amiss"


async def test_a_valkey_that_is_gone_costs_the_shared_count_alone(make_limits: MakeLimits, user: str) -> None:
    before = counted("rowclaim_rate_limit_in_memory")
    rates = make_limits(3, NOWHERE)
    with structlog.testing.capture_logs() as logs:
        assert await taken(rates, user, 5) == [True, True, True, False, False]
    assert [line["event"] for line in logs] == ["rate_limits.in_memory"], "one line an outage"
    assert counted("rowclaim_rate_limit_in_memory") - before == 5


@pytest.mark.parametrize("said", [b":nonsense\r\n", b"$-5\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_what_speaks_another_language_is_a_valkey_that_is_away(
    make_limits: MakeLimits, user: str, said: bytes
) -> None:
    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1_000):
            writer.write(said)
        writer.close()

    server = await asyncio.start_server(answered, "127.0.0.1", 0)
    rates = make_limits(1, "redis://127.0.0.1:{1}/0".format(*server.sockets[0].getsockname()))
    assert await taken(rates, user, 2) == [True, False]
    await rates.aclose()
    server.close()
    await server.wait_closed()


async def test_a_frozen_valkey_delays_one_request_and_comes_back_by_itself(
    make_limits: MakeLimits, tmp_path: Path, user: str
) -> None:
    server = Valkey(tmp_path / "valkey", log_path=tmp_path / "valkey.log")
    await server.start()
    rates = make_limits(1_000, server.url)
    await rates.count("user", user)
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        with structlog.testing.capture_logs() as logs:
            began = time.monotonic()
            await rates.count("user", user)
            assert time.monotonic() - began >= ANSWER_S * 0.9, "it was asked"
            began = time.monotonic()
            for _ in range(100):
                await rates.count("user", user)
            assert time.monotonic() - began < ANSWER_S * 3, "and then was not"
            os.kill(server.process.pid, signal.SIGCONT)
            rates._ask_at = 0.0
            await rates.count("user", user)
        assert [line["event"] for line in logs] == ["rate_limits.in_memory", "rate_limits.shared_again"]
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
        await server.stop()


async def test_while_it_is_away_one_request_at_a_time_asks(
    make_limits: MakeLimits, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = make_limits(1_000, NOWHERE)
    asked = 0
    really = limits._counted

    async def counting(limiter: object, *rest: object) -> float | None:
        nonlocal asked
        asked += limiter is rates._shared
        return await really(limiter, *rest)

    monkeypatch.setattr(limits, "_counted", counting)
    await rates.count("user", user)
    assert asked == 1
    await asyncio.gather(*(rates.count("user", user) for _ in range(20)))
    assert asked == 1
    rates._ask_at = 0.0
    await asyncio.gather(*(rates.count("user", user) for _ in range(20)))
    assert asked == 2
