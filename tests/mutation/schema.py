"""What the schema loses, one thing at a time: constraints, uniques, triggers, and the conditions of the guard."""

from dataclasses import dataclass

import asyncpg

from tests.house.test_constraints import CONSTRAINTS

CONSTRAINT_TESTS = ("tests/house/test_constraints.py",)
HISTORY_TESTS = ("tests/house/test_grants.py::test_history_is_refused_a_change_by_grant_and_by_trigger",)
GUARD_LAWS = (
    "test_every_other_change_is_refused",
    "test_every_fence_holds",
    "test_no_row_is_born_elsewhere",
)
GUARDED_BY = {
    "job_runs": "tests/conformance/test_job_runs.py::TestJobRuns",
    "purchases": "tests/conformance/test_purchases.py::TestDuePurchases",
    "webhook_deliveries": "tests/conformance/test_deliveries.py::TestDeliveries",
}
"""The class that holds each guarded table to the law."""

CONSTRAINT_TABLES = """
select k.conname as name, k.conrelid::regclass::text as of
from pg_constraint k where k.contype in ('c', 'u', 'f', 'x')"""
TRIGGERS = """
select t.tgname as name, t.tgrelid::regclass::text as of, p.proname as function
from pg_trigger t join pg_proc p on p.oid = t.tgfoid
where not t.tgisinternal and t.tgparentid = 0 order by 2, 1"""

GUARD = "law.guard_state"
GUARD_CONDITIONS = {
    "an unknown edge": ("if not found then", "if false then"),
    "a birth by an edge between states": ("if declared.fence <> 'birth' or ", "if "),
    "a birth in another state": (
        "declared.fence <> 'birth' or declared.target <> state_is",
        "declared.fence <> 'birth'",
    ),
    "an edge from another state": ("declared.source is distinct from state_was or ", ""),
    "an edge to another state": (
        " or declared.target <> state_is then\n    raise exception '%: edge",
        " then\n    raise exception '%: edge",
    ),
    "the fence of claims": ("declared.fence in ('claim', 'person')", "declared.fence = 'person'"),
    "the fence of persons": ("declared.fence in ('claim', 'person')", "declared.fence = 'claim'"),
    "a claim's new token": (
        "(new.claim_token <> old.claim_token + 1 or new.outcome_token is not null)",
        "(new.outcome_token is not null)",
    ),
    "a claim's empty outcome": (" or new.outcome_token is not null)", ")"),
    "an outcome's kept token": ("(new.claim_token <> old.claim_token or ", "("),
    "an outcome's own token": (" or new.outcome_token is distinct from old.claim_token)", ")"),
}
"""By what it refuses: a text of the guard, and the same without it."""


@dataclass(frozen=True, slots=True)
class SchemaMutant:
    """``change`` is run on a copy of the template; ``tests`` are those that must notice."""

    name: str
    change: str
    tests: tuple[str, ...]


async def schema_mutants(owner: "asyncpg.Connection[asyncpg.Record]") -> list[SchemaMutant]:
    """Everything the migrated schema can lose."""
    of = {row["name"]: row["of"] for row in await owner.fetch(CONSTRAINT_TABLES)}
    found = []
    for row in await owner.fetch(CONSTRAINTS):
        name = row["name"]
        change = f"alter table {of[name]} drop constraint {name}" if name in of else f"drop index {name}"
        found.append(SchemaMutant(f"schema without {name}", change, CONSTRAINT_TESTS))
    for row in await owner.fetch(TRIGGERS):
        tests = HISTORY_TESTS if row["function"] == "guard_history" else laws(row["of"])
        found.append(SchemaMutant(f"schema without {row['name']}", f"drop trigger {row['name']} on {row['of']}", tests))
    body = await owner.fetchval("select pg_get_functiondef($1::regproc)", GUARD)
    for name, (old, new) in GUARD_CONDITIONS.items():
        assert body.count(old) == 1, f"the guard says {old!r} {body.count(old)} times"
        found.append(SchemaMutant(f"guard without {name}", body.replace(old, new), laws("webhook_deliveries")))
    return found


def laws(table: str) -> tuple[str, ...]:
    return tuple(f"{GUARDED_BY[table]}::{law}" for law in GUARD_LAWS)
