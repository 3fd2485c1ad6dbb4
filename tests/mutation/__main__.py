"""Remove one thing at a time and demand that a test dies.

    python -m tests.mutation                      everything
    python -m tests.mutation --every 4 --seed X   a quarter of it, drawn by X
    python -m tests.mutation --only letters       what has the word in its name

Statements: each is run by some tests, found by running all candidates once; a mutant of it is given to those. Schema:
each constraint is given to the test that shows it, each trigger and each condition of the guard to the law of claims.
Exit codes: 0 all died (but those listed as harmless), 1 one survived, or one listed as harmless died.
"""

import argparse
import asyncio
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import asyncpg

from services.sandbox.embedded.postgres import Postgres
from tests.conformance.test_letters import TOY
from tests.fixtures import database as fixtures
from tests.fixtures.database import Server
from tests.fixtures.servers import ODD_ZONE, memory_directory, run
from tests.house.source import ROOT
from tests.house.test_sql_text import statements
from tests.mutation.harmless import CONTROLS, HARMLESS
from tests.mutation.mutants import Mutant, mutants
from tests.mutation.runs import Covered, Ran, Result, Run, cover, run_all, warm
from tests.mutation.schema import CONSTRAINT_TESTS, HISTORY_TESTS, SchemaMutant, schema_mutants

CANDIDATES = (
    (
        *(f"tests/conformance/test_{kind}.py" for kind in ("letters", "deliveries", "job_runs")),
        *(f"tests/kernel/test_{part}.py" for part in ("clock", "db", "gate", "transition")),
        "tests/ingress/flow",
        "tests/ingress/test_store.py",
        *(
            f"tests/operations/test_{part}.py"
            for part in ("store", "store_periods", "by_hand", "gates", "paging", "forgetting", "pruning")
        ),
    ),
    (
        "tests/conformance/test_purchases.py",
        *(f"tests/kernel/test_{part}.py" for part in ("deliveries", "inbox", "pager")),
        "tests/fulfillment/test_store.py",
        "tests/fulfillment/flow",
        *(f"tests/identity/test_{part}.py" for part in ("store", "flow")),
    ),
)
"""What may notice a mutant of a statement, in two parts that run side by side."""
SUBJECTS = (
    *("services.kernel.", "services.fulfillment.", "services.identity.", "services.ingress."),
    *("services.operations.store", "services.operations.retention_store"),
)
TOY_STORE = "tests.conformance.toy.store"
SCRATCH = "rowclaim_scratch"
TESTS_MAX = 60


def statement_runs(server: Server, covered: Sequence[Covered]) -> Iterator[Run]:
    """A run for each mutant of each statement. Raises AssertionError when no test runs a statement that has some."""
    for (module, constant), text in sorted(subjects().items()):
        found = asyncio.run(sound_mutants(server, text))
        tests = sorted((test for test in covered if text in test.queries), key=lambda test: test.seconds)
        assert tests or not found, f"{module}.{constant} is run by no test"
        # What is about this module first, then the law of claims: they are made to notice.
        mirror = f"tests/{module.removeprefix('services.').replace('.', '/test_')}.py"
        tests.sort(key=lambda test: (not test.test.startswith(mirror), "conformance/" not in test.test))
        nodes = [test.test for test in tests[:TESTS_MAX]]
        for mutant in found:
            prepare = replacing(server, module, constant, mutant.text)
            yield Run(f"{module.removeprefix('services.')}.{constant} {mutant.name}", prepare, nodes)


def control_runs(server: Server, covered: Sequence[Covered]) -> Iterator[Run]:
    """Runs in which nothing is gone, over the tests that judge the others."""
    statement, schema = CONTROLS
    laws = [test.test for test in covered if "conformance/" in test.test]
    yield Run(statement, lambda: fixtures.lend(server), laws[:TESTS_MAX])
    yield Run(schema, losing(server, "select 1"), [*CONSTRAINT_TESTS, *HISTORY_TESTS])


def subjects() -> dict[tuple[str, str], str]:
    """Every statement under test, by module and name."""
    toy = vars(import_module(TOY_STORE))
    return {(TOY_STORE, name): text for name, text in toy.items() if name.isupper()} | {
        (s.module.name, s.name): s.text for s in statements(ROOT) if s.module.name.startswith(SUBJECTS)
    }


async def sound_mutants(server: Server, text: str) -> list[Mutant]:
    """The mutants of a statement. One that PostgreSQL cannot read would die for the wrong reason: an error here."""
    connection = await asyncpg.connect(server.url(SCRATCH))
    try:
        parameters = (await connection.prepare(text)).get_parameters()
        found = mutants(text, {f"${nth}": kind.name for nth, kind in enumerate(parameters, 1)})
        for mutant in found:
            try:
                await connection.prepare(mutant.text)
            except asyncpg.PostgresError as error:
                raise AssertionError(f"{mutant.name} is no statement: {error}\n{mutant.text}") from error
        return found
    finally:
        await connection.close()


def replacing(server: Server, module: str, constant: str, text: str) -> Callable[[], None]:
    def prepare() -> None:
        fixtures.lend(server)
        setattr(import_module(module), constant, text)

    return prepare


def schema_runs(server: Server) -> list[Run]:
    """A run for each thing that the schema can lose, on a template that has lost it."""

    async def find(database: str) -> list[SchemaMutant]:
        connection = await asyncpg.connect(server.url(database))
        try:
            return await schema_mutants(connection)
        finally:
            await connection.close()

    with server.copied() as database:
        return [Run(m.name, losing(server, m.change), m.tests) for m in asyncio.run(find(database))]


def losing(server: Server, change: str) -> Callable[[], None]:
    def prepare() -> None:
        poorer = Server(server.postgres, f"rowclaim_poorer_{os.getpid()}")
        server.administer(f"create database {poorer.template} template {server.template}")
        server.administer(change, database=poorer.template)
        fixtures.lend(poorer)

    return prepare


@contextmanager
def running(root: Path) -> Iterator[Server]:
    """A migrated server, and a scratch database on it that has the toy's tables too."""
    postgres = Postgres(root / "data", log_path=root / "log", socket_only=True, durable=False, settings=ODD_ZONE)
    run(postgres.start())
    try:
        server = Server(postgres)
        server.make_template()
        server.administer(f"create database {SCRATCH} template {server.template}")
        server.administer(TOY.schema, database=SCRATCH)
        yield server
    finally:
        run(postgres.stop())


def chosen(runs: Sequence[Run], options: argparse.Namespace) -> list[Run]:
    """The runs that the options ask for; the same ones for the same seed, whatever else is there."""
    return [
        run
        for run in runs
        if run.name in CONTROLS
        or (options.only in run.name and zlib.crc32(f"{options.seed}{run.name}".encode()) % options.every == 0)
    ]


def judged(ran: Ran) -> str | None:
    """What is wrong with a result; None: nothing."""
    harmless = HARMLESS.get(ran.run.name)
    match ran.result:
        case Result.BROKEN:
            return f"the run did not work:\n{ran.log[-3000:]}"
        case Result.SURVIVED if harmless is None:
            return f"survived {len(ran.run.tests)} tests"
        case Result.DIED if harmless is not None:
            return f"listed as harmless ({harmless}), and yet a test died:\n{ran.log[-3000:]}"
        case _:
            return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Remove one thing at a time.")
    parser.add_argument("--only", default="", metavar="WORD", help="mutants with this word in their names")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one in N of them")
    parser.add_argument("--seed", default="", metavar="SEED", help="which of the N")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes side by side")
    options = parser.parse_args()
    started = time.monotonic()
    with memory_directory() as root, running(root) as server:
        warm(CANDIDATES, root)
        covered = cover(CANDIDATES, lambda: fixtures.lend(server), root)
        say(f"{len(covered)} tests in {time.monotonic() - started:.0f} s")
        runs = [*control_runs(server, covered), *statement_runs(server, covered), *schema_runs(server)]
        assert set(HARMLESS) <= {run.name for run in runs}, f"no such mutants: {set(HARMLESS) - {r.name for r in runs}}"
        mine = chosen(runs, options)
        wrong = 0
        for ran in run_all(mine, root, jobs=options.jobs):
            fault = judged(ran)
            wrong += fault is not None
            if fault is not None:
                say(f"{ran.run.name}: {fault}")
        say(f"mutants: {len(mine)} of {len(runs)}, {wrong} wrong, {time.monotonic() - started:.0f} s")
    return 1 if wrong else 0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
