"""The law has teeth: a claim that breaks it is seen by the article that speaks of it."""

from collections.abc import AsyncIterator
from dataclasses import replace

import asyncpg
import pytest

from services.kernel.claim import WORKER
from services.kernel.db import Tx
from tests.conformance.claims import CLAIMERS, Bench, Claims
from tests.conformance.kind import Held, Kind
from tests.conformance.test_letters import LEASE, TOY
from tests.conformance.toy.store import ClaimedLetter
from tests.fixtures.database import Connect, Connection, DatabaseUrl

UPDATE = """
update letters l set state = 'in_progress', edge = 'claim', claim_token = l.claim_token + 1, outcome_token = null,
  attempt = l.attempt + 1, claimed_by = $2, claimed_at = rowclaim_now(), lease_until = rowclaim_now() + $3::interval
"""
RETURNING = " returning l.id, l.claim_token, l.reference, l.address, l.attempt"
DUE = (
    "select id from letters where state = 'pending' and next_attempt_at <= rowclaim_now() order by next_attempt_at, id"
)

LIMITED_SUBSELECT = f"{UPDATE} where id in ({DUE} limit $1 for no key update skip locked){RETURNING}"
NO_SKIP = f"{UPDATE} where id = any(array({DUE} limit $1 for no key update)){RETURNING}"
FOR_UPDATE = f"{UPDATE} where id = any(array({DUE} limit $1 for update skip locked)){RETURNING}"
NO_LOCK = f"{UPDATE} where id = any(array({DUE} limit $1)) and l.state = 'pending'{RETURNING}"
# Takes over an expired lease in place: state, edge and token stay, and the guard takes it for a renewal.
TAKE_OVER = """
update letters l set state = 'in_progress', edge = 'claim', outcome_token = null,
  claim_token = l.claim_token + case l.state when 'pending' then 1 else 0 end,
  claimed_by = $2, claimed_at = rowclaim_now(), lease_until = rowclaim_now() + $3::interval
where id = any(array(
  select id from letters where state = 'pending' or (state = 'in_progress' and lease_until < rowclaim_now())
  order by next_attempt_at, id limit $1 for no key update skip locked))
returning l.id, l.claim_token, l.reference, l.address, l.attempt"""


def claiming(query: str) -> Kind:
    """The toy, claiming by ``query``."""

    async def claim(tx: Tx, limit: int) -> list[Held]:
        rows = await tx.rows(ClaimedLetter, query, limit, WORKER, LEASE)
        return [Held((letter.id,), letter.claim_token) for letter in rows]

    return replace(TOY, claim=claim, claim_query=query)


@pytest.fixture
async def bench(connect: Connect, database_url: DatabaseUrl, owner: Connection) -> AsyncIterator[Bench]:
    await owner.execute(TOY.schema)
    client = await asyncpg.connect(database_url(TOY.role))
    yield Bench(TOY, await connect(TOY.role, size_max=CLAIMERS), client, owner)
    await client.close()


def broken(bench: Bench, query: str) -> Bench:
    return replace(bench, kind=claiming(query))


async def test_a_limit_under_a_join_is_seen(bench: Bench, connect: Connect, database_url: DatabaseUrl) -> None:
    with pytest.raises(AssertionError, match="assert 200 == 1"):
        await Claims().test_the_worst_plan_takes_no_more_than_the_limit(
            broken(bench, LIMITED_SUBSELECT), connect, database_url, 1
        )


async def test_waiting_for_anothers_row_is_seen(bench: Bench) -> None:
    with pytest.raises(TimeoutError):
        await Claims().test_two_claimers_take_two_rows(broken(bench, NO_SKIP))


async def test_claiming_without_a_lock_is_seen(bench: Bench) -> None:
    with pytest.raises(TimeoutError):
        await Claims().test_two_claimers_take_two_rows(broken(bench, NO_LOCK))


async def test_passing_over_a_row_with_an_open_child_is_seen(bench: Bench) -> None:
    with pytest.raises(AssertionError):
        await Claims().test_a_row_with_an_open_child_is_claimed(broken(bench, FOR_UPDATE))


async def test_a_claim_that_keeps_the_token_is_seen_though_the_guard_takes_it_for_a_renewal(bench: Bench) -> None:
    await Claims().test_a_claim_takes_a_new_token(broken(bench, TAKE_OVER))
    await bench.owner.execute("truncate letters")
    with pytest.raises(AssertionError):
        await Claims().test_a_held_row_is_never_claimed_again(broken(bench, TAKE_OVER))
