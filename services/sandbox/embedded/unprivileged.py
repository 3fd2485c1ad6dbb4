"""PostgreSQL refuses to run as root. Here is who it runs as instead, without touching the mode of anything above it."""

import os
import pwd
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from services.sandbox.embedded.process import SAME, USER_NAMESPACE, Command, StartFailed, run_to_end

_NAME: Final = "PostgreSQL"
_PROBE_WITHIN_S: Final = 10.0
_OVERFLOW_ID: Final = 65_534


async def identity_for(directory: Path, program: Path) -> str:
    """The identity (see keeper.py) under which `program` may work in `directory`; the directory is given to it.

    An ordinary user stays himself. As root: the directory's owner if it has another one; else a user namespace, in
    which nothing changes hands; where that is refused, the user nobody. Raises `StartFailed` with what was tried.
    """
    if os.geteuid() != 0:
        return SAME
    uid, gid = _owner(directory)
    if uid != 0:
        return await _first_that_works(directory, program, {f"its owner, uid {uid}": f"{uid}:{gid}"})
    return await _first_that_works(
        directory, program, {"a user namespace": USER_NAMESPACE, "the user nobody": _nobody()}
    )


def give(path: Path, identity: str) -> None:
    """Make `path` belong to `identity`; what runs under `same` or in a user namespace owns our files anyway."""
    if identity in (SAME, USER_NAMESPACE):
        return
    uid, gid = (int(part) for part in identity.split(":"))
    os.chown(path, uid, gid, follow_symlinks=False)


def _give_all(directory: Path, identity: str) -> None:
    for path in (directory, *directory.rglob("*")):
        give(path, identity)


def _owner(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_uid, status.st_gid


def _nobody() -> str:
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:  # a bare image without it: the number it has elsewhere
        return f"{_OVERFLOW_ID}:{_OVERFLOW_ID}"
    return f"{entry.pw_uid}:{entry.pw_gid}"


async def _first_that_works(directory: Path, program: Path, candidates: Mapping[str, str]) -> str:
    owner = "{}:{}".format(*_owner(directory))
    reasons = []
    for description, identity in candidates.items():
        give(directory, identity)
        reason = await _refusal(directory, program, identity)
        if reason is None:
            _give_all(directory, identity)
            return identity
        give(directory, owner)
        reasons.append(f"{description} ({reason})")
    raise StartFailed(
        _NAME,
        f"it does not run as root, and {directory} cannot be served as {' nor as '.join(reasons)}. "
        "Start us as an ordinary user, choose a data directory outside private folders, "
        "or point ROWCLAIM_DATABASE_URL at a server of your own.",
    )


async def _refusal(directory: Path, program: Path, identity: str) -> str | None:
    """Why `program` cannot be run there; None when it can. Found out by doing it: modes alone do not tell."""
    done = await run_to_end(
        Command(
            name=_NAME,
            argv=(program, "--version"),
            death_signal=signal.SIGKILL,
            identity=identity,
            cwd=directory,
        ),
        within_s=_PROBE_WITHIN_S,
    )
    return None if done.exit_code == 0 else done.said.strip()
