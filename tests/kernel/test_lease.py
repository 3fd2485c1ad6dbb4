"""The Valkey lease: one holder, a growing fence, closed when in doubt; over a real server, frozen and killed."""

import asyncio
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from redis.asyncio import Redis

from services.kernel import doors
from services.kernel import lease as lease_module
from services.kernel.doors import Door
from services.kernel.lease import ANSWER_S, Held, Lease, Leased, Unavailable, connect_valkey
from services.sandbox.embedded.valkey import Valkey
from tests.waiting import wait_until

MINUTE = timedelta(minutes=1)
SHORT = timedelta(milliseconds=200)


@pytest.fixture
async def valkey(valkey_server: Valkey) -> AsyncIterator[Redis]:
    client = connect_valkey(valkey_server.url)
    yield client
    await client.aclose()


@pytest.fixture
def name() -> str:
    return f"job-{secrets.token_hex(4)}"


@contextmanager
def frozen(server: Valkey) -> Iterator[None]:
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.process.pid, signal.SIGCONT)


async def taken(lease: Lease) -> Leased:
    outcome = await lease.acquire()
    assert isinstance(outcome, Leased)
    return outcome


async def test_one_holds_and_the_other_is_told_so(valkey: Redis, name: str) -> None:
    ours, theirs = Lease(valkey, name, MINUTE), Lease(valkey, name, MINUTE)
    await taken(ours)
    assert await theirs.acquire() == Held()
    assert not await theirs.renew()
    assert not await theirs.release()
    assert await ours.renew()
    assert await ours.release()
    assert not await ours.release()
    await taken(theirs)


async def test_leases_of_other_names_are_strangers(valkey: Redis, name: str) -> None:
    await taken(Lease(valkey, name, MINUTE))
    await taken(Lease(valkey, f"{name}-other", MINUTE))


async def test_of_fifty_racers_one_wins(valkey_server: Valkey, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The bound is not what is raced for: fifty connections at once take a loaded machine longer than a second.
    monkeypatch.setattr(lease_module, "ANSWER_S", 60.0)
    valkey = connect_valkey(valkey_server.url)
    outcomes = await asyncio.gather(*(Lease(valkey, name, MINUTE).acquire() for _ in range(50)))
    await valkey.aclose()
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Held"] * 49 + ["Leased"]


async def test_a_lease_that_ran_out_is_the_next_ones_under_a_greater_fence(valkey: Redis, name: str) -> None:
    dead, heir = Lease(valkey, name, SHORT), Lease(valkey, name, MINUTE)
    first = await taken(dead)

    async def acquire() -> Leased | None:
        outcome = await heir.acquire()
        return outcome if isinstance(outcome, Leased) else None

    second = await wait_until(acquire, within_s=10, what="the dead holder's lease runs out")
    assert second.fence > first.fence
    assert second.token != first.token
    assert not await dead.renew()
    assert not await dead.release()
    assert await heir.renew()


async def test_a_renewal_holds_for_another_full_time(valkey: Redis, name: str) -> None:
    lease = Lease(valkey, name, MINUTE)
    await taken(lease)
    key = f"{{rowclaim:{name}}}:lease"
    await valkey.pexpire(key, 1_000)
    assert await lease.renew()
    assert await valkey.pttl(key) > 50_000


async def test_a_lease_always_runs_out(valkey: Redis, name: str) -> None:
    """One without an end would strand the job with its holder's crash."""
    lease = Lease(valkey, name, MINUTE)
    await taken(lease)
    await taken(lease)
    assert 0 < await valkey.pttl(f"{{rowclaim:{name}}}:lease") <= 60_000


async def test_a_frozen_server_is_no_lease_within_the_bound(valkey_server: Valkey, valkey: Redis, name: str) -> None:
    lease = Lease(valkey, name, MINUTE)
    await taken(lease)
    with frozen(valkey_server):
        for ask in (Lease(valkey, name, MINUTE).acquire, lease.renew):
            begun = time.monotonic()
            assert await ask() in (Unavailable(), False)
            assert time.monotonic() - begun < 3 * ANSWER_S  # with the driver's own retries: fifteen seconds
    assert await lease.renew()  # whatever of it landed later, the other's acquire took nothing from the holder
    with frozen(valkey_server):
        assert not await lease.release()


async def test_an_acquire_that_timed_out_and_landed_later_is_found_to_be_ours(
    valkey_server: Valkey, valkey: Redis, name: str
) -> None:
    ours, theirs = Lease(valkey, name, MINUTE), Lease(valkey, name, MINUTE)
    await valkey.ping()  # a connection is open: the request reaches the frozen server's socket
    with frozen(valkey_server):
        assert await ours.acquire() == Unavailable()

    async def landed() -> bool:
        return bool(await valkey.exists(f"{{rowclaim:{name}}}:lease"))

    await wait_until(landed, within_s=10, what="the acquire that had timed out")
    assert await theirs.acquire() == Held()
    recovered = await taken(ours)
    assert await ours.renew()
    assert recovered.fence > 1  # the one that landed unseen had the first fence


async def test_a_server_that_is_gone_is_no_lease_and_one_that_came_back_is_taken_again(
    tmp_path: Path, name: str
) -> None:
    server = Valkey(tmp_path / "valkey", log_path=tmp_path / "valkey.log")
    await server.start()
    client = connect_valkey(server.url)
    try:
        lease = Lease(client, name, MINUTE)
        await taken(lease)
        server.kill()
        assert await lease.acquire() == Unavailable()
        assert not await lease.renew()
        assert not await lease.release()
        await server.start()
        assert not await lease.renew()  # a server that forgot is a lease lost
        await taken(lease)
    finally:
        await client.aclose()
        await server.stop()


async def test_nobody_listening_is_no_lease(name: str) -> None:
    client = connect_valkey("redis://127.0.0.1:1/0")
    assert await Lease(client, name, MINUTE).acquire() == Unavailable()
    await client.aclose()


async def test_a_connection_that_was_cancelled_midway_answers_nobody_elses_question(
    valkey_server: Valkey, valkey: Redis, name: str
) -> None:
    lease = Lease(valkey, name, MINUTE)
    await taken(lease)
    with frozen(valkey_server):
        asked = asyncio.create_task(lease.renew())
        await asyncio.sleep(0.05)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    assert await valkey.get(f"{{rowclaim:{name}}}:fence") == b"1"
    assert await lease.renew()


async def test_every_request_crosses_the_door(valkey: Redis, name: str) -> None:
    crossed: list[tuple[Door, str, str]] = []
    lease = Lease(valkey, name, MINUTE)
    before = doors.watch(lambda door, what, moment: crossed.append((door, what.split(" ")[0], moment)))
    try:
        await lease.acquire()
        await lease.renew()
        await lease.release()
    finally:
        doors.watch(before)
    assert crossed == [
        (Door.VALKEY, what, moment) for what in ("acquire", "renew", "release") for moment in ("before", "after")
    ]


async def test_the_driver_never_tries_again_by_itself(valkey: Redis) -> None:
    """Said out loud: how often it does so unasked differs between its releases, and between its constructors."""
    retry = valkey.get_retry()
    assert retry is not None
    assert retry._retries == 0
