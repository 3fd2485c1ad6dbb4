"""SQL is literal text with a name and one home, and it knows one clock."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import sqlglot
from sqlglot import exp

from tests.house.source import ROOT, Module, modules, plant

# Begins as a statement does. "with" and "set" also begin English sentences, hence the words that must follow.
STATEMENT = re.compile(
    r"""\s*(--[^\n]*\n\s*)*(
      with\s+(recursive\s+)?\w+(\s*\([^)]*\))?\s+as\s+(not\s+)?(materialized\s*)?\(
    | select\s.*(\sfrom\s|\(|::)
    | insert\s+into\s | update\s.*\sset\s | delete\s+from\s | merge\s+into\s | values\s*\(
    | (create|alter|drop)\s+(or\s+replace\s+)?(unique\s+|materialized\s+)?
      (table|index|view|function|schema|role|database|trigger|type|publication|subscription)\b
    | (grant|revoke)\s.*\s(to|from)\s | set\s+(local\s+|session\s+)?\w+\s*(=|to)\s | lock\s+table\s
    | truncate\s+\w+ | copy\s+\w+\s+(from|to)\s | explain\s.*\bselect\b | (un)?listen\s+\w+\s*$ | notify\s+\w+\s*,
    )""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
QUERYING = frozenset({"value", "execute", "executemany", "fetch", "fetchrow", "fetchval", "prepare", "cursor"})
WALL_CLOCKS = re.compile(
    r"(?<![\w.])((now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday)\s*\("
    r"|(current_timestamp|localtimestamp|current_date|current_time|localtime)\b)",
    re.IGNORECASE,
)
COMMENT = re.compile(r"--[^\n]*")
LITERAL = re.compile(r"'(?:[^']|'')*'")
KEYWORDS = re.compile(
    r"\b(WITH|SELECT|INSERT|UPDATE|DELETE|FROM|WHERE|SET|INTO|VALUES|RETURNING|AND|OR|NOT|NULL|ORDER|GROUP|LIMIT|JOIN|AS|ON)\b"
)
EVERY_COLUMN = re.compile(r"(?<!count\()(?<!count\( )(?:\bselect\s+|\breturning\s+|[,.]\s*)\*", re.IGNORECASE)


@dataclass(frozen=True)
class Statement:
    """A named SQL constant of services/."""

    module: Module
    line: int
    name: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.module.place}:{self.line} {self.name}"

    @property
    def bare(self) -> str:
        """The text without comments and without the content of string literals."""
        return LITERAL.sub("''", COMMENT.sub("", self.text))


# Reads the database from outside, as the audience of the demo.
AUDIENCE = "services/operations/demo/"
# Statements that are shown to a person as advice and never run.
SHOWN = frozenset({"services/operations/doctor.py"})


def _lawful(root: Path) -> list[Module]:
    """All of services/ but the sandbox: the outside world is under no law of ours."""
    return [module for module in modules(root, "services") if not module.place.startswith("services/sandbox/")]


def is_sql(text: str) -> bool:
    return STATEMENT.match(text) is not None


def statements(root: Path) -> Iterator[Statement]:
    """All constants annotated ``Final[LiteralString]``, at the top of a module of services/."""
    for module in _lawful(root):
        for node in module.tree.body:
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and ast.unparse(node.annotation) == "Final[LiteralString]"
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield Statement(module, node.lineno, node.target.id, node.value.value)


def unnamed(root: Path) -> list[str]:
    """SQL that is no constant of its module annotated ``Final[LiteralString]``."""
    named = {(statement.module.place, statement.text) for statement in statements(root)}
    return [
        f"{module.place}:{string.lineno}"
        for module in _lawful(root)
        for string in module.strings()
        if is_sql(str(string.value)) and (module.place, string.value) not in named
    ]


def homeless(root: Path) -> list[str]:
    """SQL constants outside a slice's store and the kernel."""
    homes = re.compile(rf"services/(kernel/|\w+/([a-z]+_)?store(\.py|/))|{AUDIENCE}")
    return [statement.place for statement in statements(root) if not homes.match(statement.module.place)]


def built(root: Path) -> list[str]:
    """SQL put together at run time: an f-string, ``%``, ``+`` or ``.format``, by its look or by where it is handed."""
    return [
        f"{module.place}:{node.lineno}"
        for module in _lawful(root)
        if module.place not in SHOWN
        for node in ast.walk(module.tree)
        if isinstance(node, ast.expr) and _builds(node)
    ]


def _builds(node: ast.expr) -> bool:
    match node:
        case ast.JoinedStr():
            return is_sql(_skeleton(node))
        case ast.BinOp(left=ast.Constant(value=str(text))):
            return is_sql(text)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format" | "replace" | "join")):
            return is_sql(text)
        case ast.Call(func=ast.Attribute(attr="row" | "rows"), args=[_, statement, *_]):
            return isinstance(statement, ast.JoinedStr | ast.BinOp)
        case ast.Call(func=ast.Attribute(attr=verb), args=[statement, *_]) if verb in QUERYING:
            return isinstance(statement, ast.JoinedStr | ast.BinOp)
    return False


def _skeleton(node: ast.JoinedStr) -> str:
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)


def by_the_wall_clock(root: Path) -> list[str]:
    found = [statement.place for statement in statements(root) if WALL_CLOCKS.search(statement.bare)]
    for path in sorted((root / "migrations").glob("*.sql")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            # The two clocks are defined by what everything else must not call.
            if not re.match(r"create function rowclaim_(now|clock)\(\)", line) and WALL_CLOCKS.search(
                LITERAL.sub("''", COMMENT.sub("", line))
            ):
                found.append(f"migrations/{path.name}:{number}")
    return found


def by_the_volatile_clock_in_where(root: Path) -> list[str]:
    """``rowclaim_clock()`` in a WHERE is evaluated per row and can use no index."""
    return [
        statement.place
        for statement in statements(root)
        for tree in sqlglot.parse(statement.text, dialect="postgres")
        if tree is not None
        and any("rowclaim_clock" in where.sql(dialect="postgres").lower() for where in tree.find_all(exp.Where))
    ]


def by_a_limited_subselect(root: Path) -> list[str]:
    """``in (select ... limit n)``: the planner may run it again per row, and more than n rows are taken."""
    return [
        statement.place
        for statement in statements(root)
        for tree in sqlglot.parse(statement.text, dialect="postgres")
        if tree is not None
        for inside in tree.find_all(exp.In)
        if (query := inside.args.get("query")) is not None and query.find(exp.Limit) is not None
    ]


def shouting(root: Path) -> list[str]:
    return [statement.place for statement in statements(root) if KEYWORDS.search(statement.bare)]


def of_every_column(root: Path) -> list[str]:
    return [statement.place for statement in statements(root) if EVERY_COLUMN.search(statement.bare)]


def unused(root: Path) -> list[str]:
    """SQL constants that no code of services/ names."""
    loaded = {name for module in _lawful(root) for node in ast.walk(module.tree) if (name := _loaded(node)) is not None}
    return [statement.place for statement in statements(root) if statement.name not in loaded]


def _loaded(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def test_statements_are_recognised() -> None:
    for text in (
        "select id from purchases",
        "\n-- why\nwith next as materialized (select 1) update x set y = 1",
        "update purchases p set state = $1",
        "select pg_advisory_lock($1)",
        "select current_user::text",
        "INSERT INTO t values (1)",
        "delete from t",
        "create unique index x on y (z)",
        "set lock_timeout = '2s'",
    ):
        assert is_sql(text), text
    for text in (
        "select",
        "with care",
        "set aside for later",
        "update",
        "create a topic",
        "values",
        "delete it",
        "notify the buyer",
    ):
        assert not is_sql(text), text


def test_every_statement_is_a_literal_constant_with_a_name(tmp_path: Path) -> None:
    assert unnamed(ROOT) == []
    plant(
        tmp_path,
        {
            "services/a/store.py": '''
GOOD: Final[LiteralString] = """select a from t"""
PLAIN = "select b from t"
TYPED: str = "select c from t"
async def find(tx): return await tx.value("select d from t")
def documented(): "select e from t"
''',
        },
    )
    assert unnamed(tmp_path) == [f"services/a/store.py:{line}" for line in (3, 4, 5)]


def test_statements_live_in_a_store_or_in_the_kernel(tmp_path: Path) -> None:
    assert homeless(ROOT) == []
    constant = 'FIND: Final[LiteralString] = "select a from t"\n'
    homes = ["services/a/store.py", "services/a/store/rows.py", "services/kernel/claim.py"]
    plant(tmp_path, dict.fromkeys([*homes, "services/a/flow.py"], constant))
    assert homeless(tmp_path) == ["services/a/flow.py:1 FIND"]


def test_no_statement_is_put_together_at_run_time(tmp_path: Path) -> None:
    assert built(ROOT) == []
    plant(
        tmp_path,
        {
            "services/a/store.py": """
x = f"select a from {table}"
x = "select a from %s" % table
x = "select a from " + table
x = "select a from {}".format(table)
tx.execute(f"{verb} into t")
tx.rows(Row, BASE + " limit 1")
tx.value(NAMED, f"{wait} ms")
log(f"selected from {table}")
""",
        },
    )
    assert built(tmp_path) == [f"services/a/store.py:{line}" for line in range(2, 8)]


def test_sql_knows_one_clock(tmp_path: Path) -> None:
    assert by_the_wall_clock(ROOT) == []
    plant(
        tmp_path,
        {
            "services/a/store.py": """
NOW: Final[LiteralString] = "update t set a = now()"
CLOCK: Final[LiteralString] = "select clock_timestamp()"
CURRENT: Final[LiteralString] = "select a from t where b < current_timestamp"
OURS: Final[LiteralString] = "select rowclaim_now(), 'now()' from t -- now()"
""",
            "migrations/1_a_b.sql": "create function rowclaim_now() returns timestamptz return now();\n"
            "create table t (at timestamptz default now());\n",
        },
    )
    places = ["services/a/store.py:2 NOW", "services/a/store.py:3 CLOCK", "services/a/store.py:4 CURRENT"]
    assert by_the_wall_clock(tmp_path) == [*places, "migrations/1_a_b.sql:2"]


def test_the_volatile_clock_is_banned_from_where(tmp_path: Path) -> None:
    assert by_the_volatile_clock_in_where(ROOT) == []
    plant(
        tmp_path,
        {
            "services/a/store.py": """
SETS: Final[LiteralString] = "update t set due_at = rowclaim_clock() + $1 where id = $2"
ASKS: Final[LiteralString] = "select id from t where due_at <= rowclaim_clock() order by id limit 1"
""",
        },
    )
    assert by_the_volatile_clock_in_where(tmp_path) == ["services/a/store.py:3 ASKS"]


def test_no_claim_by_a_limited_subselect(tmp_path: Path) -> None:
    assert by_a_limited_subselect(ROOT) == []
    plant(
        tmp_path,
        {
            "services/a/store.py": """
BAD: Final[LiteralString] = "update t set a = 1 where id in (select id from t limit 1 for update skip locked)"
GOOD: Final[LiteralString] = "select id from t where id in (select id from u)"
""",
        },
    )
    assert by_a_limited_subselect(tmp_path) == ["services/a/store.py:2 BAD"]


def test_sql_is_lower_case_and_names_its_columns(tmp_path: Path) -> None:
    assert shouting(ROOT) == []
    assert of_every_column(ROOT) == []
    plant(
        tmp_path,
        {
            "services/a/store.py": """
LOUD: Final[LiteralString] = "SELECT a from t"
STAR: Final[LiteralString] = "select * from t"
GIVEN: Final[LiteralString] = "update t set a = 1 returning *"
ALIAS: Final[LiteralString] = "select t.* from t"
COUNT: Final[LiteralString] = "select count(*), 'SELECT *', a * b from t"
""",
        },
    )
    assert shouting(tmp_path) == ["services/a/store.py:2 LOUD"]
    assert of_every_column(tmp_path) == [
        f"services/a/store.py:{n} {name}" for n, name in ((3, "STAR"), (4, "GIVEN"), (5, "ALIAS"))
    ]


def test_no_statement_is_dead(tmp_path: Path) -> None:
    assert unused(ROOT) == []
    plant(
        tmp_path,
        {
            "services/a/store.py": """
USED: Final[LiteralString] = "select a from t"
DEAD: Final[LiteralString] = "select b from t"
async def find(tx): return await tx.value(USED)
""",
        },
    )
    assert unused(tmp_path) == ["services/a/store.py:3 DEAD"]
