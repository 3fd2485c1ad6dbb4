"""Every statement of the slice: the inbox's under the door's own bounds, and what operators do with deliveries."""

from collections.abc import Sequence

import asyncpg

from services.kernel import inbox
from services.kernel.batch import wait_briefly_for_locks
from services.kernel.db import Database
from services.kernel.inbox import Arrival, Arrived


async def arrive_together(db: Database, arrivals: Sequence[Arrival]) -> dict[tuple[str, str], Arrived]:
    """Store a batch in one commit, waiting for no lock longer than everybody behind it should; the answers by key."""
    async with db.transaction() as tx:
        await wait_briefly_for_locks(tx)
        return await inbox.arrive(tx, arrivals)


async def arrive_alone(db: Database, arrival: Arrival) -> Arrived:
    """Store one event in a commit of its own. A week without a partition is repaired on the way: nobody else would
    do it where only the door runs, and every webhook would be refused until somebody looked."""
    try:
        arrived = await inbox.arrive(db, [arrival])
    except asyncpg.CheckViolationError as error:
        if error.constraint_name is not None:  # one of the tables' own: not about a missing partition
            raise
        await inbox.make_partitions(db)
        arrived = await inbox.arrive(db, [arrival])
    return arrived[arrival.source, arrival.external_id]
