"""`rowclaim up`: a whole installation by one command, which goes as it came and leaves nothing behind."""

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import httpx
import pytest

from services.kernel.errors import Stop
from services.operations.terminal import Terminal
from services.operations.up import stay
from services.sandbox.control import SandboxControl
from services.sandbox.embedded import packages
from services.sandbox.embedded.leftovers import find_run_processes
from services.sandbox.embedded.process import free_port
from services.sandbox.wire import AwaitIdle, CreateClerkUser
from tests.operations.conftest import TOY, log_sender
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Up:
    """One running `rowclaim up` and where it says everything is."""

    process: "subprocess.Popen[str]"
    run: str
    told: Path

    def places(self) -> dict[str, str] | None:
        assert self.process.poll() is None, self.told.read_text()
        lines = self.told.read_text().splitlines(keepends=True)
        places: dict[str, str] | None = json.loads(lines[0]) if lines and lines[0].endswith("\n") else None
        return places

    async def end(self) -> int:
        await wait_until(lambda: self.process.poll() is not None, within_s=120, what="up ends")
        return self.process.returncode

    def leftovers(self) -> list[tuple[int, str]]:
        return find_run_processes(self.run)


@contextmanager
def rowclaim_up(tmp_path: Path, *arguments: str) -> Iterator[Up]:
    """`rowclaim up --json` under a run name of its own, on a free port."""
    run = f"up-{os.getpid()}-{free_port()}"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROWCLAIM_")}
    env = inherited | {"ROWCLAIM_RUN": run, "ROWCLAIM_HTTP_PORT": str(free_port())}
    told = tmp_path / "out"
    with told.open("w") as out, (tmp_path / "err").open("w") as err:
        command = [sys.executable, "-m", "services", "up", "--json", *arguments]
        process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=out, stderr=err, text=True)
    try:
        yield Up(process, run, told)
    finally:
        process.kill()
        process.wait()


async def to_end(*command: str, env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return await asyncio.to_thread(
        subprocess.run, command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


async def started(up: Up) -> dict[str, str]:
    places = await wait_until(up.places, within_s=120, what="up says where everything is")
    assert places is not None
    return places


async def seen(places: dict[str, str]) -> int:
    """How many events the database holds."""
    connection = await asyncpg.connect(places["database"])
    count: int = await connection.fetchval("select count(*) from event_ids")
    await connection.close()
    return count


async def check_tokens(places: dict[str, str], command_line: str) -> None:
    """The API takes the tokens of this installation's sandbox, and what their role allows."""
    url = f"{places['http']}/admin/vendors/github/gate/close"
    statuses = []
    async with httpx.AsyncClient(trust_env=False) as http:
        for asked in ("token user_1 --role admin", "token user_1"):
            done = await to_end("/bin/sh", "-c", command_line + asked, env=dict(os.environ))
            assert done.returncode == 0, done.stderr
            bearer = {"authorization": f"Bearer {done.stdout.strip()}"}
            answer = await http.post(url, headers=bearer, json={"reason": "the tokens are tried", "minutes": 1})
            statuses.append(answer.status_code)
        statuses.append((await http.post(url, json={"reason": "without"})).status_code)
    assert statuses == [200, 403, 401]


async def test_everything_is_there_dies_with_us_comes_back_and_goes(tmp_path: Path, server_root: Path) -> None:
    data = server_root / "up"
    with rowclaim_up(tmp_path, "--data", str(data)) as up:
        places = await started(up)
        assert places["run"] == up.run
        async with httpx.AsyncClient(trust_env=False) as http:
            for url in (places["http"], places["health_of_consumers"]):
                assert (await http.get(f"{url}/health/ready")).status_code == 200
        # A sender outside: signed, over HTTP, into the database.
        async with SandboxControl(places["control"]) as control:
            await control.do(CreateClerkUser("ann@example.com"))
            assert await control.do(AwaitIdle(within_s=30))
        assert await seen(places) == 1
        # Whatever else is typed, is typed against it.
        typed = f". {shlex.quote(places['settings'])} && exec {shlex.quote(sys.executable)} -m services doctor --json"
        doctor = await to_end("/bin/sh", "-c", typed, env=dict(os.environ))
        assert doctor.returncode == 0, doctor.stdout + doctor.stderr
        await check_tokens(places, typed.removesuffix("doctor --json"))
        assert places["call"].endswith(f'"authorization: Bearer $(rowclaim token user_1)" {places["http"]}/fulfillment')
        assert places["settings"] in places["call"]
        assert len(up.leftovers()) >= 7
        up.process.kill()
        await wait_until(lambda: not up.leftovers(), within_s=20, what="everything died with it")
    with rowclaim_up(tmp_path, "--data", str(data)) as up:
        assert await seen(await started(up)) == 1
        up.process.send_signal(signal.SIGINT)
        assert await up.end() == 0, (tmp_path / "err").read_text()
        assert up.leftovers() == []


async def test_a_stop_during_the_start_leaves_nothing(tmp_path: Path) -> None:
    with rowclaim_up(tmp_path) as up:
        await wait_until(lambda: len(up.leftovers()) > 2, within_s=120, what="the first servers run")
        up.process.send_signal(signal.SIGTERM)
        assert await up.end() == 0, (tmp_path / "err").read_text()
        assert up.told.read_text() == ""
        assert up.leftovers() == []


async def test_where_the_servers_cannot_run_it_says_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.platform, "machine", lambda: "riscv64")
    with pytest.raises(Stop, match="platform_unsupported") as stopped:
        await stay(Terminal((TOY,), log_sender, {}), tmp_path, as_json=True)
    assert stopped.value.code.exit == 78
    assert "ROWCLAIM_DATABASE_URL" in stopped.value.detail


async def test_a_taken_port_stops_it_with_the_ports_own_code(tmp_path: Path, server_root: Path) -> None:
    # Whoever listens there would answer the probes of our front door as if it were ours.
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "services", "up", "--data", str(server_root / "taken")]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROWCLAIM_")}
        done = await to_end(*command, env=inherited | {"ROWCLAIM_HTTP_PORT": str(taken.getsockname()[1])})
    assert done.returncode == 69
    assert done.stderr.startswith("rowclaim: port_taken: ")
    assert done.stdout == ""


async def test_a_place_that_cannot_be_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = await to_end(sys.executable, "-m", "services", "up", "--data", str(tmp_path / "file"), env=dict(os.environ))
    assert done.returncode == 2
    # The box around it folds where it likes.
    assert "Fileexists" in "".join(done.stderr.replace("│", "").split())


async def test_a_misspelt_setting_stops_it_before_anything_starts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "services", "up", "--data", str(tmp_path / "data")]
    done = await to_end(*command, env=os.environ | {"ROWCLAIM_HTPP_PORT": "1"})
    assert done.returncode == 78
    assert "did you mean ROWCLAIM_HTTP_PORT?" in done.stderr
    assert not (tmp_path / "data").exists()
