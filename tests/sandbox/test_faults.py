"""The script: who is hit, when, how often; and that an effect before or after is what it says."""

import asyncio
import re
import time
from typing import Any

import httpx
import pytest

from services.sandbox.faults import Act, Fault, Instant, InstantStyle, Moment, Reply
from services.sandbox.github.world import DEFAULT_REPOSITORY
from services.sandbox.log import Ending, Vendor
from services.sandbox.world import Urls, World
from tests.sandbox.clients import plain
from tests.sandbox.github.conftest import HEADERS
from tests.waiting import wait_until

INVITE = f"/github/repos/{DEFAULT_REPOSITORY}/collaborators"
TEAPOT = Reply(418, {"X-Tea": "green"}, "short and stout")


def fault(act: Act = Act.ANSWER, **conditions: Any) -> Fault:
    return Fault(Vendor.GITHUB, act, reply=conditions.pop("reply", TEAPOT), **conditions)


@pytest.fixture
async def http(urls: Urls, world: World) -> Any:
    world.github.add_account("hubot")
    async with plain(base_url=urls.base, headers=HEADERS, timeout=30) as client:
        yield client


async def put(http: httpx.AsyncClient, login: str = "octocat") -> httpx.Response:
    return await http.put(f"{INVITE}/{login}", json={"permission": "pull"})


def invited(world: World) -> set[str]:
    return {one.invitee.login for one in world.github.repository(DEFAULT_REPOSITORY).invitations.values()}


# ------------------------------------------------------------------------------------------------------------- whom


@pytest.mark.parametrize(
    ("conditions", "hit"),
    [
        ({}, {"put", "get", "other"}),
        ({"method": "put"}, {"put", "other"}),
        ({"login": "OCTOCAT"}, {"put", "get"}),
        ({"path": r"^/users/"}, {"get"}),
        ({"path": r"collaborators/hub"}, {"other"}),
        ({"contains": '"permission"'}, {"put", "other"}),
        ({"contains": "hubot"}, {"other"}),
        ({"method": "PUT", "login": "octocat"}, {"put"}),
        ({"login": "octo"}, set()),
    ],
)
async def test_every_condition_must_hold(
    world: World, http: httpx.AsyncClient, conditions: dict[str, Any], hit: set[str]
) -> None:
    world.faults.add(fault(times=None, **conditions))
    answers = {
        "put": await put(http),
        "get": await http.get("/github/users/octocat"),
        "other": await put(http, "hubot"),
    }
    assert {name for name, response in answers.items() if response.status_code == 418} == hit


async def test_the_other_vendor_is_not_hit(world: World, http: httpx.AsyncClient) -> None:
    world.faults.add(Fault(Vendor.STRIPE, Act.ANSWER, reply=TEAPOT))
    assert (await put(http)).status_code == 201


async def test_once_is_the_default_and_skip_lets_some_through(world: World, http: httpx.AsyncClient) -> None:
    world.faults.add(fault(skip=2, times=2))
    assert [(await put(http)).status_code for _ in range(6)] == [201, 201, 418, 418, 201, 201]
    world.faults.add(fault())
    assert [(await put(http)).status_code for _ in range(2)] == [418, 201]


async def test_until_cleared(world: World, http: httpx.AsyncClient) -> None:
    kept = world.faults.add(fault(times=None))
    for _ in range(3):
        assert (await put(http)).status_code == 418
    assert [(one.id, one.fired) for one in world.faults.listing()] == [(kept, 3)]
    assert world.faults.clear(kept) == 1
    assert world.faults.clear(kept) == 0
    assert (await put(http)).status_code == 201


async def test_lines_are_tried_in_the_order_they_were_added(world: World, http: httpx.AsyncClient) -> None:
    first = world.faults.add(fault(reply=Reply(500)))
    second = world.faults.add(fault(reply=Reply(503)))
    assert [(await put(http)).status_code for _ in range(3)] == [500, 503, 201]
    assert [entry.fault for entry in world.log.entries()] == [first, second, None]
    assert world.faults.clear() == 2


# -------------------------------------------------------------------------------------------------- what, and when


@pytest.mark.parametrize(("at", "did"), [(Moment.BEFORE, set()), (Moment.AFTER, {"octocat"})])
async def test_an_answer_instead_of_the_truth(world: World, http: httpx.AsyncClient, at: Moment, did: set[str]) -> None:
    world.faults.add(fault(at=at))
    response = await put(http)
    assert (response.status_code, response.text, response.headers["x-tea"]) == (418, "short and stout", "green")
    assert invited(world) == did
    assert world.log.entries()[0].effect == ("invitation_created" if did else None)


@pytest.mark.parametrize(("at", "did"), [(Moment.BEFORE, set()), (Moment.AFTER, {"octocat"})])
async def test_a_drop(
    world: World, http: httpx.AsyncClient, at: Moment, did: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    world.faults.add(fault(Act.DROP, at=at))
    with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
        await put(http)
    assert invited(world) == did
    entry = world.log.entries()[0]
    assert (entry.ending, entry.status) == (Ending.DROPPED, None)
    assert caplog.records == [], "the server was not asked to finish what was dropped"


async def test_a_cut_sends_half(world: World, http: httpx.AsyncClient) -> None:
    world.faults.add(fault(Act.CUT))
    with pytest.raises(httpx.RemoteProtocolError) as cut:
        await put(http)
    received, expected = map(int, re.findall(r"\d+", str(cut.value)))
    assert received == expected // 2 > 0
    assert invited(world) == {"octocat"}
    entry = world.log.entries()[0]
    assert (entry.ending, entry.status) == (Ending.CUT, 201)


@pytest.mark.parametrize(("at", "did"), [(Moment.BEFORE, set()), (Moment.AFTER, {"octocat"})])
async def test_a_hang_lasts_until_the_caller_leaves(
    world: World, http: httpx.AsyncClient, at: Moment, did: set[str]
) -> None:
    world.faults.add(fault(Act.HANG, at=at))
    with pytest.raises(httpx.ReadTimeout):
        await http.put(f"{INVITE}/octocat", json={}, timeout=httpx.Timeout(30, read=0.1))
    await wait_until(
        lambda: world.log.entries()[0].ending is Ending.UNHEARD, within_s=5, what="the sandbox notices who left"
    )
    assert invited(world) == did


async def test_a_hang_ends_when_it_is_cleared(world: World, http: httpx.AsyncClient) -> None:
    hang = world.faults.add(fault(Act.HANG))
    asked = asyncio.ensure_future(put(http))
    await wait_until(world.log.entries, within_s=5, what="the request arrives")
    assert world.log.entries()[0].ending is Ending.PENDING
    world.faults.clear(hang)
    with pytest.raises(httpx.RemoteProtocolError):
        await asked
    assert world.log.entries()[0].ending is Ending.DROPPED


async def test_a_late_answer_is_the_truth(world: World, http: httpx.AsyncClient) -> None:
    world.faults.add(fault(Act.LATE, delay_ms=80))
    response = await put(http)
    assert response.status_code == 201
    entry = world.log.entries()[0]
    assert entry.ended_at is not None
    assert (entry.ended_at - entry.arrived_at).total_seconds() >= 0.07


async def test_whoever_leaves_early_is_served_all_the_same(world: World, http: httpx.AsyncClient) -> None:
    world.faults.add(fault(Act.LATE, delay_ms=500))
    with pytest.raises(httpx.ReadTimeout):
        await http.put(f"{INVITE}/octocat", json={}, timeout=httpx.Timeout(30, read=0.05))
    await wait_until(lambda: invited(world), within_s=5, what="the effect happens anyway")
    await wait_until(
        lambda: world.log.entries()[0].ending is Ending.UNHEARD, within_s=5, what="nobody was there to hear"
    )


async def test_a_stop_lets_go_of_everybody(world: World) -> None:
    world.faults.add(fault(Act.HANG, times=None))
    world.faults.add(Fault(Vendor.STRIPE, Act.LATE, delay_ms=60_000, times=None))
    async with plain(headers=HEADERS, timeout=30) as client:
        async with world.serve() as urls:
            key = {"authorization": "Bearer sk_test_rowclaim_sandbox"}
            asked = [
                asyncio.ensure_future(client.get(f"{urls.github}/users/octocat")),
                asyncio.ensure_future(client.get(f"{urls.stripe}/v1/events", headers=key)),
            ]
            await wait_until(lambda: len(world.log.entries()) == 2, within_s=5, what="both wait")
            began = time.monotonic()
        assert time.monotonic() - began < 5
        hung, late = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(hung, httpx.RemoteProtocolError)
    assert isinstance(late, httpx.Response)


# ------------------------------------------------------------------------------------------------------------ parts


async def test_a_reply_takes_what_it_does_not_say_from_the_truth(world: World, http: httpx.AsyncClient) -> None:
    world.faults.add(fault(at=Moment.AFTER, reply=Reply(body="{")))
    world.faults.add(fault(at=Moment.AFTER, reply=Reply(status=202)))
    world.faults.add(fault(reply=Reply()))
    garbled, renamed, nothing = [await put(http) for _ in range(3)]
    assert (garbled.status_code, garbled.text) == (201, "{")
    assert garbled.headers["content-type"] == "application/json; charset=utf-8"
    assert (renamed.status_code, renamed.json()["invitee"]["login"]) == (202, "octocat")
    assert (nothing.status_code, nothing.content) == (500, b"")


def test_instants_are_the_vendors(world: World) -> None:
    world.clock.advance(1_000_000)
    epoch = int(Instant(InstantStyle.EPOCH_S, 60).text(world.clock))
    assert epoch == pytest.approx(time.time() + 1_000_060, abs=10)
    assert Instant(InstantStyle.HTTP_DATE, 60).text(world.clock).endswith(" GMT")
