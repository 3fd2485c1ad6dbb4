import asyncio
import os
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from services.sandbox.embedded import postgres
from services.sandbox.embedded.postgres import Postgres
from services.sandbox.embedded.process import Command, ExitedEarly, StartFailed, free_port, spawn
from tests.fixtures.servers import run
from tests.sandbox.embedded.listening import listening
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def initialised(server_root: Path) -> Iterator[Postgres]:
    """A server of this module's own, durable and over TCP, that its tests stop, kill and start."""
    server = Postgres(server_root / "own", log_path=server_root / "own.log")
    run(server.start())
    yield server
    run(server.stop())


@pytest.fixture
async def server(initialised: Postgres) -> Postgres:
    """The same, running again if the test before left it down."""
    if not initialised.process.alive:
        await initialised.start()
    return initialised


@asynccontextmanager
async def connected(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def show(url: str, *names: str) -> list[str]:
    async with connected(url) as connection:
        return [await connection.fetchval("select current_setting($1)", name) for name in names]


async def refused(server: Postgres) -> str | None:
    """Why it did not start."""
    try:
        await server.start()
    except StartFailed as failed:
        return str(failed)
    return None


async def test_is_postgresql_18_as_the_services_need_it(server: Postgres) -> None:
    names = ["wal_level", "max_wal_senders", "max_replication_slots", "max_slot_wal_keep_size", "wal_sender_timeout"]
    assert await show(server.url(), *names) == ["logical", "8", "8", "1GB", "5s"]
    assert await show(server.url(), "server_encoding", "fsync", "full_page_writes", "synchronous_commit") == [
        "UTF8",
        "on",
        "on",
        "on",
    ]
    async with connected(server.url()) as connection:
        assert await connection.fetchval("select current_setting('server_version_num')::int / 10000") == 18


async def test_over_tcp_it_listens_on_loopback_alone_and_on_no_socket(server: Postgres) -> None:
    assert await show(server.url(), "listen_addresses", "unix_socket_directories") == ["127.0.0.1", ""]
    assert server.socket_dir is None
    assert listening(server.process.pid) == {("127.0.0.1", server.port)}


async def test_the_fast_server_has_no_port_and_waits_for_no_disk(postgres_server: Postgres) -> None:
    assert await show(postgres_server.url(), "listen_addresses", "fsync", "full_page_writes", "synchronous_commit") == [
        "",
        "off",
        "off",
        "off",
    ]
    assert listening(postgres_server.process.pid) == set()


async def test_the_durable_socket_server_comes_back_after_a_kill_under_its_address(
    durable_postgres_server: Postgres,
) -> None:
    address = durable_postgres_server.url("kept")
    assert await show(durable_postgres_server.url(), "listen_addresses", "fsync", "synchronous_commit", "timezone") == [
        "",
        "on",
        "on",
        "Pacific/Chatham",  # given by the fixture: further settings win
    ]
    await durable_postgres_server.create_database("kept")
    async with connected(address) as connection:
        await connection.execute("create table if not exists paid (id int); truncate paid; insert into paid values (1)")
    durable_postgres_server.kill()
    await durable_postgres_server.start()
    assert durable_postgres_server.url("kept") == address
    async with connected(address) as connection:
        assert await connection.fetchval("select id from paid") == 1


async def test_after_an_orderly_stop_the_address_is_the_same_and_the_socket_was_gone(
    durable_postgres_server: Postgres,
) -> None:
    address, folder = durable_postgres_server.url(), durable_postgres_server.socket_dir
    assert folder is not None
    await durable_postgres_server.stop()
    assert not folder.exists()
    await durable_postgres_server.start()
    assert durable_postgres_server.url() == address
    assert await show(address, "port") == ["5432"]


async def test_creates_a_database_once_whatever_its_name(server: Postgres) -> None:
    name = """odd "name"; it's ours"""
    await server.create_database(name)
    await server.create_database(name)
    async with connected(server.url()) as connection:
        assert await connection.fetchval("select count(*) from pg_database where datname = $1", name) == 1


async def test_a_stop_ends_open_sessions_and_is_clean(server: Postgres) -> None:
    connection = await asyncpg.connect(server.url())
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("create table open_work (id int)")
    started = time.monotonic()
    await server.stop()
    assert time.monotonic() - started < 5
    assert server.process.exit_code == 0  # the fast shutdown, neither the quit nor the kill after it
    connection.terminate()


async def test_what_our_environment_says_to_postgresql_does_not_reach_it(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.stop()
    for name, value in {"PGPORT": "1", "PGDATA": "/nowhere", "LC_ALL": "xx_XX", "TZ": "Asia/Kathmandu"}.items():
        monkeypatch.setenv(name, value)
    await server.start()
    assert await show(server.url(), "port") == [str(server.port)]


async def test_a_lock_file_of_a_pid_that_somebody_else_has_by_now_is_removed(server: Postgres, tmp_path: Path) -> None:
    """PostgreSQL would refuse for ever: it sees a live process of its own user."""
    await server.stop()
    stranger = spawn(
        Command(
            name="stranger",
            argv=("/bin/sleep", "600"),
            log_path=tmp_path / "log",
            death_signal=signal.SIGKILL,
            identity=server.process.command.identity,
        )
    )
    try:
        lock = server.data_dir / "postmaster.pid"
        lock.write_text(f"{stranger.pid}\n{server.data_dir}\n1796000000\n{server.port}\n\n127.0.0.1\n\nready   \n")
        await server.start()
        assert lock.read_text().split()[0] == str(server.process.pid)
        assert stranger.alive
    finally:
        stranger.kill()


async def test_a_lock_file_of_a_dead_pid_is_no_obstacle(server: Postgres) -> None:
    server.kill()
    assert (server.data_dir / "postmaster.pid").exists()
    await server.start()
    assert await show(server.url(), "wal_level") == ["logical"]


async def test_a_second_server_on_live_data_is_refused_and_the_first_goes_on(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_EARLIER_GONE_WITHIN_S", 0.1)
    second = Postgres(server.data_dir, log_path=tmp_path / "log")
    with pytest.raises(StartFailed) as refused:
        await second.start()
    assert refused.value.code.name == "server_already_running"
    assert f"process {server.process.pid} serves {server.data_dir} already" in str(refused.value)
    assert await show(server.url(), "wal_level") == ["logical"]


async def test_a_start_waits_for_an_earlier_server_that_is_about_to_end(server: Postgres, tmp_path: Path) -> None:
    """Its parent was killed a moment ago."""
    second = Postgres(server.data_dir, log_path=tmp_path / "log", port=free_port())
    starting = asyncio.create_task(second.start())
    await asyncio.sleep(0.05)
    assert not starting.done()
    await server.stop()
    await starting
    try:
        assert await show(second.url(), "wal_level") == ["logical"]
    finally:
        await second.stop()


async def test_a_given_port_that_is_taken_fails_with_what_the_log_says(server: Postgres) -> None:
    await server.stop()
    with (
        socket.create_server(("127.0.0.1", server.port)),
        pytest.raises(ExitedEarly, match=r"exited with code 1\n(.|\n)*Address already in use"),
    ):
        await server.start()
    assert not server.process.alive


async def test_a_start_that_is_given_up_leaves_nothing(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    await server.stop()

    async def never(self: Postgres) -> bool:
        return False

    monkeypatch.setattr(Postgres, "_is_ready", never)
    starting = asyncio.create_task(server.start())
    await wait_until(lambda: server.process.alive, within_s=10, what="the server is spawned")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not server.process.alive


async def test_modes_and_owners_above_the_data_stay_as_they_are(server_root: Path) -> None:
    """Nothing is opened up for PostgreSQL's sake, also not by root, also not a private folder."""
    private = server_root / "private"
    private.mkdir(mode=0o700)
    server = Postgres(private / "deep" / "data", log_path=server_root / "private.log", socket_only=True, durable=False)
    above = [private, *private.parents]
    before = [(path.stat().st_mode, path.stat().st_uid, path.stat().st_gid) for path in above]
    refusal = await refused(server)
    await server.stop()
    assert [(path.stat().st_mode, path.stat().st_uid, path.stat().st_gid) for path in above] == before
    # as root where user namespaces are refused, it is said and not worked around
    assert refusal is None or (os.geteuid() == 0 and "it does not run as root" in refusal)


async def test_a_path_longer_than_a_sockets_may_be_is_no_obstacle(server_root: Path, initialised: Postgres) -> None:
    long = server_root / ("long-" * 30)
    await initialised.stop()
    await asyncio.to_thread(shutil.copytree, initialised.data_dir, long)
    for path in (long, *long.rglob("*")):
        shutil.chown(path, initialised.data_dir.stat().st_uid, initialised.data_dir.stat().st_gid)
    server = Postgres(long, log_path=server_root / "long.log", socket_only=True, durable=False)
    await server.start()
    try:
        assert len(str(server.socket_dir)) < 40
        assert await show(server.url(), "data_directory") == [str(long)]
    finally:
        await server.stop()


async def test_an_initialisation_that_was_killed_half_way_is_begun_anew(server_root: Path) -> None:
    server = Postgres(server_root / "half", log_path=server_root / "half.log", socket_only=True, durable=False)
    fresh = server_root / "half.new"
    fresh.mkdir()
    (fresh / "PG_VERSION").write_text("18\n")
    server.data_dir.mkdir()  # an empty directory is taken over
    await server.start()
    try:
        assert await show(server.url(), "wal_level") == ["logical"]
        assert not fresh.exists()
    finally:
        await server.stop()


async def test_a_directory_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("years of work")
    with pytest.raises(StartFailed, match="holds something else than its data"):
        await Postgres(tmp_path / "data", log_path=tmp_path / "log").start()
    assert (tmp_path / "data" / "thesis.txt").read_text() == "years of work"


async def test_an_initdb_that_fails_is_said_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "SUPERUSER", "pg_reserved")
    with pytest.raises(StartFailed, match=r"initdb failed\n(.|\n)*pg_"):
        await Postgres(tmp_path / "data", log_path=tmp_path / "log").start()
    assert not (tmp_path / "data").exists()
