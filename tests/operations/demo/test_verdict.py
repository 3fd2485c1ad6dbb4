"""The demo's verdict: good only when every check is, and one document that a script reads."""

import json
from pathlib import Path

import pytest

from services.operations.demo.verdict import Check, Told, Verdict


def test_one_bad_check_is_a_bad_verdict_and_none_at_all_is_no_good_one() -> None:
    good, bad = Check("a", True, "1"), Check("b", False, "2, expected 1")
    assert Verdict(1.0, (), (good,)).ok
    assert not Verdict(1.0, (), (good, bad)).ok
    assert not Verdict(1.0, (), ()).ok


@pytest.mark.parametrize(("seen", "detail"), [(3, "3"), (4, "4, expected 3")])
def test_a_check_says_what_was_seen(seen: int, detail: str) -> None:
    told = Told("toy")
    told.check("three", seen, 3)
    assert told.checks == [Check("toy: three", seen == 3, detail)]


def test_the_document_replaces_the_one_before(tmp_path: Path) -> None:
    told = Told("toy", figures={"purchases": 2})
    told.check("two", 2, 2)
    path = tmp_path / "verdict.json"
    path.write_text("an older one")
    Verdict(12.34, (told,), tuple(told.checks)).write(path)
    assert json.loads(path.read_text()) == {
        "verdict": "ok",
        "seconds": 12.3,
        "stories": {"toy": {"purchases": 2}},
        "checks": [{"name": "toy: two", "ok": True, "detail": "2"}],
    }
    assert list(tmp_path.iterdir()) == [path]
