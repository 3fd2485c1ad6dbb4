"""The toy keeps the law; what it shows is that the law can be kept, and (by mutation) that it can be broken."""

from datetime import timedelta
from pathlib import Path

from services.kernel.claim import WORKER
from services.kernel.db import Tx
from tests.conformance.claims import Bench, Claims
from tests.conformance.kind import Held, Kind
from tests.conformance.toy import store
from tests.conformance.toy.machine import LETTERS

LEASE = timedelta(seconds=60)


async def claim(tx: Tx, limit: int) -> list[Held]:
    return [Held((letter.id,), letter.claim_token) for letter in await store.claim(tx, limit, WORKER, LEASE)]


async def post(tx: Tx, held: Held) -> bool:
    return await store.post(tx, _id(held), held.token, "0.85")


async def refuse(tx: Tx, held: Held) -> bool:
    return await store.refuse(tx, _id(held), held.token, "no such street")


async def put_back(tx: Tx, held: Held) -> bool:
    return await store.put_back(tx, _id(held), held.token)


async def renew(tx: Tx, held: Held) -> bool:
    return await store.renew(tx, _id(held), held.token, LEASE)


async def reap(tx: Tx) -> int:
    return len(await store.reap(tx, 100))


def _id(held: Held) -> int:
    (letter_id,) = held.key
    assert isinstance(letter_id, int)
    return letter_id


TOY = Kind(
    machine=LETTERS,
    role="rowclaim_operator",
    key=("id",),
    seed="""
insert into letters (reference, address, state, edge, next_attempt_at)
select 'letter ' || (select count(*) from letters) || '.' || n, 'street ' || n, 'pending', 'write',
       rowclaim_now() - interval '1 day' + n * interval '1 s'
from generate_series($1::int, 1, -1) n returning id""",
    ages="next_attempt_at, id",
    claim=claim,
    claim_query=store.CLAIM,
    claim_arguments=(1, WORKER, LEASE),
    claim_index="letters_pending",
    lease=LEASE,
    outcomes={"post": post, "refuse": refuse, "put_back": put_back},
    batch=True,
    renew=renew,
    reap=reap,
    columns={
        "pending": "lease_until = null, stamp = null",
        "in_progress": "lease_until = rowclaim_now() + interval '60 s', stamp = null",
        "posted": "lease_until = null, stamp = '0.85'",
        "refused": "lease_until = null, stamp = null, refusal = 'no such street'",
    },
    withheld={"not due yet": "next_attempt_at = rowclaim_now() + interval '1 minute'"},
    schema=(Path(__file__).parent / "toy" / "schema.sql").read_text(),
)


class TestLetters(Claims):
    kind = TOY

    async def test_a_reference_is_written_once(self, bench: Bench) -> None:
        assert [await store.write(bench.database, "a", "street 1") for _ in range(2)] == [True, False]
        assert await bench.count("pending") == 1
