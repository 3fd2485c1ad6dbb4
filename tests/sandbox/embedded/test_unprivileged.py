import os
import pwd
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.sandbox.embedded import packages, unprivileged
from services.sandbox.embedded.postgres import Postgres
from services.sandbox.embedded.process import SAME, USER_NAMESPACE, Command, StartFailed, run_to_end
from services.sandbox.embedded.unprivileged import identity_for

# PostgreSQL refuses root, so what is shown here differs by who runs the tests; either way something is.
ROOT = os.geteuid() == 0
NOBODY_UID = pwd.getpwnam("nobody").pw_uid
NOBODY = f"{NOBODY_UID}:{pwd.getpwnam('nobody').pw_gid}"


@pytest.fixture
def folder(server_root: Path) -> Iterator[Path]:
    path = server_root / "identity"
    path.mkdir(mode=0o700)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def no_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in many containers."""
    real = unprivileged._refusal

    async def refusal(directory: Path, program: Path, identity: str) -> str | None:
        if identity == USER_NAMESPACE:
            return "unshare: Operation not permitted"
        return await real(directory, program, identity)

    monkeypatch.setattr(unprivileged, "_refusal", refusal)


def owner(path: Path) -> int:
    return path.stat().st_uid


async def test_an_ordinary_user_stays_himself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert await identity_for(folder, packages.postgres_binary()) == SAME


async def test_as_root_nothing_changes_hands_where_namespaces_are_allowed(folder: Path) -> None:
    identity = await identity_for(folder, packages.postgres_binary())
    assert identity in ((USER_NAMESPACE, NOBODY) if ROOT else (SAME,))
    assert (owner(folder) == os.geteuid()) is (identity != NOBODY)


async def test_in_the_namespace_a_program_is_not_root(folder: Path) -> None:
    identity = await identity_for(folder, packages.postgres_binary())
    command = Command(
        name="id",
        argv=("/usr/bin/id", "-u"),
        death_signal=signal.SIGKILL,
        identity=identity,
    )
    done = await run_to_end(command, within_s=10)
    assert (done.exit_code, done.said.strip() == "0") == (0, False)


@pytest.mark.usefixtures("no_namespaces")
async def test_where_namespaces_are_refused_root_serves_as_nobody(server_root: Path) -> None:
    """And keeps serving data that nobody owns, also where a namespace is allowed later."""
    data = server_root / "nobody"
    server = Postgres(data, log_path=server_root / "nobody.log", socket_only=True, durable=False)
    await server.start()
    try:
        assert server.process.command.identity == (NOBODY if ROOT else SAME)
        owners = {path.stat().st_uid for path in (data, *data.rglob("*"))}
        assert owners == {NOBODY_UID} if ROOT else {os.geteuid()}
        await server.create_database("works")
    finally:
        await server.stop()
    assert await identity_for(data, packages.postgres_binary()) == (NOBODY if ROOT else SAME)


@pytest.mark.usefixtures("no_namespaces")
async def test_data_made_in_a_namespace_goes_to_nobody_as_a_whole_where_they_are_refused_later(folder: Path) -> None:
    file = folder / "base" / "1"
    file.parent.mkdir()
    file.touch()
    assert await identity_for(folder, packages.postgres_binary()) == (NOBODY if ROOT else SAME)
    assert {owner(path) for path in (folder, file.parent, file)} == {NOBODY_UID if ROOT else os.geteuid()}


async def test_root_serves_another_users_data_as_that_user(folder: Path) -> None:
    """Who ran us without root before can do so again afterwards."""
    if ROOT:
        os.chown(folder, 12_345, 12_346)
    assert await identity_for(folder, packages.postgres_binary()) == ("12345:12346" if ROOT else SAME)
    assert owner(folder) == (12_345 if ROOT else os.geteuid())


@pytest.mark.usefixtures("no_namespaces")
async def test_where_neither_will_do_root_is_told_and_nothing_has_changed_hands(server_root: Path) -> None:
    """Nobody cannot pass a private folder, whose mode is not ours to change."""
    data = server_root / "closed" / "data"
    data.parent.mkdir(mode=0o700)
    data.mkdir(mode=0o755)
    if ROOT:
        with pytest.raises(StartFailed) as failed:
            await identity_for(data, packages.postgres_binary())
        assert "as a user namespace (unshare: Operation not permitted) nor as the user nobody ([Errno 13]" in str(
            failed.value
        )
        assert "ROWCLAIM_DATABASE_URL" in str(failed.value)
    else:
        assert await identity_for(data, packages.postgres_binary()) == SAME
    assert [(path.stat().st_mode & 0o777, path.stat().st_uid) for path in (data.parent, data)] == [
        (0o700, os.geteuid()),
        (0o755, os.geteuid()),
    ]
