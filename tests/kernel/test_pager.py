"""Pages: a row first; open once per key, counted when seen again."""

import asyncio
from typing import Any

import pytest

from services.kernel.errors import Retryable
from services.kernel.pager import SUMMARY_MAX, Pager, Severity
from tests.fixtures.database import Connect

ROLE = "rowclaim_fulfillment"


async def rows(owner: Any) -> list[Any]:
    columns = "dedup_key, seen, sent_at is not null, resolved_at is not null, resolve_sent_at is not null"
    return [tuple(row) for row in await owner.fetch(f"select {columns} from pages order by id")]


async def test_a_page_is_open_once_and_counted(connect: Connect, owner: Any) -> None:
    pager = Pager(await connect(ROLE))
    assert await pager.page("gate:github", Severity.ERROR, "github refuses our token") is True
    assert await pager.page("gate:github", Severity.ERROR, "github refuses our token") is False
    assert await pager.page("gate:stripe", Severity.ERROR, "stripe refuses our key") is True
    assert await rows(owner) == [("gate:github", 2, False, False, False), ("gate:stripe", 1, False, False, False)]


async def test_two_processes_open_one_page(connect: Connect, owner: Any) -> None:
    pager = Pager(await connect(ROLE))
    new = await asyncio.gather(*(pager.page("k", Severity.CRITICAL, "s") for _ in range(8)))
    assert sorted(new) == [False] * 7 + [True]
    assert await rows(owner) == [("k", 8, False, False, False)]


async def test_a_summary_carries_no_address(connect: Connect, owner: Any) -> None:
    pager = Pager(await connect(ROLE))
    await pager.page("k", Severity.ERROR, "mail to <ann.lee+1@example.com> refused for purchase 7 " + "x" * 2000)
    summary = await owner.fetchval("select summary from pages")
    assert summary.startswith("mail to <[address]> refused for purchase 7 xxx")
    assert len(summary) == SUMMARY_MAX


async def test_a_lost_database_is_told_to_the_caller(connect: Connect) -> None:
    database = await connect(ROLE)
    await database.close()
    with pytest.raises(Retryable, match="database_unavailable"):
        await Pager(database).page("k", Severity.ERROR, "s")


async def test_a_cause_that_is_gone_ends_the_page_and_its_return_opens_another(connect: Connect, owner: Any) -> None:
    pager = Pager(await connect(ROLE))
    await pager.page("k", Severity.ERROR, "first")
    assert await pager.resolve("k") is True
    assert await pager.resolve("k") is False
    assert await pager.page("k", Severity.ERROR, "second") is True
    assert await rows(owner) == [("k", 1, False, True, False), ("k", 1, False, False, False)]
