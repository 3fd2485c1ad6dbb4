"""What silences a checker says why, on the same line and for one rule."""

import re
from pathlib import Path

from tests.house.source import ROOT, modules, plant

SILENCER = re.compile(r"#\s*(type:\s*ignore|noqa|ruff:\s*noqa|pyright:|mypy:|fmt:\s*(off|skip)|pragma:)", re.IGNORECASE)
REASONED = re.compile(
    r"""\#\ (  type:\ ignore\[[a-z-]+(,\ ?[a-z-]+)*\]\ \ \#\ \S
            |  pyright:\ ignore\[\w+(,\ ?\w+)*\]\ \ \#\ \S
            |  noqa:\ [A-Z]+\d+(,\ ?[A-Z]+\d+)*\ \ ?(\#\ )?\S )""",
    re.VERBOSE,
)


def unreasoned(root: Path) -> list[str]:
    return [
        f"{module.place}:{line}"
        for module in modules(root)
        for line, comment in module.comments()
        if SILENCER.search(comment) and not REASONED.search(comment)
    ]


def test_every_ignore_names_its_rule_and_its_reason(tmp_path: Path) -> None:
    assert unreasoned(ROOT) == []
    lines = [
        "a = 1  # type: ignore",
        "a = 1  # type: ignore[arg-type]",
        "a = 1  # noqa",
        "a = 1  # noqa: S608",
        "# ruff: noqa",
        "# mypy: ignore-errors",
        "a = 1  # pyright: ignore[reportArgumentType]",
        "a = 1  # type: ignore[arg-type, misc]  # the library's own signature is wrong",
        "a = 1  # noqa: S311 seeded on purpose",
        "a = 1  # pyright: ignore[reportArgumentType]  # the library's own signature is wrong",
        'a = "# noqa"',
    ]
    plant(tmp_path, {"services/a.py": "\n".join(lines) + "\n"})
    assert unreasoned(tmp_path) == [f"services/a.py:{line}" for line in range(1, 8)]
