import asyncio

import pytest

from tests.waiting import wait_until


async def test_gives_back_the_first_truthy_result() -> None:
    answers = iter([None, 0, "", "here"])
    assert await wait_until(lambda: next(answers), within_s=5, what="an answer") == "here"


async def test_awaits_an_asynchronous_probe() -> None:
    async def probe() -> int:
        return 7

    assert await wait_until(probe, within_s=5, what="seven") == 7


async def test_names_what_never_came_and_what_was_seen_instead() -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.05 s: the row is done \(last seen: \[\]\)"):
        await wait_until(list, within_s=0.05, what="the row is done")


async def test_bounds_a_probe_that_hangs() -> None:
    with pytest.raises(AssertionError, match="an answer"):
        await asyncio.wait_for(wait_until(asyncio.Event().wait, within_s=0.05, what="an answer"), 5)


async def test_what_the_probe_raises_passes_through() -> None:
    def probe() -> bool:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        await wait_until(probe, within_s=5, what="nothing")
