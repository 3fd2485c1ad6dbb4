"""`rowclaim migrate` and `rowclaim topics`: what must stand before a process starts, made once however often asked."""

import asyncio
import itertools
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pydantic import SecretStr

from schemas.triggers import STRIPE_EVENTS
from services.kernel.inbox import PARTITION_WEEKS
from services.kernel.settings import Settings
from services.operations import migrating
from services.operations.migrating import MIGRATIONS, admin, apply_migrations, dbmate, pending_migrations
from services.operations.terminal import Terminal
from tests.fixtures.brokers import BrokerServer
from tests.fixtures.database import DatabaseUrl, Server
from tests.operations.conftest import TOY, MakeTerminal, RunCommand, log_sender

FILES = [path.name for path in sorted(MIGRATIONS.glob("*.sql"))]
numbers = itertools.count(1)


@pytest.fixture
def empty_url(database_server: Server) -> Iterator[str]:
    """A database nobody migrated."""
    name = f"rowclaim_empty_{next(numbers)}"
    database_server.administer(f"create database {name}")
    yield database_server.url(name)
    database_server.administer(f"drop database {name} with (force)")


def terminal(url: str, **environ: str) -> Terminal:
    return Terminal((TOY,), log_sender, {"ROWCLAIM_DATABASE_URL": url} | environ)


def settings(url: str) -> Settings:
    return Settings(database_url=SecretStr(url))


async def test_an_empty_database_gets_the_schema_once(empty_url: str, run_command: RunCommand) -> None:
    assert await pending_migrations(settings(empty_url)) == FILES
    first = await run_command(terminal(empty_url), "migrate", "--json")
    assert (first.code, json.loads(first.out)["applied"]) == (0, FILES)
    second = await run_command(terminal(empty_url), "migrate", "--json")
    assert (second.code, json.loads(second.out)) == (0, {"applied": [], "weeks_made": 0})
    assert await pending_migrations(settings(empty_url)) == []


async def test_weeks_for_events_are_made_at_every_migrate(
    make_terminal: MakeTerminal, run_command: RunCommand, owner: Any
) -> None:
    partitions = "select inhrelid::regclass::text from pg_inherits where inhparent = 'event_bodies'::regclass"
    for row in await owner.fetch(partitions):
        await owner.execute(f"drop table {row[0]}")
    ended = await run_command(make_terminal(), "migrate", "--json")
    assert json.loads(ended.out) == {"applied": [], "weeks_made": PARTITION_WEEKS + 1}
    assert await owner.fetchval("select event_weeks_ahead()") == PARTITION_WEEKS


async def test_migrators_side_by_side_all_end_well(empty_url: str) -> None:
    applied = await asyncio.gather(*(apply_migrations(settings(empty_url)) for _ in range(3)))
    assert sorted(itertools.chain(*applied)) == FILES


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Migrations of the test's own; the pause between tries is left out."""
    monkeypatch.setattr(migrating, "MIGRATIONS", tmp_path)
    monkeypatch.setattr(migrating, "RETRY_S", 0.0)
    return tmp_path


def write(folder: Path, number: int, sql: str) -> None:
    (folder / f"2026010100000{number}_toy.sql").write_text(f"-- migrate:up\n{sql}\n-- migrate:down\n")


async def test_a_migration_that_fails_is_rolled_back_and_told(
    empty_url: str, folder: Path, run_command: RunCommand
) -> None:
    write(folder, 1, "create table a (id integer);")
    write(folder, 2, "create table b (id integer); create table a (id integer);")
    ended = await run_command(terminal(empty_url), "migrate")
    assert ended.code == 78
    assert ended.err.startswith("rowclaim: migration_failed: ")
    assert 'relation "a" already exists' in ended.err
    assert await pending_migrations(settings(empty_url)) == ["20260101000002_toy.sql"]
    write(folder, 2, "create table b (id integer);")
    await apply_migrations(settings(empty_url))
    connection = await asyncpg.connect(empty_url)
    assert await connection.fetchval("select to_regclass('a') is not null and to_regclass('b') is not null")
    await connection.close()


async def test_a_number_that_comes_late_is_refused(empty_url: str, folder: Path, run_command: RunCommand) -> None:
    write(folder, 2, "create table b (id integer);")
    assert await apply_migrations(settings(empty_url)) == ["20260101000002_toy.sql"]
    write(folder, 1, "create table a (id integer);")
    assert (await run_command(terminal(empty_url), "migrate")).code == 78


async def test_nothing_around_it_counts(
    empty_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = tmp_path_factory.mktemp("cwd")
    (here / ".env").write_text("DATABASE_URL=postgres://127.0.0.1:1/none\nDBMATE_MIGRATIONS_DIR=/none\n")
    monkeypatch.chdir(here)
    monkeypatch.setenv("DATABASE_URL", "postgres://127.0.0.1:1/none")
    write(folder, 1, "create table a (id integer);")
    assert await apply_migrations(settings(empty_url)) == ["20260101000001_toy.sql"]
    assert [path.name for path in here.iterdir()] == [".env"]


async def test_no_database_and_no_such_database(database_url: DatabaseUrl, run_command: RunCommand) -> None:
    ended = await run_command(terminal("postgres://127.0.0.1:1/none"), "migrate")
    assert (ended.code, ended.err.splitlines()[0]) == (75, "rowclaim: database_unavailable: ConnectionRefusedError")
    absent = database_url().replace("/rowclaim_test", "/rowclaim_absent")
    assert (await run_command(terminal(absent), "migrate")).code == 78


def test_the_address_is_never_an_argument_and_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[Any, dict[str, str]]] = []
    url = "postgres://owner:letmein@127.0.0.1:1/none?sslmode=disable"

    def run(argv: list[str], *, env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append((argv, env))
        return subprocess.CompletedProcess(argv, 1, "", f"Error: cannot parse {url}\n")

    monkeypatch.setattr(migrating.subprocess, "run", run)
    given = settings(url).model_copy(update={"run": "run-1"})
    failed = migrating.failed(given, dbmate(given, "status"))
    assert "letmein" not in str(failed)
    ((argv, env),) = ran
    assert "letmein" not in " ".join(map(str, argv))
    assert (env["DATABASE_URL"], env["ROWCLAIM_RUN"]) == (url, "run-1")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgres://o@127.0.0.1:5432/d", "postgres://o@127.0.0.1:5432/d?sslmode=disable"),
        ("postgres://o@/d?host=/tmp/rc", "postgres://o@/d?host=/tmp/rc&sslmode=disable"),
        ("postgres://o@localhost/d?sslmode=require", "postgres://o@localhost/d?sslmode=require"),
        ("postgres://o@db.internal/d", "postgres://o@db.internal/d"),
    ],
)
def test_only_on_this_machine_tls_is_not_insisted_on(url: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def run(argv: list[str], *, env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        seen.append(env["DATABASE_URL"])
        return subprocess.CompletedProcess(argv, 0, "", "")

    monkeypatch.setattr(migrating.subprocess, "run", run)
    dbmate(settings(url), "status")
    assert seen == [expected]


async def test_topics_are_made_once_with_their_dead_letters(
    make_terminal: MakeTerminal,
    run_command: RunCommand,
    broker_server: BrokerServer,
    unique_topic: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = replace(STRIPE_EVENTS, name=unique_topic("stripe.events.v1"))
    monkeypatch.setattr(migrating, "TOPICS", (topic,))
    line = make_terminal(KAFKA_BOOTSTRAP=broker_server.bootstrap)
    names = [topic.name, topic.dead_letters]
    first = await run_command(line, "topics", "--json")
    assert (first.code, json.loads(first.out)) == (0, {"created": names, "existing": []})
    second = await run_command(line, "topics", "--json")
    assert (second.code, json.loads(second.out)) == (0, {"created": [], "existing": names})
    async with admin(line.load().settings) as client:
        described = await client.describe_topics(names)
    assert {one["topic"]: len(one["partitions"]) for one in described} == {names[0]: topic.partitions, names[1]: 1}


async def test_without_a_broker_no_topic(make_terminal: MakeTerminal, run_command: RunCommand) -> None:
    ended = await run_command(make_terminal(KAFKA_BOOTSTRAP="127.0.0.1:1"), "topics")
    assert ended.code == 75
    assert ended.err.startswith("rowclaim: broker_unavailable: 127.0.0.1:1: ")


async def test_a_refused_topic_is_told_in_the_brokers_words(
    make_terminal: MakeTerminal, run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass
    class Answer:
        topic_errors: list[tuple[object, ...]]

    class Refusing:
        async def create_topics(self, wanted: list[Any]) -> Answer:
            return Answer([(wanted[0].name, 36, None), (wanted[1].name, 44, "policy forbids it")])

    @asynccontextmanager
    async def refusing(_: Settings) -> AsyncIterator[Refusing]:
        yield Refusing()

    monkeypatch.setattr(migrating, "admin", refusing)
    ended = await run_command(make_terminal(), "topics")
    assert ended.code == 78
    assert ended.err.splitlines()[0] == ("rowclaim: topic_refused: stripe.events.v1.dlq: error 44 policy forbids it")
