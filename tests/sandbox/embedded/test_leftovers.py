import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.sandbox.embedded import leftovers
from services.sandbox.embedded.leftovers import command_line, find_run_processes
from services.sandbox.embedded.process import RUN_VARIABLE, Command, ServerProcess, spawn

BY_PS = [False, True]  # Linux reads /proc; the way of systems without it is tried here too


@pytest.fixture(params=BY_PS, ids=["proc", "ps"])
def by_ps(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(leftovers, "_PROC", tmp_path / "no-proc")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"run-{secrets.token_hex(6)}"
    monkeypatch.setenv(RUN_VARIABLE, name)
    return name


@pytest.fixture
def child(run: str, tmp_path: Path) -> Iterator[ServerProcess]:
    process = spawn(
        Command(name="c", argv=("/bin/sleep", "600"), log_path=tmp_path / "log", death_signal=signal.SIGKILL)
    )
    yield process
    process.kill()


@pytest.mark.usefixtures("by_ps")
def test_finds_what_carries_the_name_of_the_run_and_nothing_else(run: str, child: ServerProcess) -> None:
    [(pid, line)] = find_run_processes(run)
    assert (pid, line.startswith("/bin/sleep 600")) == (child.pid, True)
    assert find_run_processes(run[:-1]) == []
    child.kill()
    assert find_run_processes(run) == []


@pytest.mark.usefixtures("by_ps")
def test_does_not_count_the_one_who_asks_nor_those_above(run: str, child: ServerProcess) -> None:
    ask = (
        "import sys; from pathlib import Path; from services.sandbox.embedded import leftovers;"
        "leftovers._PROC = Path(sys.argv[1]); print([pid for pid, _ in leftovers.find_run_processes(sys.argv[2])])"
    )
    # the asking process and its parent both carry the name
    done = subprocess.run(
        ["/bin/sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", ask, str(leftovers._PROC), run],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"[{child.pid}]\n"


@pytest.mark.usefixtures("by_ps")
def test_tells_what_a_pid_runs(child: ServerProcess) -> None:
    assert command_line(child.pid) == "/bin/sleep 600"
    child.kill()
    assert command_line(child.pid) is None


def test_an_unreaped_child_runs_nothing() -> None:
    pid = os.posix_spawn("/bin/true", ["/bin/true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert command_line(pid) == ""
    os.waitpid(pid, 0)
