"""`rowclaim doctor`, fault by fault: the exit status, the code, the sentence, and that following it repairs it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from schemas.triggers import TOPICS
from services.ingress.store import Arrival, arrive
from services.kernel.errors import CODES, ServiceError, Stop
from services.kernel.gate import Gates
from services.kernel.pager import Pager, Severity
from services.kernel.service import Runtime
from services.kernel.transition import Edge, Fence, Machine
from services.operations import doctor as doctor_module
from services.operations import migrating
from services.operations.process import KERNEL_MACHINES
from services.operations.terminal import Terminal
from services.sandbox.embedded.mail import MailSink
from services.sandbox.embedded.objects import ObjectStore
from services.sandbox.embedded.postgres import Postgres
from services.sandbox.embedded.process import free_port
from services.sandbox.embedded.valkey import Valkey
from tests.fixtures.brokers import BrokerServer
from tests.fixtures.database import Clock, Connect, DatabaseUrl
from tests.operations.conftest import OTHER, TOY, MakeTerminal, RunCommand
from tests.waiting import wait_until


async def nothing(_: Runtime) -> Any:
    raise NotImplementedError


CARD = replace(TOY, consume=nothing)


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor said: exit status, and the faults with their instances by code."""

    code: int
    ok: bool
    faults: dict[str, str]
    checks: list[str]
    told: str


Ask = Callable[[Terminal], Awaitable[Diagnosis]]


@pytest.fixture
def ask(run_command: RunCommand) -> Ask:
    async def asked(line: Terminal) -> Diagnosis:
        ended = await run_command(line, "doctor", "--json")
        said = json.loads(ended.out)
        bad = [finding for finding in said["findings"] if not finding["ok"]]
        assert all(finding["advice"] == CODES[finding["code"]].sentence for finding in bad)
        faults = {finding["code"]: finding["seen"] for finding in bad}
        checks = [finding["check"] for finding in said["findings"]]
        assert ended.code == (CODES[bad[0]["code"]].exit if bad else 0)
        return Diagnosis(ended.code, said["ok"], faults, checks, ended.err)

    return asked


@pytest.fixture
async def line(
    make_terminal: MakeTerminal, broker_server: BrokerServer, mail_sink: MailSink, run_command: RunCommand
) -> Terminal:
    """An installation that is well."""
    terminal = make_terminal(CARD, KAFKA_BOOTSTRAP=broker_server.bootstrap, SMTP_URL=mail_sink.url)
    assert (await run_command(terminal, "topics")).code == 0
    return terminal


def moved(line: Terminal, **environ: str | None) -> Terminal:
    """The same installation with other settings; None takes one away."""
    given = {f"ROWCLAIM_{name}": value for name, value in environ.items()}
    merged = {**line.environ, **given}
    return replace(line, environ={name: value for name, value in merged.items() if value is not None})


async def test_a_whole_installation_is_well(line: Terminal, ask: Ask, run_command: RunCommand) -> None:
    said = await ask(line)
    assert (said.code, said.ok, said.faults) == (0, True, {})
    assert said.checks == [
        *("settings", "server version", "write-ahead log", "migrations", "roles", "state machines"),
        *("weeks for events", "clocks", "vendor gates", "pages", "deliveries", "transactions", "broker", "mail"),
    ]
    for_eyes = await run_command(line, "doctor")
    assert for_eyes.code == 0
    assert len(for_eyes.out.splitlines()) == len(said.checks)
    assert all(shown.startswith("ok     ") for shown in for_eyes.out.splitlines())


async def test_a_fault_is_told_with_what_to_do(line: Terminal, run_command: RunCommand) -> None:
    ended = await run_command(moved(line, SMTP_URL="smtp://127.0.0.1:1"), "doctor")
    assert ended.code == 69
    assert ended.err.splitlines() == [
        "rowclaim: mail_unreachable: 127.0.0.1:1: ConnectionRefusedError",
        f"  {CODES['mail_unreachable'].sentence}",
    ]
    assert "mail" not in ended.out


# ------------------------------------------------------------------------------------------------------------ settings
async def test_settings(line: Terminal, ask: Ask) -> None:
    said = await ask(moved(line, HTPP_PORT="8081"))
    assert (said.code, said.checks) == (78, ["settings"])
    assert said.faults == {"setting_unknown": "ROWCLAIM_HTPP_PORT (did you mean ROWCLAIM_HTTP_PORT?)"}
    said = await ask(moved(line, HTTP_PORT="8081x"))
    assert (said.code, list(said.faults)) == (78, ["setting_invalid"])
    assert "ROWCLAIM_HTTP_PORT" in said.faults["setting_invalid"]
    assert (await ask(moved(line, HTTP_PORT="8081"))).ok


async def test_settings_of_one_slice_are_asked_for_where_it_runs(
    line: Terminal, ask: Ask, run_command: RunCommand
) -> None:
    two = replace(line, services=(CARD, replace(OTHER, consume=nothing)))
    said = await ask(two)
    assert "ROWCLAIM_INGRESS_NEEDED" in said.faults["setting_invalid"]
    assert (await run_command(two, "doctor", "--slice", "fulfillment")).code == 0
    assert (await ask(moved(two, INGRESS_NEEDED="set"))).ok


# ------------------------------------------------------------------------------------------------------------ database
async def test_no_database_at_the_address(line: Terminal, ask: Ask, database_url: DatabaseUrl) -> None:
    for url in (
        "postgres://127.0.0.1:1/none",
        database_url("rowclaim_nobody"),
        database_url().replace("/rowclaim_test", "/rowclaim_absent"),
    ):
        said = await ask(moved(line, DATABASE_URL=url))
        assert (said.code, list(said.faults)) == (69, ["database_unreachable"])
        # What does not stand on the database is asked all the same.
        assert said.checks[-2:] == ["broker", "mail"]
    assert (await ask(moved(line, DATABASE_URL=database_url()))).ok


async def test_a_server_that_is_too_old(line: Terminal, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(doctor_module, "SERVER_VERSION_MIN", 990_000)
        said = await ask(line)
    assert (said.code, said.faults) == (78, {"server_too_old": "PostgreSQL 18"})
    assert (await ask(line)).ok


@asynccontextmanager
async def own_server(root: Path, **settings: str) -> AsyncIterator[Postgres]:
    server = Postgres(root / "own", log_path=root / "own.log", socket_only=True, durable=False, settings=settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def test_a_server_that_cannot_stream_changes(
    line: Terminal, ask: Ask, run_command: RunCommand, server_root: Path
) -> None:
    async with own_server(server_root, wal_level="replica") as server:
        elsewhere = moved(line, DATABASE_URL=server.url())
        assert (await run_command(elsewhere, "migrate")).code == 0
        said = await ask(elsewhere)
        assert (said.code, said.faults) == (78, {"wal_level_low": "wal_level is replica"})
        connection = await asyncpg.connect(server.url())
        await connection.execute("alter system set wal_level = logical")
        await connection.close()
        await server.stop()
        await server.start()
        assert (await ask(elsewhere)).ok


async def test_a_schema_that_is_older_than_the_code(
    line: Terminal, ask: Ask, run_command: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in migrating.MIGRATIONS.glob("*.sql"):
        (tmp_path / file.name).write_text(file.read_text())
    (tmp_path / "29990101000000_toy.sql").write_text("-- migrate:up\ncreate table a (id int);\n-- migrate:down\n")
    monkeypatch.setattr(migrating, "MIGRATIONS", tmp_path)
    said = await ask(line)
    assert (said.code, said.faults) == (78, {"migrations_pending": "29990101000000_toy.sql"})
    assert "roles" not in said.checks
    assert (await run_command(line, "migrate")).code == 0
    assert (await ask(line)).ok


async def test_a_machine_the_database_does_not_know(
    line: Terminal, ask: Ask, run_command: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = KERNEL_MACHINES[0]
    jump = Edge("jump", *list(known.states)[3:1:-1], Fence.PERSON)
    card = replace(CARD, machines=(Machine(known.table, known.states, [*known.edges.values(), jump]),))
    strange = replace(line, services=(card,))
    said = await ask(strange)
    assert (said.code, said.faults) == (78, {"machine_unknown": "webhook_deliveries lacks the edges jump"})
    for file in migrating.MIGRATIONS.glob("*.sql"):
        (tmp_path / file.name).write_text(file.read_text())
    edge = f"('{known.table}', 'jump', '{jump.source}', '{jump.target}', 'person')"
    (tmp_path / "29990101000000_toy_jump.sql").write_text(
        f"-- migrate:up\ninsert into law.state_edges (table_name, edge, source, target, fence) values {edge};\n"
        "-- migrate:down\n"
    )
    monkeypatch.setattr(migrating, "MIGRATIONS", tmp_path)
    assert (await run_command(strange, "migrate")).code == 0
    assert (await ask(strange)).ok


def bounded(role: str) -> str:
    """What bounds a login role's waits, as the migrations have it."""
    bounds = {"timezone": "UTC", "lock_timeout": "2s", "statement_timeout": "5s"}
    bounds["idle_in_transaction_session_timeout"] = "10s"
    return "; ".join(f"alter role {role} set {name} = '{value}'" for name, value in bounds.items())


@pytest.mark.parametrize(
    ("broken", "remedy"),
    [
        ("alter role rowclaim_cdc nologin", "alter role rowclaim_cdc login"),
        (
            "alter role rowclaim_cdc rename to rowclaim_lost",
            f"create role rowclaim_cdc login; {bounded('rowclaim_cdc')}",
        ),
        (
            "alter role rowclaim_operator rename to rowclaim_lost",
            f"create role rowclaim_operator login in role rowclaim_service; {bounded('rowclaim_operator')}",
        ),
        ("alter role rowclaim_cdc reset statement_timeout", bounded("rowclaim_cdc")),
        ("revoke rowclaim_service from rowclaim_operator", "grant rowclaim_service to rowclaim_operator"),
    ],
)
async def test_a_role_that_is_not_as_it_was_made(
    line: Terminal, ask: Ask, owner: Any, broken: str, remedy: str
) -> None:
    # Roles belong to the whole server: they are put back whatever happens here.
    await owner.execute(broken)
    try:
        said = await ask(line)
        assert (said.code, said.faults) == (78, {"role_amiss": remedy})
        await owner.execute(remedy)
        assert (await ask(line)).ok
    finally:
        if "rename" in broken:
            role = broken.split()[2]
            await owner.execute(f"drop role if exists {role}")
            await owner.execute(f"alter role rowclaim_lost rename to {role}")
        await owner.execute(
            f"{bounded('rowclaim_cdc')}; alter role rowclaim_cdc login; grant rowclaim_service to rowclaim_operator"
        )


async def test_too_few_weeks_for_events(
    line: Terminal, ask: Ask, run_command: RunCommand, owner: Any, clock: Clock
) -> None:
    await clock.shift(timedelta(weeks=7))
    said = await ask(line)
    assert said.faults["event_weeks_few"] == "1 weeks"
    assert CODES["event_weeks_few"].exit == 78
    assert (await run_command(line, "migrate")).code == 0
    said = await ask(line)
    assert "event_weeks_few" not in said.faults
    await clock.shift(timedelta(weeks=-7))
    assert (await ask(line)).ok


async def test_clocks_that_are_apart(line: Terminal, ask: Ask, clock: Clock) -> None:
    for apart in (timedelta(seconds=30), timedelta(seconds=-30)):
        await clock.shift(apart)
        said = await ask(line)
        assert (said.code, list(said.faults)) == (78, ["clock_skew"])
        assert 29 < float(said.faults["clock_skew"].split()[0]) < 60
        await clock.shift(-apart)
    assert (await ask(line)).ok


# ---------------------------------------------------------------------------------------------- what waits for a person
async def test_a_closed_gate(line: Terminal, ask: Ask, run_command: RunCommand, connect: Connect) -> None:
    await Gates(await connect("rowclaim_fulfillment")).close("github", timedelta(hours=1), "bad_credentials", "flush")
    said = await ask(line)
    assert (said.code, list(said.faults)) == (75, ["gate_closed"])
    assert said.faults["gate_closed"].startswith("github until 20")
    assert said.faults["gate_closed"].endswith("(bad_credentials)")
    assert (await run_command(line, "gate", "open", "github", "--reason", "token renewed")).code == 0
    assert (await ask(line)).ok


async def test_an_open_page(line: Terminal, ask: Ask, run_command: RunCommand, connect: Connect) -> None:
    pager = Pager(await connect("rowclaim_fulfillment"))
    await pager.page("crashed:consume:worker", Severity.CRITICAL, "task_crashed")
    said = await ask(line)
    assert (said.code, said.faults) == (1, {"pages_open": "crashed:consume:worker (critical)"})
    assert (await run_command(line, "pages", "resolve", "crashed:consume:worker", "--reason", "repaired")).code == 0
    assert (await ask(line)).ok


async def test_a_parked_delivery(line: Terminal, ask: Ask, connect: Connect, owner: Any) -> None:
    database = await connect("rowclaim_ingress")
    await arrive(database, [Arrival("stripe", "evt_1", "v2.thin", b"{}", parked_reason="thin_event")])
    said = await ask(line)
    assert (said.code, said.faults) == (1, {"deliveries_parked": "1 of ingress: thin_event"})
    # What `rowclaim unpark` writes.
    await owner.execute(
        "update webhook_deliveries set state = 'pending', edge = 'unpark', claim_token = claim_token + 1,"
        " parked_reason = null"
    )
    assert (await ask(line)).ok


async def test_an_old_transaction(
    line: Terminal, ask: Ask, connect: Connect, owner: Any, database_url: DatabaseUrl
) -> None:
    holder = await asyncpg.connect(database_url("rowclaim_reader"), server_settings={"application_name": "report"})
    await holder.execute("begin; select 1 from event_ids")
    pid = await holder.fetchval("select pg_backend_pid()")
    assert (await ask(line)).ok
    # Ten minutes later. The age is the session's own; what is looked at is whether it began before them.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(doctor_module, "TRANSACTION_AGE_MAX", timedelta(0))
        said = await ask(line)
        assert (said.code, list(said.faults)) == (1, ["transaction_old"])
        assert said.faults["transaction_old"].startswith(f"pid {pid} (rowclaim_reader, report) since 20")
        await owner.execute("select pg_terminate_backend($1)", pid)
        await wait_until(holder.is_closed, within_s=10, what="the session is ended")
        assert (await ask(line)).ok


# ---------------------------------------------------------------------------------------------------- the other servers
async def test_no_broker(line: Terminal, ask: Ask, broker_server: BrokerServer) -> None:
    said = await ask(moved(line, KAFKA_BOOTSTRAP="127.0.0.1:1"))
    assert (said.code, list(said.faults)) == (69, ["broker_unreachable"])
    assert said.faults["broker_unreachable"].startswith("127.0.0.1:1: ")
    assert (await ask(moved(line, KAFKA_BOOTSTRAP=broker_server.bootstrap))).ok


async def test_missing_topics(line: Terminal, ask: Ask, run_command: RunCommand, own_broker: BrokerServer) -> None:
    bare = moved(line, KAFKA_BOOTSTRAP=own_broker.bootstrap)
    said = await ask(bare)
    names = ", ".join(name for topic in TOPICS for name in (topic.name, topic.dead_letters))
    assert (said.code, said.faults) == (78, {"topics_missing": names})
    assert (await run_command(bare, "topics")).code == 0
    assert (await ask(bare)).ok


async def test_no_valkey(line: Terminal, ask: Ask, valkey_server: Valkey) -> None:
    said = await ask(moved(line, VALKEY_URL="redis://:letmein@127.0.0.1:1/0"))
    assert (said.code, said.faults) == (69, {"valkey_unreachable": "127.0.0.1:1: ConnectionError"})
    said = await ask(moved(line, VALKEY_URL=valkey_server.url))
    assert (said.ok, said.checks[-1]) == (True, "valkey")


async def test_no_mail_server(line: Terminal, ask: Ask, mail_sink: MailSink) -> None:
    await mail_sink.stop()
    said = await ask(line)
    assert (said.code, list(said.faults)) == (69, ["mail_unreachable"])
    await mail_sink.start()
    assert (await ask(line)).ok


async def test_something_else_at_the_mail_servers_address(line: Terminal, ask: Ask) -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    port = free_port()
    async with await asyncio.start_server(web, "127.0.0.1", port):
        said = await ask(moved(line, SMTP_URL=f"smtp://127.0.0.1:{port}"))
    assert "something else than a mail server" in said.faults["mail_unreachable"]


async def test_the_object_store_and_its_lock(line: Terminal, ask: Ask, object_store: ObjectStore) -> None:
    keys = {"S3_ACCESS_KEY": object_store.access_key, "S3_SECRET_KEY": object_store.secret_key}
    stored = moved(line, S3_URL=object_store.url, S3_BUCKET="doctor-locked", **keys)
    said = await ask(moved(stored, S3_URL="http://127.0.0.1:1"))
    assert (said.code, list(said.faults)) == (69, ["objects_unreachable"])
    said = await ask(moved(stored, S3_SECRET_KEY="wrong"))
    assert (said.code, list(said.faults)) == (69, ["objects_unreachable"])
    said = await ask(stored)
    assert (said.code, list(said.faults)) == (78, ["object_lock_missing"])
    async with object_store.client() as client:
        await client.create_bucket(Bucket="doctor-unlocked")
    said = await ask(moved(stored, S3_BUCKET="doctor-unlocked"))
    assert (said.code, list(said.faults)) == (78, ["object_lock_missing"])
    await object_store.create_locked_bucket("doctor-locked")
    said = await ask(stored)
    assert (said.ok, said.checks[-1]) == (True, "object store")


# ----------------------------------------------------------------------------------------------------- the slices' own
async def test_what_a_slice_finds_amiss_with_its_vendors(line: Terminal, ask: Ask) -> None:
    amiss: list[ServiceError] = [Stop("setting_invalid", "ROWCLAIM_FULFILLMENT_GITHUB_TOKEN: github refuses it")]

    async def checks(runtime: Runtime) -> list[ServiceError]:
        assert (await runtime.database(CARD.role)).role == CARD.role
        return amiss

    checked = replace(line, services=(replace(CARD, checks=checks),))
    said = await ask(checked)
    assert (said.code, said.faults) == (78, {"setting_invalid": amiss[0].detail})
    amiss.clear()
    assert (await ask(checked)).ok


async def test_a_slice_is_not_asked_while_its_ground_is_missing(line: Terminal, ask: Ask) -> None:
    async def checks(_: Runtime) -> list[ServiceError]:
        raise AssertionError("asked")

    checked = replace(line, services=(replace(CARD, checks=checks),))
    said = await ask(moved(checked, DATABASE_URL="postgres://127.0.0.1:1/none"))
    assert list(said.faults) == ["database_unreachable"]
