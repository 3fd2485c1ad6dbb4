"""One world: its doors side by side, its clock shared, served as often as needed."""

import httpx
import pytest

from services.sandbox.faults import Act, Fault
from services.sandbox.log import Vendor
from services.sandbox.stripe.api import DEFAULT_KEY
from services.sandbox.world import Urls, World
from tests.sandbox.clients import plain
from tests.sandbox.github.conftest import HEADERS
from tests.waiting import wait_until


async def test_the_doors_stand_side_by_side(world: World, urls: Urls) -> None:
    async with plain() as http:
        assert (await http.get(f"{urls.github}/users/octocat", headers=HEADERS)).status_code == 200
        key = {"authorization": f"Bearer {DEFAULT_KEY}"}
        assert (await http.get(f"{urls.stripe}/v1/events", headers=key)).status_code == 200
        assert (await http.get(f"{urls.clerk}/.well-known/jwks.json")).status_code == 200
        assert (await http.get(f"{urls.control}/counts")).json()["requests"] == 3
    assert [entry.vendor for entry in world.log.entries()] == [Vendor.GITHUB, Vendor.STRIPE, Vendor.CLERK]
    assert [entry.path for entry in world.log.entries()] == ["/users/octocat", "/v1/events", "/.well-known/jwks.json"]


async def test_both_vendors_live_by_one_clock(world: World, urls: Urls) -> None:
    world.clock.advance(10 * 365 * 24 * 3600)
    async with plain() as http:
        dates = [
            (await http.get(f"{urls.github}/users/octocat", headers=HEADERS)).headers["date"],
            (await http.get(f"{urls.stripe}/v1/events")).headers["date"],
        ]
    assert all(str(world.clock.now().year) in date for date in dates)


async def test_a_world_is_served_again_with_what_it_knows(world: World) -> None:
    async with world.serve():
        world.github.add_account("hubot")
    world.faults.add(Fault(Vendor.GITHUB, Act.HANG))
    async with (
        world.serve() as urls,
        plain(headers=HEADERS) as github,
    ):
        with pytest.raises(httpx.ReadTimeout):
            await github.get(f"{urls.github}/users/hubot", timeout=httpx.Timeout(30, read=0.1))
        assert (await github.get(f"{urls.github}/users/hubot")).status_code == 200
        await wait_until(lambda: world.log.entries()[0].ended_at, within_s=5, what="the hang ends")


async def test_worlds_know_nothing_of_each_other(world: World) -> None:
    other = World()
    async with world.serve() as here, other.serve() as there:
        assert here.base != there.base
        world.github.add_account("hubot")
        async with plain(headers=HEADERS) as github:
            assert (await github.get(f"{here.github}/users/hubot")).status_code == 200
            assert (await github.get(f"{there.github}/users/hubot")).status_code == 404
