"""One machine, four places: the enum, the CHECK, the declared edges, the picture."""

import re
from pathlib import Path

from services.kernel.transition import EdgeRow
from tests.conformance.kinds import kinds
from tests.fixtures.database import Connection
from tests.house.database import machines
from tests.house.source import ROOT

MACHINES = machines()
GUARDED = """
select c.relname, array_agg(t.tgname::text order by t.tgname) as triggers,
       array_agg(distinct encode(t.tgargs, 'escape')) as arguments, bool_and(t.tgenabled = 'O') as enabled
from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_proc p on p.oid = t.tgfoid
where p.proname = 'guard_state' and not t.tgisinternal and t.tgparentid = 0 group by c.relname"""
CHECKS = """
select pg_get_constraintdef(k.oid)
from pg_constraint k join pg_attribute a on a.attrelid = k.conrelid and k.conkey = array[a.attnum]
where k.conrelid = $1::text::regclass and k.contype = 'c' and a.attname = $2"""


async def test_every_guarded_table_has_one_machine_and_both_triggers(owner: Connection) -> None:
    guarded = {row["relname"]: row for row in await owner.fetch(GUARDED)}
    assert set(guarded) == set(MACHINES)
    for table, (machine, _) in MACHINES.items():
        row = guarded[table]
        assert row["enabled"]
        assert row["triggers"] == [f"{table}_born", f"{table}_moves"]
        assert row["arguments"] == [f"{machine.column}\\000{table}\\000"]


async def test_the_database_declares_the_codes_edges_and_no_other(owner: Connection) -> None:
    declared: dict[str, set[EdgeRow]] = {table: set() for table in MACHINES}
    for row in await owner.fetch("select table_name, edge, source, target, fence from law.state_edges"):
        declared.setdefault(row["table_name"], set()).add(
            EdgeRow(row["edge"], row["source"], row["target"], row["fence"])
        )
    assert declared == {table: machine.rows() for table, (machine, _) in MACHINES.items()}


async def test_the_check_allows_the_enums_states_and_no_other(owner: Connection) -> None:
    for table, (machine, _) in MACHINES.items():
        checks = [row[0] for row in await owner.fetch(CHECKS, table, machine.column)]
        assert len(checks) == 1, f"{table}.{machine.column} has one CHECK of its own"
        assert set(re.findall(r"'([^']*)'::text", checks[0])) == {state.value for state in machine.states}


def test_every_state_says_who_moves_it_next() -> None:
    for machine, module in MACHINES.values():
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        for state in machine.states:
            assert re.search(rf'^    {state.name} = "{state.value}"\n    """\S', source, re.MULTILINE), (
                f"{module.__name__}: {state.name} has no word on who moves it next"
            )


def test_every_machine_is_drawn_in_the_readme_beside_it() -> None:
    for machine, module in MACHINES.values():
        readme = ROOT / "services" / module.__name__.split(".")[1] / "README.md"
        picture = f"```mermaid\n{machine.mermaid()}\n```"
        drawn = readme.read_text(encoding="utf-8") if readme.exists() else ""
        assert picture in drawn, f"{readme} lacks:\n{picture}"


def test_every_machine_with_a_claim_is_held_to_the_law() -> None:
    claimed = {table for table, (machine, _) in MACHINES.items() if "claim" in machine.edges}
    assert claimed <= {kind.table for kind in kinds()}
