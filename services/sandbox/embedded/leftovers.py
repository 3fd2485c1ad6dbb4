"""Looking at processes from outside: what a pid runs, and whatever still carries the name of a run."""

import os
import subprocess
from pathlib import Path
from typing import Final

from services.sandbox.embedded.process import RUN_VARIABLE

_PROC: Final = Path("/proc")
_PS_WITHIN_S: Final = 10.0


def find_run_processes(run: str) -> list[tuple[int, str]]:
    """(pid, command line) of every live process started with `ROWCLAIM_RUN=run`, ourselves and our ancestors excepted.

    Processes of other users are seen by root alone. A PostgreSQL backend overwrites its environment and is not listed;
    its postmaster is, and takes it along.
    """
    rows = _from_proc(run) if _PROC.joinpath("self/environ").exists() else _from_ps(run)
    own = _ancestry()
    return [(pid, line) for pid, line in rows if pid not in own]


def command_line(pid: int) -> str | None:
    """What `pid` runs, arguments joined by spaces; empty for an unreaped dead child; None when there is no such pid."""
    if _PROC.joinpath("self").exists():
        try:
            return (
                (_PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
            )
        except (FileNotFoundError, ProcessLookupError):
            return None
    lines = _ps("-o", "command=", "-p", str(pid))
    return lines[0].strip() if lines else None


def _from_proc(run: str) -> list[tuple[int, str]]:
    wanted = f"{RUN_VARIABLE}={run}".encode()
    found = []
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes()
        except (PermissionError, FileNotFoundError, ProcessLookupError):  # another user's, or gone meanwhile
            continue
        if wanted in environment.split(b"\0"):
            found.append((int(folder.name), command_line(int(folder.name)) or ""))
    return found


def _from_ps(run: str) -> list[tuple[int, str]]:
    found = []
    for line in _ps("axeww", "-o", "pid=,command="):
        number, _, rest = line.strip().partition(" ")
        if f" {RUN_VARIABLE}={run} " in f"{rest} ":
            found.append((int(number), rest.strip()))
    return found


def _ancestry() -> set[int]:
    """Our own pid and those above us."""
    pid, chain = os.getpid(), set[int]()
    while pid > 0 and pid not in chain:
        chain.add(pid)
        pid = _parent(pid)
    return chain


def _parent(pid: int) -> int:
    if _PROC.joinpath("self").exists():
        # the fields after the program's name, which stands in brackets and may hold anything: state, parent, ...
        return int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    return int(_ps("-o", "ppid=", "-p", str(pid))[0])


def _ps(*arguments: str) -> list[str]:
    done = subprocess.run(
        ["/bin/ps", *arguments],
        env={},  # else it would find itself
        capture_output=True,
        text=True,
        timeout=_PS_WITHIN_S,
        check=False,
    )
    return done.stdout.splitlines()
