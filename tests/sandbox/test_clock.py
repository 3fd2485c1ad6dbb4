"""The vendors' clock."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from services.sandbox.clock import SandboxClock, http_date, iso_z

INSTANT = datetime(1994, 11, 6, 8, 49, 37, 999_999, tzinfo=UTC)


def test_it_only_moves_forward() -> None:
    clock = SandboxClock()
    before = clock.now()
    clock.advance(3600)
    clock.advance(0.5)
    assert timedelta(seconds=3600.5) <= clock.now() - before < timedelta(seconds=3660)
    assert clock.now_s() == pytest.approx(clock.now().timestamp(), abs=2)
    with pytest.raises(ValueError, match="only moves forward"):
        clock.advance(-1)


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5, minutes=45))])
def test_instants_are_written_in_utc(zone: timezone) -> None:
    instant = INSTANT.astimezone(zone)
    assert http_date(instant) == "Sun, 06 Nov 1994 08:49:37 GMT"
    assert iso_z(instant) == "1994-11-06T08:49:37Z"
