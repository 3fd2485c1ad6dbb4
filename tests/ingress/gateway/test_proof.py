"""The instant of signing, to the second, both ways."""

import pytest

from services.ingress.gateway import proof
from services.ingress.machine import Rejection


@pytest.mark.promise("F89")
@pytest.mark.parametrize(
    ("age_s", "tolerance_s", "reason"),
    [
        (300.0, 300, None),
        (300.01, 300, Rejection.SIGNATURE_STALE),
        (-300.0, 300, None),
        (-300.01, 300, Rejection.SIGNATURE_FUTURE),
        (0.9, 0, Rejection.SIGNATURE_STALE),
        (1.0, 0, Rejection.SIGNATURE_STALE),
        (-1.0, 0, Rejection.SIGNATURE_FUTURE),
        (0.0, -1, Rejection.SIGNATURE_STALE),
    ],
)
def test_the_tolerance_is_exact(
    monkeypatch: pytest.MonkeyPatch, age_s: float, tolerance_s: int, reason: Rejection | None
) -> None:
    monkeypatch.setattr(proof, "wall_time", lambda: 1_700_000_000 + age_s)
    assert proof.misdated("1700000000", tolerance_s) is reason
