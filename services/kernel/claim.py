"""What every claim shares; the statement itself is written out in each slice, where it can be grepped and EXPLAINed.

    with next as materialized (
      select id, claim_token from t where <due> order by <age> limit 1 for no key update skip locked)
    update t set state = ..., edge = 'claim', claim_token = t.claim_token + 1, outcome_token = null, ...
    from next where t.id = next.id and t.claim_token = next.claim_token
    returning t.id, t.claim_token, ...

- ``skip locked`` in a materialized CTE with its own ``limit``: two workers take two rows, a plan can never take more.
- ``for no key update``: ``for update`` silently passes over a row to which somebody is just attaching a child.
- The update compares the token, not the state: with the state, statistics taken while nothing was pending make the
  planner drive the update from the pending index (70 times slower, measured).
- Its own autocommit statement: a row skipped over in a longer transaction stays locked until that one ends.

``tests/conformance`` is the law for all of them.
"""

import os
import secrets
import socket
from datetime import timedelta

WORKER: str = f"{socket.gethostname()[:40]}:{os.getpid()}:{secrets.token_hex(4)}"
"""Who claims: unique per process start, so that a restarted process never mistakes another's row for its own."""

LEASE_RENEWALS = 3
"""A lease is renewed this many times in its life: two renewals may be late before anybody else may take the row."""


def renewal_interval_s(lease: timedelta) -> float:
    """Seconds between two renewals of a lease."""
    return lease.total_seconds() / LEASE_RENEWALS
