"""What a statement loses, and what it keeps."""

import re

import pytest
import sqlglot

from tests.house.source import ROOT
from tests.house.test_sql_text import statements
from tests.mutation.mutants import mutants

TYPES = {f"${nth}": "int8" for nth in range(1, 20)}

CLAIM = """
with next as materialized (
  select id, claim_token from t where state = 'pending' and due_at <= rowclaim_now()
  order by due_at, id limit $1 for no key update skip locked)
update t set state = 'held', edge = 'claim', claim_token = t.claim_token + 1, outcome_token = null
from next where t.id = next.id and t.claim_token = next.claim_token
returning t.id"""


def names(text: str) -> list[str]:
    return [mutant.name for mutant in mutants(text, TYPES)]


def test_a_claim_loses_each_of_its_parts() -> None:
    assert names(CLAIM) == [
        "without `state = 'pending'`",
        "without `due_at <= rowclaim_now()`",
        "without `t.id = next.id`",
        "without `t.claim_token = next.claim_token`",
        "waiting for locked rows",
        "locking against children too",
        "taking no lock",
        "in no order",
        "without a limit",
        "keeping the token",
        "keeping the outcome's token",
    ]


def test_one_thing_is_gone_and_the_rest_is_the_same_text() -> None:
    by_name = {mutant.name: mutant.text for mutant in mutants(CLAIM, TYPES)}
    for name, gone, instead in (
        ("without `due_at <= rowclaim_now()`", "due_at <= rowclaim_now()", "true"),
        ("waiting for locked rows", "skip locked", ""),
        ("locking against children too", "for no key update", "for update"),
        ("keeping the token", "t.claim_token + 1", "t.claim_token"),
        ("keeping the outcome's token", ", outcome_token = null", ""),
    ):
        assert by_name[name] == CLAIM.replace(gone, instead), name


@pytest.mark.parametrize(
    ("text", "conjuncts"),
    [
        ("select a from t where a between 1 and 2 and b", ["a between 1 and 2", "b"]),
        ("select a from t where (a or b) and not (c and d)", ["(a or b)", "not (c and d)"]),
        ("select a from t where a is distinct from b and c order by d", ["a is distinct from b", "c"]),
        ("select a from t where case when a and b then c end and d group by a", ["case when a and b then c end", "d"]),
        ("select a from t join u on t.a = u.a and t.b where t.c", ["t.a = u.a", "t.b", "t.c"]),
        ("select a from t where b = ' and c' and d -- and e\n and f limit 1", ["b = ' and c'", "d", "f"]),
        ("select a from t where exists (select from u where u.a and u.b)", None),
        (
            "insert into t values (1) on conflict (a) where b is null do update set c = 1 where t.d",
            ["b is null", "t.d"],
        ),
        ("delete from t where a returning b", ["a"]),
        ("select a from t", []),
    ],
)
def test_conjuncts(text: str, conjuncts: list[str] | None) -> None:
    if conjuncts is None:
        conjuncts = ["exists (select from u where u.a and u.b)", "u.a", "u.b"]
    assert names(text) == [f"without `{conjunct}`" for conjunct in conjuncts]


def test_a_parameter_that_stood_nowhere_else_keeps_its_type() -> None:
    (one, two) = mutants("update t set a = $1 where b = $2 and c = $1", TYPES)
    assert one.text == "update t set a = $1 where true and ($2::int8 is null or true) and c = $1"
    assert two.text == "update t set a = $1 where b = $2 and true"


def test_a_conflict_that_is_passed_over_is_lost() -> None:
    (mutant,) = mutants("insert into t values ($1) on conflict (a, b) do nothing returning a", TYPES)
    assert mutant.text == "insert into t values ($1)  returning a"


def test_two_mutants_of_one_name_are_told_apart() -> None:
    text = "with a as (select b from t where c) select b from a where c"
    assert names(text) == ["without `c`", "without `c` (2)"]


def test_every_statement_of_the_code_is_cut_into_statements() -> None:
    """By another reader of SQL than the one that cut it; PostgreSQL reads all of them in the run itself."""
    for statement in statements(ROOT):
        written = len(re.findall(r"\bwhere\b", statement.bare))
        found = mutants(statement.text, TYPES)
        assert len(found) >= written, statement.place
        for mutant in found:
            assert sqlglot.parse_one(mutant.text, dialect="postgres") is not None
