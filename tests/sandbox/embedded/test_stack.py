import asyncio
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiosmtplib
import asyncpg
import pytest
import pytest_asyncio
from aiokafka.admin import AIOKafkaAdminClient
from redis.asyncio import Redis

from services.sandbox.embedded.broker import find_cluster_id
from services.sandbox.embedded.leftovers import find_run_processes
from services.sandbox.embedded.process import RUN_VARIABLE, StartFailed
from services.sandbox.embedded.stack import Part, Stack, embedded_stack
from tests.fixtures.servers import create_topics
from tests.sandbox.embedded.listening import listening
from tests.waiting import wait_until

QUICK = (Part.POSTGRES, Part.BROKER, Part.VALKEY, Part.MAIL)  # all but the object store, which takes seconds
SERVERS = {"postgres", "tansu", "valkey-server", "weed"}


@pytest.fixture(scope="module")
def run_name() -> Iterator[str]:
    """A run of this module's own, so that what it leaves behind can be told from what others have running."""
    with pytest.MonkeyPatch.context() as patch:
        name = f"run-{secrets.token_hex(6)}"
        patch.setenv(RUN_VARIABLE, name)
        yield name


@pytest.fixture
def own_run(run_name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"{run_name}-{secrets.token_hex(2)}"
    monkeypatch.setenv(RUN_VARIABLE, name)
    return name


def running(run: str) -> list[str]:
    """The names of the servers' programs."""
    return sorted(Path(line.split()[0]).name for _, line in find_run_processes(run))


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def stacks(run_name: str, server_root: Path) -> AsyncIterator[list[Stack]]:
    pair = [Stack(server_root / "one"), Stack(server_root / "two")]
    try:
        await asyncio.gather(*(stack.start() for stack in pair))
        yield pair
    finally:
        for stack in pair:
            await stack.stop()


class TestRunning:
    """Two whole stacks side by side, started once for these tests."""

    pytestmark = pytest.mark.asyncio(loop_scope="class")

    async def test_every_part_answers_under_the_address_in_the_settings(self, stacks: list[Stack]) -> None:
        for stack in stacks:
            settings = stack.settings()
            database = await asyncpg.connect(settings["ROWCLAIM_DATABASE_URL"])
            assert await database.fetchval("select current_database()") == "rowclaim"
            await database.close()
            assert await find_cluster_id(settings["ROWCLAIM_KAFKA_BOOTSTRAP"]) == stack.broker.cluster_id
            async with Redis.from_url(settings["ROWCLAIM_VALKEY_URL"]) as valkey:
                assert await valkey.ping()
            host, port = settings["ROWCLAIM_SMTP_URL"].removeprefix("smtp://").split(":")
            async with aiosmtplib.SMTP(hostname=host, port=int(port), start_tls=False) as smtp:
                assert (await smtp.noop()).code == 250
            assert settings["ROWCLAIM_S3_URL"] == f"http://127.0.0.1:{stack.objects.port}"
            keys = (settings["ROWCLAIM_S3_ACCESS_KEY"], settings["ROWCLAIM_S3_SECRET_KEY"])
            assert keys == (stack.objects.access_key, stack.objects.secret_key)
            await stack.objects.create_locked_bucket("archive")

    async def test_the_settings_are_the_environment_of_a_service_and_hold_no_secret_of_the_database(
        self, stacks: list[Stack]
    ) -> None:
        one, two = (stack.settings() for stack in stacks)
        assert sorted(one) == [
            "ROWCLAIM_DATABASE_URL",
            "ROWCLAIM_KAFKA_BOOTSTRAP",
            "ROWCLAIM_KAFKA_FETCH_WAIT_MS",
            "ROWCLAIM_KAFKA_HEARTBEAT_MS",
            "ROWCLAIM_KAFKA_IDEMPOTENT",
            "ROWCLAIM_KAFKA_SESSION_TIMEOUT_MS",
            "ROWCLAIM_S3_ACCESS_KEY",
            "ROWCLAIM_S3_SECRET_KEY",
            "ROWCLAIM_S3_URL",
            "ROWCLAIM_SMTP_URL",
            "ROWCLAIM_VALKEY_URL",
        ]
        port = stacks[0].postgres.port
        assert one["ROWCLAIM_DATABASE_URL"] == f"postgres://postgres@127.0.0.1:{port}/rowclaim?sslmode=disable"
        waits = [one[f"ROWCLAIM_KAFKA_{name}_MS"] for name in ("FETCH_WAIT", "HEARTBEAT", "SESSION_TIMEOUT")]
        assert waits == ["20", "300", "3000"]
        assert one["ROWCLAIM_KAFKA_IDEMPOTENT"] == "false"
        addresses = [name for name in one if name.endswith(("_URL", "_BOOTSTRAP", "_KEY"))]
        assert [name for name in addresses if one[name] == two[name]] == []

    async def test_each_child_carries_the_name_of_the_run(self, stacks: list[Stack], run_name: str) -> None:
        """Some programs write their title over their environment: they are told not to."""
        assert running(run_name) == sorted([*SERVERS, *SERVERS])

    async def test_nothing_listens_beyond_loopback(self, stacks: list[Stack]) -> None:
        servers = [server for stack in stacks for server in (stack.postgres, stack.broker, stack.valkey, stack.objects)]
        heard = [address for server in servers for address in listening(server.process.pid)]
        assert {host for host, _ in heard} == {"127.0.0.1"}
        assert len(heard) == len(set(heard)) == 2 * (3 + 8)
        assert [port for _, port in heard if not 20_000 <= port <= 32_000] == []

    async def test_a_wiped_broker_is_back_under_its_address_without_its_topics(self, stacks: list[Stack]) -> None:
        stack = stacks[0]
        before = stack.broker.bootstrap
        await create_topics(before, {"lost.v1": 1})
        await stack.wipe_broker()
        assert stack.settings()["ROWCLAIM_KAFKA_BOOTSTRAP"] == before
        admin = AIOKafkaAdminClient(bootstrap_servers=before)
        await admin.start()
        assert await admin.list_topics() == []
        await admin.close()

    async def test_a_second_stack_in_the_same_directory_is_refused(self, stacks: list[Stack]) -> None:
        with pytest.raises(StartFailed) as refused:
            await Stack(stacks[0].data_dir, parts=[Part.VALKEY]).start()
        assert refused.value.code.name == "server_already_running"
        assert f"process {os.getpid()} works in {stacks[0].data_dir}" in str(refused.value)


async def test_a_stop_leaves_nothing_and_the_data_is_there_at_the_next_start(own_run: str, server_root: Path) -> None:
    data = server_root / "again"
    async with embedded_stack(data, parts=[Part.POSTGRES, Part.BROKER]) as stack:
        assert running(own_run) == ["postgres", "tansu"]
        assert sorted(stack.settings()) == [
            "ROWCLAIM_DATABASE_URL",
            "ROWCLAIM_KAFKA_BOOTSTRAP",
            "ROWCLAIM_KAFKA_FETCH_WAIT_MS",
            "ROWCLAIM_KAFKA_HEARTBEAT_MS",
            "ROWCLAIM_KAFKA_IDEMPOTENT",
            "ROWCLAIM_KAFKA_SESSION_TIMEOUT_MS",
        ]
        database = await asyncpg.connect(stack.postgres.url("rowclaim"))
        await database.execute("create table kept (id int)")
        await database.close()
        started = time.monotonic()
    assert time.monotonic() - started < 10
    assert running(own_run) == []
    (data / "log" / "postgres.log").write_text("of an earlier run")
    async with embedded_stack(data, parts=[Part.POSTGRES], postgres_settings={"timezone": "Asia/Kathmandu"}) as stack:
        database = await asyncpg.connect(stack.postgres.url("rowclaim"))
        assert await database.fetchval("select count(*) from kept") == 0
        assert await database.fetchval("select current_setting('timezone')") == "Asia/Kathmandu"
        await database.close()
        assert "of an earlier run" not in (data / "log" / "postgres.log").read_text()


async def test_when_we_are_killed_everything_is_gone_at_once_and_starts_again(own_run: str, server_root: Path) -> None:
    data = server_root / "killed"
    with stack_process(data) as parent:
        assert parent.stdout is not None
        await asyncio.to_thread(parent.stdout.readline)
        assert set(running(own_run)) >= SERVERS
        parent.kill()
    await wait_until(lambda: running(own_run) == [], within_s=5, what="every server is gone")
    async with embedded_stack(data, parts=QUICK) as stack:
        database = await asyncpg.connect(stack.postgres.url("rowclaim"))
        assert await database.fetchval("select id from paid") == 1
        await database.close()
        stack.objects._tidy()  # what its next start would do: remove the sockets of the one that was killed


def stack_process(data: Path) -> subprocess.Popen[str]:
    code = (
        "import asyncio, asyncpg, sys\n"
        "from pathlib import Path\n"
        "from services.sandbox.embedded.stack import embedded_stack\n"
        "async def main():\n"
        "    async with embedded_stack(Path(sys.argv[1])) as stack:\n"
        "        database = await asyncpg.connect(stack.postgres.url('rowclaim'))\n"
        "        await database.execute('create table paid (id int); insert into paid values (1)')\n"
        "        print('up', flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    return subprocess.Popen([sys.executable, "-c", code, str(data)], stdout=subprocess.PIPE, text=True)


async def test_a_boot_that_fails_half_way_leaves_nothing_and_says_why(
    own_run: str, server_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = Stack(server_root / "half-failed", parts=QUICK)

    async def fail_late() -> None:
        await wait_until(
            lambda: stack.postgres.process.alive and stack.broker.process.alive, within_s=30, what="others are up"
        )
        raise StartFailed("Valkey", "its disk is full")

    monkeypatch.setattr(stack.postgres, "_process", NotYet())
    monkeypatch.setattr(stack.broker, "_process", NotYet())
    monkeypatch.setattr(stack.valkey, "start", fail_late)
    with pytest.raises(StartFailed, match="Valkey: its disk is full"):
        await stack.start()
    assert running(own_run) == []
    monkeypatch.undo()
    monkeypatch.setenv(RUN_VARIABLE, own_run)
    await stack.start()  # nothing is held that would stand in the way
    await stack.stop()
    assert running(own_run) == []


class NotYet:
    """A process that was not spawned yet."""

    alive = False

    async def stop(self) -> None: ...


async def test_a_cancelled_boot_leaves_nothing(own_run: str, server_root: Path) -> None:
    stack = Stack(server_root / "cancelled", parts=QUICK)
    starting = asyncio.create_task(stack.start())
    await wait_until(lambda: running(own_run), within_s=30, what="something was spawned")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert running(own_run) == []


async def test_the_database_is_stopped_last_and_a_part_that_fails_to_stop_keeps_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = Stack(tmp_path / "data")
    stopped: list[str] = []

    def stopping(part: Part, *, fails: bool) -> Any:
        async def stop() -> None:
            stopped.append(part)
            if fails:
                raise OSError("it does not want to")

        return stop

    for part, server in stack._servers.items():
        monkeypatch.setattr(server, "stop", stopping(part, fails=part is Part.BROKER))
    with pytest.raises(ExceptionGroup, match="embedded servers did not stop cleanly") as failed:
        await stack.stop()
    assert [str(failure) for failure in failed.value.exceptions] == ["it does not want to"]
    assert sorted(stopped) == sorted(Part)
    assert stopped[-1] == Part.POSTGRES
