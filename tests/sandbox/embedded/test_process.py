import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.sandbox.embedded import keeper, process
from services.sandbox.embedded.leftovers import find_run_processes
from services.sandbox.embedded.process import (
    RUN_VARIABLE,
    Command,
    ExitedEarly,
    Finished,
    ServerProcess,
    StartFailed,
    StopStep,
    free_port,
    free_ports,
    is_free,
    run_id,
    run_to_end,
    spawn,
    until_ready,
)
from tests.waiting import wait_until

SLEEP = ("/bin/sleep", "600")
MODES = ["exec", "hold"]  # Linux's way and the one for systems without a death signal: both run here


@pytest.fixture
def spawned(tmp_path: Path) -> Iterator[Any]:
    """spawn(*argv, ...) with a log of its own; whatever still runs at the end is killed."""
    children: list[ServerProcess] = []

    def start(*argv: str | Path, **fields: Any) -> ServerProcess:
        log_path = tmp_path / f"{len(children)}.log"
        values: dict[str, Any] = {"name": "child", "death_signal": signal.SIGKILL, "log_path": log_path} | fields
        children.append(spawn(Command(argv=argv, **values)))
        return children[-1]

    yield start
    for child in children:
        child.kill()


def script(child: ServerProcess) -> str:
    """What the child has printed so far."""
    return child.command.log_path.read_text()


def python(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def exists(pid: int) -> bool:
    """Whether `pid` is alive; a zombie that its new parent has not reaped is not."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("mode", MODES)
async def test_a_child_dies_with_its_sigkilled_parent(mode: str, tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "from pathlib import Path\n"
        "from services.sandbox.embedded.process import Command, spawn\n"
        f"argv, log, mode = {SLEEP!r}, Path({str(tmp_path / 'log')!r}), {mode!r}\n"
        "child = spawn(Command(name='child', argv=argv, log_path=log, death_signal=signal.SIGTERM, mode=mode))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with python(code) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert exists(child)
        parent.kill()
    await wait_until(lambda: not exists(child), within_s=5, what="the child is gone")


@pytest.mark.parametrize("mode", MODES)
async def test_the_death_signal_that_was_asked_for_is_the_one_that_comes(mode: str, tmp_path: Path) -> None:
    told = tmp_path / "told"
    shell = f"trap 'echo interrupted > {told}; exit' INT; echo ready; while :; do sleep 0.02; done"
    code = (
        "import signal, sys, time\n"
        "from pathlib import Path\n"
        "from services.sandbox.embedded.process import Command, spawn\n"
        f"argv, log, mode = ('/bin/sh', '-c', {shell!r}), Path({str(tmp_path / 'log')!r}), {mode!r}\n"
        "spawn(Command(name='child', argv=argv, log_path=log, death_signal=signal.SIGINT, mode=mode))\n"
        "time.sleep(600)\n"
    )
    with python(code) as parent:
        log = tmp_path / "log"
        await wait_until(lambda: log.exists() and "ready" in log.read_text(), within_s=10, what="the trap is set")
        parent.kill()
    await wait_until(told.exists, within_s=5, what="the child was interrupted")


def test_a_parent_that_died_before_the_tie_was_made_leaves_no_child(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    reader, writer = os.pipe()
    argv = [
        keeper.__file__,
        "1",
        str(int(signal.SIGKILL)),
        "same",
        "exec",
        str(writer),
        "/",
        "/usr/bin/touch",
        str(mark),
    ]
    done = subprocess.run(
        [sys.executable, "-I", "-S", *argv], pass_fds=(writer,), check=False
    )  # pid 1 is not its parent
    os.close(reader)
    os.close(writer)
    assert (done.returncode, mark.exists()) == (keeper.CANNOT_START, False)


def test_spawning_from_another_thread_is_refused(tmp_path: Path) -> None:
    """Linux would end the server together with that thread."""
    refusals: list[str] = []

    def attempt() -> None:
        try:
            spawn(Command(name="child", argv=SLEEP, log_path=tmp_path / "log", death_signal=signal.SIGKILL))
        except RuntimeError as refusal:
            refusals.append(str(refusal))

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert refusals == ["child: spawn from the main thread, a server dies with the thread that made it"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_child_sees_our_environment_only_as_far_as_we_say(
    mode: str, spawned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUST_LOG", "trace")
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv(RUN_VARIABLE, "run-of-this-test")
    child = spawned("/usr/bin/env", mode=mode, environment={"OWN": "yes"})
    await wait_until(lambda: not child.alive, within_s=5, what="env has printed")
    assert sorted(script(child).split()) == [
        "LC_ALL=C",
        "OWN=yes",
        "PATH=/usr/bin:/bin",
        "ROWCLAIM_RUN=run-of-this-test",
    ]


@pytest.mark.parametrize("mode", MODES)
def test_a_terminals_signals_do_not_reach_a_child(mode: str, spawned: Any) -> None:
    child = spawned(*SLEEP, mode=mode)
    assert os.getsid(child.pid) != os.getsid(0)


@pytest.mark.parametrize("mode", MODES)
async def test_a_child_starts_with_every_signal_at_its_default(
    mode: str, spawned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python ignores SIGPIPE, a background shell job SIGINT; a server would inherit both."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = spawned("/bin/grep", "-E", "SigIgn|SigBlk", "/proc/self/status", mode=mode)
        await wait_until(lambda: not child.alive, within_s=5, what="grep has printed")
    finally:
        signal.signal(signal.SIGINT, before)
    # From 32 on they are the C library's own, which no program may set: some runners have them ignored.
    ours = (1 << 31) - 1
    assert [int(line.split()[1], 16) & ours for line in script(child).splitlines()] == [0, 0]


@pytest.mark.parametrize("mode", MODES)
def test_a_program_that_cannot_be_executed_is_said_at_once(mode: str, spawned: Any) -> None:
    with pytest.raises(StartFailed) as failed:
        spawned("/nowhere/server", mode=mode)
    assert failed.value.code.name == "server_start_failed"
    assert "child: [Errno 2] No such file or directory" in str(failed.value)


@pytest.mark.parametrize("mode", MODES)
async def test_stop_sends_what_the_command_says(mode: str, spawned: Any) -> None:
    shell = "trap 'echo stopped; exit 3' INT; echo ready; while :; do sleep 0.02; done"
    child = spawned("/bin/sh", "-c", shell, mode=mode, stop=(StopStep(signal.SIGINT, 10.0),))
    await wait_until(lambda: "ready" in script(child), within_s=5, what="the trap is set")
    await child.stop()
    assert (child.exit_code, "stopped" in script(child)) == (3, True)


@pytest.mark.parametrize("mode", MODES)
async def test_stop_goes_on_to_force_and_may_be_repeated(mode: str, spawned: Any) -> None:
    shell = "trap 'echo deaf' TERM INT; echo ready; while :; do sleep 0.02; done"
    stop = (StopStep(signal.SIGTERM, 0.2), StopStep(signal.SIGINT, 0.2))
    child = spawned("/bin/sh", "-c", shell, mode=mode, stop=stop)
    await wait_until(lambda: "ready" in script(child), within_s=5, what="the trap is set")
    await child.stop()
    await child.stop()
    child.kill()
    assert (child.alive, exists(child.pid), script(child).count("deaf")) == (False, False, 2)


async def test_a_cancelled_stop_still_leaves_nothing_behind(spawned: Any) -> None:
    child = spawned("/bin/sh", "-c", "trap '' TERM; echo ready; exec sleep 600", stop=(StopStep(signal.SIGTERM, 60.0),))
    await wait_until(lambda: "ready" in script(child), within_s=5, what="the trap is set")
    stopping = asyncio.create_task(child.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert not exists(child.pid)


async def test_a_child_that_ends_before_it_is_ready_fails_with_the_tail_of_its_log(spawned: Any) -> None:
    async def never() -> bool:
        return False

    child = spawned("/bin/sh", "-c", "echo the port is taken; exit 4")
    with pytest.raises(ExitedEarly, match=r"child: it exited with code 4\nthe port is taken"):
        await until_ready(child, never, within_s=10)


async def test_an_answer_does_not_count_once_the_child_is_dead(spawned: Any) -> None:
    """Somebody else's server on the same port would have given it."""

    async def always() -> bool:
        await wait_until(lambda: not child.alive, within_s=5, what="the child has ended")
        return True

    child = spawned("/bin/true")
    with pytest.raises(ExitedEarly, match="exited with code 0"):
        await until_ready(child, always, within_s=10)


async def test_a_child_that_is_never_ready_fails_in_bounded_time(spawned: Any) -> None:
    async def never() -> bool:
        return False

    child = spawned(*SLEEP)
    with pytest.raises(StartFailed, match=r"child: not ready after 0\.1 s"):
        await until_ready(child, never, within_s=0.1)
    assert child.alive  # whose end is the caller's business


async def test_run_to_end_gives_code_and_words(tmp_path: Path) -> None:
    argv = ("/bin/sh", "-c", "echo said; pwd; exit 5")
    command = Command(name="short", argv=argv, death_signal=signal.SIGKILL, cwd=tmp_path)
    assert await run_to_end(command, within_s=10) == Finished(5, f"said\n{tmp_path}\n")


async def test_run_to_end_gives_the_reason_when_nothing_ran() -> None:
    command = Command(name="short", argv=("/nowhere",), death_signal=signal.SIGKILL)
    assert await run_to_end(command, within_s=10) == Finished(None, "[Errno 2] No such file or directory")


async def test_run_to_end_is_bounded() -> None:
    argv = ("/bin/sh", "-c", "echo slowly; exec sleep 600")
    command = Command(name="short", argv=argv, death_signal=signal.SIGKILL)
    assert await run_to_end(command, within_s=0.3) == Finished(None, "killed after 0.3 s\nslowly\n")


async def test_a_cancelled_run_to_end_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_VARIABLE, f"run-{secrets.token_hex(6)}")
    command = Command(name="short", argv=SLEEP, death_signal=signal.SIGKILL)
    running = asyncio.create_task(run_to_end(command, within_s=60))
    await wait_until(lambda: find_run_processes(run_id()), within_s=5, what="it runs")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert find_run_processes(run_id()) == []


def test_a_run_is_named_by_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_VARIABLE, "given")
    assert run_id() == "given"


def test_a_run_without_a_name_gets_one_that_its_children_inherit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_VARIABLE, "to be restored")
    monkeypatch.delenv(RUN_VARIABLE)
    name = run_id()
    assert (os.environ[RUN_VARIABLE], run_id()) == (name, name)


def test_ports_lie_below_those_the_system_gives_to_clients() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert all(20_000 <= port <= 32_000 for port in ports)


def test_a_port_that_somebody_listens_on_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        draws = iter([port, port, free_port()])
        monkeypatch.setattr(process._RANDOM, "randint", lambda low, high: next(draws))
        assert not is_free(port)
        assert free_port() != port


def test_when_every_port_is_taken_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "is_free", lambda port: False)
    with pytest.raises(OSError, match=r"no free port in 20000\.\.32000"):
        free_port()
