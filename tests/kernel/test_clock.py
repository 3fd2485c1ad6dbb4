"""One clock: the database's, with its zone, and one instant for a whole transaction."""

import time
from datetime import timedelta

from services.kernel.clock import database_now, wall_time
from tests.fixtures.database import Clock, Connect


async def test_the_databases_instant_has_its_zone_and_moves_with_the_database(connect: Connect, clock: Clock) -> None:
    database = await connect("rowclaim_reader")
    before = await database_now(database)
    assert before.utcoffset() == timedelta(0)
    await clock.shift(timedelta(days=400))
    assert timedelta(0) < await database_now(database) - before - timedelta(days=400) < timedelta(minutes=1)


async def test_a_transaction_has_one_instant_and_the_wall_goes_on(connect: Connect) -> None:
    database = await connect("rowclaim_reader")
    async with database.transaction() as tx:
        first = await database_now(tx)
        wall = await tx.value("select rowclaim_clock()")
        assert await database_now(tx) == first
        assert await tx.value("select rowclaim_clock()") > wall >= first


def test_the_wall_is_this_machines_in_seconds_since_the_epoch() -> None:
    before = time.time()
    assert before <= wall_time() <= time.time()
