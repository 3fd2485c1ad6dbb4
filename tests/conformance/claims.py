"""The law of claims, once, for every kind of row.

    class TestLetters(Claims):
        kind = LETTERS

Each law names what it guards against; the SQL mutation tests show that a statement which breaks one dies here.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import asyncpg
import pytest

from services.kernel import doors
from services.kernel.db import Database, Tx
from services.kernel.doors import Door, Moment
from services.kernel.transition import Fence
from tests.conformance.kind import Held, Key, Kind, Move, Write, fence_breaches, lawful
from tests.fixtures.database import Clock, Connect, Connection, DatabaseUrl

CLAIMERS = 16
_KINDER_PLANS = ("enable_hashjoin", "enable_mergejoin", "enable_hashagg", "enable_sort", "enable_material")
_AT_ONCE_S = 1.5
"""Below every role's lock_timeout (2 s): whoever waits for a lock is seen."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One kind on one fresh database: the slice's role, by the kernel and plain, and the superuser who arranges."""

    kind: Kind
    database: Database
    client: Connection
    owner: Connection

    async def seed(self, count: int) -> list[Key]:
        """``count`` claimable rows, in the order in which they must be claimed."""
        await self.owner.fetch(self.kind.seed, count)
        rows = await self.owner.fetch(
            f"select {', '.join(self.kind.key)} from {self.kind.table} order by {self.kind.ages}"
        )
        return [tuple(row) for row in rows]

    async def claim(self, limit: int = 1, tx: Tx | None = None) -> list[Held]:
        return list(await self.kind.claim(tx or self.database, limit))

    async def claim_one(self) -> Held:
        (held,) = await self.claim()
        return held

    async def row(self, key: Key) -> dict[str, Any]:
        found = await self.owner.fetchrow(f"select * from {self.kind.table} where {self.kind.at_key}", *key)
        assert found is not None
        return dict(found)

    async def state(self, key: Key) -> str:
        return str((await self.row(key))[self.kind.machine.column])

    async def count(self, state: str) -> int:
        column = self.kind.machine.column
        query = f"select count(*) from {self.kind.table} where {column} = $1"
        return int(await self.owner.fetchval(query, state))

    async def set(self, key: Key, fragment: str) -> None:
        await self.owner.execute(f"update {self.kind.table} set {fragment} where {self.kind.at_key}", *key)

    async def take(self, key: Key, *moves: Move) -> None:
        for move in moves:
            assert await self.owner.execute(lawful(move).query(self.kind), *key) == "UPDATE 1"

    async def bring(self, key: Key, state: str) -> None:
        """Walk the row to ``state`` along legal edges."""
        await self.take(key, *self.kind.path(await self.state(key), state))

    async def expire(self, key: Key) -> None:
        await self.set(key, "lease_until = rowclaim_now() - interval '1 ms'")

    async def plan_with(self, settings: Mapping[str, str], database_url: DatabaseUrl) -> None:
        """Let the planner of the role's next sessions in this database have these settings."""
        database = database_url().split("/")[3].partition("?")[0]
        for name, value in settings.items():
            await self.owner.execute(f"alter role {self.kind.role} in database {database} set {name} = {value}")

    async def lock(self, *keys: Key) -> None:
        for key in keys:
            await self.owner.fetchrow(f"select from {self.kind.table} where {self.kind.at_key} for update", *key)

    async def twins(self, key: Key) -> list[Key]:
        """Another row in the same state with the same token, for a key of one column."""
        row = await self.row(key)
        other = next(k for k in await self.seed(1) if k != key)
        for _ in range(row["claim_token"]):
            await self.bring(other, self.kind.claimed)
        return [other]

    async def neighbours(self, key: Key) -> list[Key]:
        """Copies of a row, in each of which one column of the key alone is another."""
        made = []
        for nth, (column, value) in enumerate(zip(self.kind.key, key, strict=True)):
            other = value + 1_000_000 if isinstance(value, int) else f"{value} too"
            copy = f"jsonb_build_object('{column}', '{other}')"
            await self.owner.execute("set session_replication_role = replica")
            await self.owner.execute(
                f"insert into {self.kind.table} overriding system value "
                f"select (jsonb_populate_record(t, {copy})).* from {self.kind.table} t where {self.kind.at_key}",
                *key,
            )
            await self.owner.execute("reset session_replication_role")
            made.append((*key[:nth], other, *key[nth + 1 :]))
        return made

    async def current(self, key: Key) -> Held:
        return Held(key, (await self.row(key))["claim_token"])


class Claims:
    """Subclass with ``kind`` set; every law is then held against it."""

    kind: ClassVar[Kind]

    @pytest.fixture
    async def bench(self, connect: Connect, database_url: DatabaseUrl, owner: Connection) -> AsyncIterator[Bench]:
        if self.kind.schema:
            await owner.execute(self.kind.schema)
        client = await asyncpg.connect(database_url(self.kind.role))
        yield Bench(self.kind, await connect(self.kind.role, size_max=CLAIMERS), client, owner)
        await client.close()

    # ------------------------------------------------------------------------------------------------------ the claim
    async def test_two_claimers_take_two_rows(self, bench: Bench) -> None:
        """The second neither waits for the first nor takes its row."""
        oldest, next_oldest = await bench.seed(2)
        async with bench.database.transaction() as tx:
            (first,) = await bench.claim(tx=tx)
            async with asyncio.timeout(_AT_ONCE_S):
                (second,) = await bench.claim()
                assert await bench.claim() == []
        assert (first.key, second.key) == (oldest, next_oldest)

    async def test_a_claim_rolled_back_is_no_claim(self, bench: Bench) -> None:
        (key,) = await bench.seed(1)

        async def claim_and_fail() -> None:
            async with bench.database.transaction() as tx:
                await bench.claim(tx=tx)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await claim_and_fail()
        assert await bench.state(key) == bench.kind.claimable
        assert (await bench.claim_one()).key == key

    async def test_many_claimers_take_each_row_once(self, bench: Bench) -> None:
        keys = await bench.seed(5 * CLAIMERS)

        async def drain() -> list[Key]:
            taken: list[Key] = []
            while claimed := await bench.claim():
                taken += [held.key for held in claimed]
            return taken

        taken = list(itertools.chain(*await asyncio.gather(*(drain() for _ in range(CLAIMERS)))))
        assert sorted(taken, key=str) == sorted(keys, key=str)

    @pytest.mark.parametrize("indexes", ["on", "off"])
    async def test_the_oldest_is_claimed_first(
        self, bench: Bench, connect: Connect, database_url: DatabaseUrl, indexes: str
    ) -> None:
        """Also where no index happens to give the order."""
        keys = await bench.seed(7)
        await bench.plan_with({"enable_indexscan": indexes, "enable_bitmapscan": indexes}, database_url)
        database = await connect(bench.kind.role)
        assert [held.key for _ in keys for held in await bench.claim(tx=database)] == keys
        assert await bench.claim() == []

    async def test_a_claim_takes_a_new_token(self, bench: Bench) -> None:
        (key,) = await bench.seed(1)
        before = await bench.row(key)
        held = await bench.claim_one()
        after = await bench.row(key)
        assert held == Held(key, before["claim_token"] + 1)
        assert after["claim_token"] == held.token
        assert after[bench.kind.machine.column] == bench.kind.claimed
        assert (after["edge"], after["outcome_token"]) == ("claim", None)

    async def test_a_row_in_any_other_state_is_not_claimed(self, bench: Bench) -> None:
        states = [state for state in bench.kind.machine.states if state != bench.kind.claimable]
        keys = await bench.seed(len(states) + 1)
        for key, state in zip(keys, states, strict=False):
            await bench.bring(key, state)
        assert [held.key for held in await bench.claim(limit=len(keys))] == keys[-1:]

    async def test_a_withheld_row_is_passed_over(self, bench: Bench) -> None:
        *withheld, free = await bench.seed(len(bench.kind.withheld) + 1)
        for key, fragment in zip(withheld, bench.kind.withheld.values(), strict=True):
            await bench.set(key, fragment)
        claimed = [held.key for _ in (*withheld, free) for held in await bench.claim()]
        assert claimed == [free]

    async def test_a_held_row_is_never_claimed_again(self, bench: Bench) -> None:
        """Not even when its lease is over: it would keep its token, which looks like a renewal and fences nobody."""
        (key,) = await bench.seed(1)
        await bench.claim_one()
        if bench.kind.lease is not None:
            await bench.expire(key)
        assert await bench.claim() == []

    async def test_a_row_with_an_open_child_is_claimed(self, bench: Bench) -> None:
        """``for update`` would pass over it in silence, for as long as somebody is attaching the child."""
        oldest, *_ = await bench.seed(2)
        names = ", ".join(bench.kind.key)
        values = ", ".join(f"${nth}" for nth, _ in enumerate(bench.kind.key, 1))
        await bench.owner.execute(
            f"create table children as select {names} from {bench.kind.table} with no data;"
            f"alter table children add foreign key ({names}) references {bench.kind.table} ({names})"
        )
        async with bench.owner.transaction():
            await bench.owner.execute(f"insert into children values ({values})", *oldest)
            async with asyncio.timeout(_AT_ONCE_S):
                assert (await bench.claim_one()).key == oldest

    @pytest.mark.parametrize("limit", [1, 3])
    async def test_the_worst_plan_takes_no_more_than_the_limit(
        self, bench: Bench, connect: Connect, database_url: DatabaseUrl, limit: int
    ) -> None:
        """A planner that believes the table has one row may run a LIMIT under a join once for each row."""
        await bench.seed(200)
        table = bench.kind.table
        # In the order of age on disk too: the row that the outer scan stands on is then the one a re-run LIMIT finds.
        await bench.owner.execute(f"create index by_age on {table} ({bench.kind.ages})")
        await bench.owner.execute(f"cluster {table} using by_age")
        await bench.owner.execute("drop index by_age")
        shrunk = "update pg_class set reltuples = 1, relpages = 1 where oid = $1::text::regclass"
        await bench.owner.execute(shrunk, table)
        await bench.plan_with(dict.fromkeys(_KINDER_PLANS, "off"), database_url)
        hostile = await connect(bench.kind.role)
        assert await hostile.value("show enable_hashjoin") == "off"
        wanted = limit if bench.kind.batch else 1
        assert len(await bench.claim(limit, hostile)) == wanted
        assert await bench.count(bench.kind.claimed) == wanted

    async def test_a_claim_is_one_statement_of_its_own(self, bench: Bench) -> None:
        """A row passed over in a longer transaction would stay locked until that one ended."""
        await bench.seed(1)
        crossed: list[str] = []

        def note(door: Door, what: str, moment: Moment) -> None:
            assert door is Door.DATABASE
            if moment == "before":
                crossed.append(what)

        before = doors.watch(note)
        try:
            await bench.claim_one()
        finally:
            doors.watch(before)
        assert len(crossed) == 1
        assert crossed[0].split()[0] in ("with", "update")

    # -------------------------------------------------------------------------------------------------- the outcomes
    async def test_every_token_edge_has_a_function_under_test(self, bench: Bench) -> None:
        fenced = {edge.name for edge in bench.kind.machine.edges.values() if edge.fence is Fence.TOKEN}
        assert fenced == set(bench.kind.outcomes)

    async def test_an_outcome_wins_once(self, bench: Bench) -> None:
        keys = await bench.seed(len(bench.kind.outcomes))
        by_key = {held.key: held for key in keys for held in await bench.claim()}
        assert list(by_key) == keys
        for (name, outcome), held in zip(bench.kind.outcomes.items(), by_key.values(), strict=True):
            assert await outcome(bench.database, held)
            row = await bench.row(held.key)
            assert row[bench.kind.machine.column] == bench.kind.machine.edges[name].target
            assert (row["edge"], row["claim_token"], row["outcome_token"]) == (name, held.token, held.token)
            for again in bench.kind.outcomes.values():
                assert not await again(bench.database, held)
            assert await bench.row(held.key) == row

    async def test_two_outcomes_at_once_leave_one(self, bench: Bench) -> None:
        """The lease was lost and found again at the same instant: whoever comes second writes nothing."""
        for one, two in itertools.product(bench.kind.outcomes.values(), repeat=2):
            await bench.seed(1)
            held = await bench.claim_one()
            won = await asyncio.gather(one(bench.database, held), two(bench.database, held))
            assert sorted(won) == [False, True]
            await bench.owner.execute(f"truncate {bench.kind.table} cascade")

    async def test_a_stale_token_writes_nothing(self, bench: Bench) -> None:
        """A worker that slept through its lease settles nobody's row, although the state is the one it left."""
        (key,) = await bench.seed(1)
        stale = await bench.claim_one()
        await bench.take(key, *bench.kind.path(bench.kind.claimed, bench.kind.claimable))
        current = await bench.claim_one()
        assert current.token > stale.token
        row = await bench.row(key)
        for outcome in bench.kind.outcomes.values():
            assert not await outcome(bench.database, stale)
            assert not await outcome(bench.database, Held(key, current.token + 1))
        if bench.kind.renew is not None:
            assert not await bench.kind.renew(bench.database, stale)
        assert await bench.row(key) == row
        assert await next(iter(bench.kind.outcomes.values()))(bench.database, current)

    async def test_an_outcome_needs_a_held_row(self, bench: Bench) -> None:
        """With the right token but from any other state: nothing is written, nothing raised."""
        for state in bench.kind.machine.states:
            if state == bench.kind.claimed:
                continue
            await bench.owner.execute(f"truncate {bench.kind.table} cascade")
            (key,) = await bench.seed(1)
            await bench.claim_one()
            await bench.take(key, *bench.kind.path(bench.kind.claimed, state))
            row = await bench.row(key)
            for outcome in bench.kind.outcomes.values():
                assert not await outcome(bench.database, await bench.current(key))
            if bench.kind.renew is not None:
                assert not await bench.kind.renew(bench.database, await bench.current(key))
            assert await bench.row(key) == row

    async def test_a_write_touches_its_own_row_alone(self, bench: Bench) -> None:
        """Neighbours share the token, the state and all of the key but one column; somebody else holds their locks."""
        writes = dict(bench.kind.outcomes)
        if bench.kind.renew is not None:
            writes["renew"] = bench.kind.renew
        for name, write in writes.items():
            await bench.owner.execute(f"truncate {bench.kind.table} cascade")
            (key,) = await bench.seed(1)
            held = await bench.claim_one()
            before = {neighbour: await bench.row(neighbour) for neighbour in await self.neighbours(bench, key)}
            async with bench.owner.transaction(), asyncio.timeout(_AT_ONCE_S):
                await bench.lock(*before)
                assert await write(bench.database, held), name
            assert {neighbour: await bench.row(neighbour) for neighbour in before} == before, name

    async def test_a_claim_and_a_reaper_touch_what_they_found_alone(self, bench: Bench) -> None:
        (key,) = await bench.seed(1)
        locked = await self.neighbours(bench, key)
        async with bench.owner.transaction(), asyncio.timeout(_AT_ONCE_S):
            await bench.lock(*locked)
            assert (await bench.claim_one()).key == key
        if bench.kind.reap is None:
            assert bench.kind.lease is None
            return
        await bench.owner.execute(f"delete from {bench.kind.table} where not ({bench.kind.at_key})", *key)
        await bench.expire(key)
        locked = await self.neighbours(bench, key)
        async with bench.owner.transaction(), asyncio.timeout(_AT_ONCE_S):
            await bench.lock(*locked)
            assert await bench.kind.reap(bench.database) == 1
        assert {await bench.state(neighbour) for neighbour in locked} == {bench.kind.claimed}

    async def neighbours(self, bench: Bench, key: Key) -> list[Key]:
        """Of a row whose key is one column, the others are neighbours enough; they need unique columns of their own."""
        return await bench.neighbours(key) if len(bench.kind.key) > 1 else await bench.twins(key)

    # --------------------------------------------------------------------------------------------- leases and reapers
    async def test_a_lease_has_its_length(self, bench: Bench, clock: Clock) -> None:
        (key,) = await bench.seed(1)
        if bench.kind.lease is None:
            await bench.claim_one()
            assert (await bench.row(key)).get("lease_until") is None
            return
        await clock.shift(timedelta(days=1))
        held = await bench.claim_one()
        row = await bench.row(key)
        now = await bench.owner.fetchval("select rowclaim_now()")
        assert timedelta(0) <= now + bench.kind.lease - row["lease_until"] < timedelta(seconds=30)
        if bench.kind.renew is not None:
            await clock.shift(timedelta(hours=1))
            assert await bench.kind.renew(bench.database, held)
            renewed = await bench.row(key)
            assert renewed["lease_until"] - row["lease_until"] >= timedelta(hours=1)
            assert renewed["claim_token"] == held.token

    async def test_the_reaper_frees_only_what_is_over(self, bench: Bench) -> None:
        if bench.kind.reap is None:
            assert bench.kind.lease is None, "a lease that nobody reaps strands its rows"
            return
        put_back, first, second, held = await bench.seed(4)
        for _ in (put_back, first, second, held):
            await bench.claim_one()
        await bench.bring(put_back, bench.kind.claimable)
        before = {key: await bench.row(key) for key in (put_back, held)}
        assert await bench.kind.reap(bench.database) == 0
        for key in (second, first):
            await bench.expire(key)
        dead = [await bench.current(key) for key in (first, second)]
        assert await bench.kind.reap(bench.database) == 2
        for lost in dead:
            row = await bench.row(lost.key)
            assert row[bench.kind.machine.column] != bench.kind.claimed
            assert (row["claim_token"], row["outcome_token"]) == (lost.token + 1, None)
            for outcome in bench.kind.outcomes.values():
                assert not await outcome(bench.database, lost)
        assert {key: await bench.row(key) for key in before} == before
        assert await bench.kind.reap(bench.database) == 0

    async def test_the_reaper_passes_over_a_row_being_finished(self, bench: Bench) -> None:
        """Found expired, finished before the reaper could write: the outcome stands."""
        if bench.kind.reap is None:
            assert bench.kind.lease is None
            return
        (key,) = await bench.seed(1)
        held = await bench.claim_one()
        await bench.expire(key)
        name, outcome = next(iter(bench.kind.outcomes.items()))
        async with bench.database.transaction() as tx:
            assert await outcome(tx, held)
            async with asyncio.timeout(_AT_ONCE_S):
                assert await bench.kind.reap(bench.database) == 0
        assert await bench.kind.reap(bench.database) == 0
        assert await bench.state(key) == bench.kind.machine.edges[name].target

    async def test_a_row_renewed_in_time_is_not_reaped(self, bench: Bench) -> None:
        if bench.kind.renew is None or bench.kind.reap is None:
            assert bench.kind.lease is None, "a lease is renewed by whoever is still at work"
            return
        (key,) = await bench.seed(1)
        held = await bench.claim_one()
        await bench.expire(key)
        assert await bench.kind.renew(bench.database, held)
        assert await bench.kind.reap(bench.database) == 0
        assert (await bench.state(key), await bench.current(key)) == (bench.kind.claimed, held)

    async def test_two_reapers_free_each_row_once(self, bench: Bench) -> None:
        if bench.kind.reap is None:
            assert bench.kind.lease is None
            return
        keys = await bench.seed(20)
        for key in keys:
            await bench.claim_one()
            await bench.expire(key)
        assert sum(await asyncio.gather(*(bench.kind.reap(bench.database) for _ in range(4)))) == len(keys)
        assert {(await bench.row(key))["claim_token"] for key in keys} == {2}

    # ------------------------------------------------------------------------------------------------------ the edges
    async def test_each_legal_edge_wins_once(self, bench: Bench) -> None:
        """Two writers who read the same row: one UPDATE 1, one UPDATE 0, whatever the edge."""
        for edge in bench.kind.moves:
            await bench.owner.execute(f"truncate {bench.kind.table} cascade")
            (key,) = await bench.seed(1)
            await bench.bring(key, edge.source)
            row = await bench.row(key)
            as_read = f"{bench.kind.machine.column} = '{edge.source}' and claim_token = {row['claim_token']}"
            query = lawful(edge).query(bench.kind, f"{as_read} and edge = '{row['edge']}'")
            writers = (bench.client, bench.owner)
            assert sorted(await asyncio.gather(*(writer.execute(query, *key) for writer in writers))) == [
                "UPDATE 0",
                "UPDATE 1",
            ], edge.name

    async def test_every_other_change_is_refused(self, bench: Bench) -> None:
        """All edges between all states, as a client with SQL of its own would try them: RC001."""
        legal = {(edge.name, edge.source, edge.target) for edge in bench.kind.moves}
        names, targets = (*bench.kind.machine.edges, "no_such_edge"), (*bench.kind.machine.states, "no_such_state")
        tried = 0
        for key, source in await self.one_in_each_state(bench):
            for name, target in itertools.product(names, targets):
                if (name, source, target) not in legal:
                    tried += 1
                    write = Write(target, name, "claim_token + 1", "null")
                    assert await _refusal(bench.client, write.query(bench.kind), key) == "RC001", (name, source, target)
        assert tried == len(bench.kind.machine.states) * len(names) * len(targets) - len(legal)

    async def test_every_fence_holds(self, bench: Bench) -> None:
        """The right edge with the wrong token: RC002; with the right one: no refusal."""
        keys = {source: key for key, source in await self.one_in_each_state(bench)}
        for edge in bench.kind.moves:
            key = keys[edge.source]
            assert await _refusal(bench.client, lawful(edge).query(bench.kind), key) is None, edge.name
            for wrong, write in fence_breaches(edge).items():
                assert await _refusal(bench.client, write.query(bench.kind), key) == "RC002", (edge.name, wrong)

    async def test_no_row_is_born_elsewhere(self, bench: Bench) -> None:
        (key,) = await bench.seed(1)
        births = {(edge.name, edge.target) for edge in bench.kind.machine.edges.values() if edge.source is None}
        names, states = (*bench.kind.machine.edges, "no_such_edge"), (*bench.kind.machine.states, "no_such_state")
        for name, state in itertools.product(names, states):
            if (name, state) in births:
                continue
            born = f"jsonb_build_object('edge', '{name}', '{bench.kind.machine.column}', '{state}')"
            query = (
                f"insert into {bench.kind.table} overriding system value "
                f"select (jsonb_populate_record(t, {born})).* from {bench.kind.table} t where {bench.kind.at_key}"
            )
            assert await _refusal(bench.owner, query, key) == "RC001", (name, state)

    async def one_in_each_state(self, bench: Bench) -> Sequence[tuple[Key, str]]:
        """Each was claimed before (so that tokens are not all zero), then walked on."""
        states = list(bench.kind.machine.states)
        keys = await bench.seed(len(states))
        for key, state in zip(keys, states, strict=True):
            await bench.bring(key, bench.kind.claimed)
            await bench.take(key, *bench.kind.path(bench.kind.claimed, state))
        return list(zip(keys, states, strict=True))


async def _refusal(client: Connection, query: str, key: Key) -> str | None:
    """The SQLSTATE that refused the write, or None; either way it is rolled back."""
    transaction = client.transaction()
    await transaction.start()
    try:
        await client.execute(query, *key)
    except asyncpg.PostgresError as error:
        return str(error.sqlstate)
    finally:
        await transaction.rollback()
    return None
