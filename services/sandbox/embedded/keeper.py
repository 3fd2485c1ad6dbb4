"""The small program that stands between us and a server and ties the server's life to ours.

Run as `python -I -S keeper.py PARENT_PID DEATH_SIGNAL IDENTITY MODE REPORT_FD CWD PROGRAM ARG...`, a program of its own
and not a `preexec_fn`: code run between fork and exec in a process with threads can deadlock on a lock another thread
held. Standard library only.

IDENTITY is `same`, `userns` (a user namespace in which root appears as uid 1) or `UID:GID`.
MODE `exec` becomes the server and asks Linux for DEATH_SIGNAL at our death. MODE `hold` (systems without that call)
stays as the server's parent, blocks on its standard input, which only our end of the pipe keeps open, and sends
DEATH_SIGNAL at its end of file.
REPORT_FD receives `pid N` (hold) or nothing (exec) when the server runs, and one sentence when it could not be started.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1
CANNOT_START = 126
HOLD_GRACE_S = 10.0


def become(identity: str) -> None:
    if identity == "same":
        return
    if identity == "userns":
        libc_call("unshare", CLONE_NEWUSER)
        # "deny" must come first: the kernel refuses a gid_map to a process that could still drop groups
        for name, text in (("setgroups", "deny"), ("uid_map", "1 0 1"), ("gid_map", "1 0 1")):
            Path("/proc/self", name).write_text(text)
        return
    uid, gid = (int(part) for part in identity.split(":"))
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def libc_call(name: str, *arguments: int) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def restore_signals() -> None:
    """Python ignores some signals and a background shell job ignores more; an exec would hand that to the server."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def die_with(parent: int, death_signal: int) -> None:
    libc_call("prctl", PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != parent:  # it died before the call above, whose signal would never come
        os._exit(CANNOT_START)


def hold(death_signal: int, report_fd: int, command: list[str]) -> int:
    failed_read, failed_write = os.pipe()  # closed by a successful exec, else it carries the reason
    server = os.fork()
    if server == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.execv(command[0], command)  # noqa: S606 - no shell is the point
        except OSError as error:
            os.write(failed_write, str(error).encode())
        os._exit(CANNOT_START)
    os.close(failed_write)
    failure = os.read(failed_read, 4096)
    os.write(report_fd, failure or f"pid {server}".encode())
    os.close(report_fd)
    threading.Thread(target=end_with_parent, args=(server, death_signal), daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])
    return code if code >= 0 else 128 - code


def end_with_parent(server: int, death_signal: int) -> None:
    while os.read(0, 1):
        pass
    os.kill(server, death_signal)
    time.sleep(HOLD_GRACE_S)
    os.kill(server, signal.SIGKILL)


def main() -> None:
    parent, death_signal = int(sys.argv[1]), int(sys.argv[2])
    identity, mode, report_fd, cwd = sys.argv[3], sys.argv[4], int(sys.argv[5]), sys.argv[6]
    command = sys.argv[7:]
    os.set_inheritable(report_fd, False)
    try:
        become(identity)
        os.chdir(cwd)
        restore_signals()
        if mode == "hold":
            os._exit(hold(death_signal, report_fd, command))
        die_with(parent, death_signal)  # after `become`: a change of credentials clears the death signal
        os.execv(command[0], command)  # noqa: S606 - no shell is the point
    except OSError as error:
        os.write(report_fd, str(error).encode())
        os._exit(CANNOT_START)


if __name__ == "__main__":
    main()
