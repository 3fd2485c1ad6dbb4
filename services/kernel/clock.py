"""One clock: the database's.

SQL says ``rowclaim_now()`` (the transaction's instant) and, where a comment names the lock wait or the moment of a
release, ``rowclaim_clock()`` (the wall at this very moment; banned from WHERE, where it would be read row by row).
In production both are plain ``now()`` and ``clock_timestamp()``; tests replace both functions together, so that
prepared statements of live sessions see another time at once and production has no knob to turn.

Three things cannot ask the database: a signature's tolerance and a token's expiry are judged against the sender's
clock, before anything of the request may be believed, and so is a rate. ``wall_time()`` is theirs, and nobody else's.
"""

import time
from datetime import datetime
from typing import Final, LiteralString

from services.kernel.db import Tx

NOW: Final[LiteralString] = """select rowclaim_now()"""


async def database_now(tx: Tx) -> datetime:
    """The database's instant, with its zone."""
    now: datetime = await tx.value(NOW)
    return now


def wall_time() -> float:
    """Seconds since the epoch by this machine: for signatures, tokens and rates only."""
    return time.time()
