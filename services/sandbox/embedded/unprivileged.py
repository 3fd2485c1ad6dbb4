"""PostgreSQL refuses to run as root. Here is who it runs as instead, without touching the mode of anything above it."""

import os
import pwd
import signal
from pathlib import Path
from typing import Final

from services.sandbox.embedded.process import SAME, USER_NAMESPACE, Command, StartFailed, run_to_end

_NAME: Final = "PostgreSQL"
_PROBE_WITHIN_S: Final = 10.0


def identity_for(directory: Path, program: Path) -> str:
    """The identity (see keeper.py) under which `program` may work in `directory`; the directory is given to it.

    An ordinary user stays himself. As root: the directory's owner if it has another one; else a user namespace, in
    which nothing changes hands; where that is refused, the user nobody. Raises `StartFailed` with what was tried.
    """
    if os.geteuid() != 0:
        return SAME
    owner = directory.stat()
    if owner.st_uid != 0:
        return _tried(directory, program, {f"its owner, uid {owner.st_uid}": f"{owner.st_uid}:{owner.st_gid}"})
    candidates = {"a user namespace": USER_NAMESPACE}
    try:
        nobody = pwd.getpwnam("nobody")
        candidates["the user nobody"] = f"{nobody.pw_uid}:{nobody.pw_gid}"
    except KeyError:  # a bare image without it
        pass
    return _tried(directory, program, candidates)


def give(path: Path, identity: str) -> None:
    """Make `path` belong to `identity`; what runs under `same` or in a user namespace owns our files anyway."""
    if identity in (SAME, USER_NAMESPACE):
        return
    uid, gid = (int(part) for part in identity.split(":"))
    os.chown(path, uid, gid, follow_symlinks=False)


def _tried(directory: Path, program: Path, candidates: dict[str, str]) -> str:
    owner = directory.stat()
    reasons = []
    for description, identity in candidates.items():
        give(directory, identity)
        reason = _refusal(directory, program, identity)
        if reason is None:
            if directory.stat().st_uid != owner.st_uid:
                for path in directory.rglob("*"):
                    give(path, identity)
            return identity
        os.chown(directory, owner.st_uid, owner.st_gid)
        reasons.append(f"{description} ({reason})")
    raise StartFailed(
        _NAME,
        f"it does not run as root, and {directory} cannot be served as {' nor as '.join(reasons)}. "
        "Start us as an ordinary user, choose a data directory outside private folders, "
        "or point ROWCLAIM_DATABASE_URL at a server of your own.",
    )


def _refusal(directory: Path, program: Path, identity: str) -> str | None:
    """Why `program` cannot be run there; None when it can. Found out by doing it: modes alone do not tell."""
    done = run_to_end(
        Command(
            name=_NAME,
            argv=(program, "--version"),
            log_path=Path(os.devnull),
            death_signal=signal.SIGKILL,
            identity=identity,
            cwd=directory,
        ),
        within_s=_PROBE_WITHIN_S,
    )
    return None if done.returncode == 0 else done.stdout.strip() or f"exit code {done.returncode}"
