"""The six ways out of a process, and the one hook on them.

Everything that leaves the process (a statement, an HTTP request, a mail, an object, a record, a key) crosses one of
six doors. A crossing has two instants at which a process can die and leave the world in different states: before the
server saw the request, and after the server acted but before we know it. The crash sweep kills a process at every
such instant; it finds them through ``watch``. In production nobody watches, and a crossing costs one comparison.

A module that opens a connection of its own instead of using a door would be a place where no test ever kills us; the
house test of the doors fails for it.
"""

from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import Literal

Moment = Literal["before", "after"]


class Door(StrEnum):
    DATABASE = "database"
    HTTP = "http"
    SMTP = "smtp"
    OBJECTS = "objects"
    KAFKA = "kafka"
    VALKEY = "valkey"


Watcher = Callable[[Door, str, Moment], None]

_watcher: Watcher | None = None


def watch(watcher: Watcher | None) -> Watcher | None:
    """Set who is told of every crossing (None: nobody) and return who was told before."""
    global _watcher
    previous, _watcher = _watcher, watcher
    return previous


class Crossing:
    """``with Crossing(Door.HTTP, "PUT /x"): await ...`` around exactly one exchange with a server.

    ``after`` is told only when the exchange returned: an exception already tells the process that it does not know.
    """

    __slots__ = ("_door", "_what")

    def __init__(self, door: Door, what: str) -> None:
        self._door = door
        self._what = what

    def __enter__(self) -> None:
        if _watcher is not None:
            _watcher(self._door, self._what, "before")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _watcher is not None and kind is None:
            _watcher(self._door, self._what, "after")
