"""The doors: a watcher hears of both instants of a crossing, and of the second only when the exchange returned."""

from collections.abc import Iterator

import pytest

from services.kernel import doors
from services.kernel.doors import Crossing, Door, Moment

Heard = list[tuple[Door, str, Moment]]


@pytest.fixture
def heard() -> Iterator[Heard]:
    told: Heard = []
    before = doors.watch(lambda door, what, moment: told.append((door, what, moment)))
    yield told
    doors.watch(before)


def test_both_instants_are_told_in_order(heard: Heard) -> None:
    with Crossing(Door.HTTP, "PUT /x"):
        assert heard == [(Door.HTTP, "PUT /x", "before")]
        with Crossing(Door.SMTP, "DATA"):
            pass
    assert [(door, moment) for door, _, moment in heard] == [
        (Door.HTTP, "before"),
        (Door.SMTP, "before"),
        (Door.SMTP, "after"),
        (Door.HTTP, "after"),
    ]


def test_an_exchange_that_failed_has_no_after(heard: Heard) -> None:
    with pytest.raises(OSError, match="gone"), Crossing(Door.KAFKA, "publish"):
        raise OSError("gone")
    assert heard == [(Door.KAFKA, "publish", "before")]


def test_what_the_watcher_raises_stops_the_exchange() -> None:
    def refuse(door: Door, what: str, moment: Moment) -> None:
        raise LookupError(what)

    exchanged = False
    before = doors.watch(refuse)
    try:
        with pytest.raises(LookupError), Crossing(Door.VALKEY, "set"):
            exchanged = True
    finally:
        doors.watch(before)
    assert not exchanged


def test_the_watcher_before_is_given_back_and_nobody_is_told_when_nobody_watches(heard: Heard) -> None:
    mine = doors.watch(None)
    assert mine is not None
    with Crossing(Door.OBJECTS, "put"):
        pass
    assert heard == []
    assert doors.watch(mine) is None
    with Crossing(Door.OBJECTS, "put"):
        pass
    assert len(heard) == 2
