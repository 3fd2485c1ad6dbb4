"""The one list of error codes is complete: each code is raised somewhere, shown by a test, and documented."""

import ast
import re
from collections.abc import Collection
from pathlib import Path

from services.__main__ import discover
from services.kernel.errors import CODES
from services.operations.reference import FOLDER, render, stale_pages
from tests.house.source import ROOT, modules, plant

ERRORS = frozenset({"Invariant", "Refusal", "Retryable", "ServiceError", "Stop"})
LIST = "services/kernel/errors.py"


def _ours(root: Path) -> list[str]:
    """The text of every string constant of services/ outside the list."""
    return [
        str(string.value) for module in modules(root, "services") if module.place != LIST for string in module.strings()
    ]


def unraised(root: Path, codes: Collection[str]) -> list[str]:
    """Codes that no code names."""
    named = set(_ours(root))
    return sorted(code for code in codes if code not in named)


def unlisted(root: Path, codes: Collection[str]) -> list[str]:
    """Errors made with a code that is not on the list."""
    return [
        f"{module.place}:{node.lineno} {code.value!r}"
        for module in modules(root, "services")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in ERRORS
        and node.args
        and isinstance(code := node.args[0], ast.Constant)
        and code.value not in codes
    ]


def unshown(root: Path, codes: Collection[str]) -> list[str]:
    """Codes that no test outside the house laws names."""
    words = {
        word
        for module in modules(root, "tests")
        if not module.place.startswith("tests/house/")
        for string in module.strings()
        for word in re.findall(r"\w+", str(string.value))
    }
    return sorted(code for code in codes if code not in words)


def test_every_code_says_how_it_ends_and_what_to_do() -> None:
    for code in CODES.values():
        assert re.fullmatch(r"[a-z]+(_[a-z0-9]+)+", code.name), code.name
        assert code.status is not None or code.exit is not None, code.name
        assert code.status is None or 400 <= code.status < 600, code.name
        assert code.exit is None or 1 <= code.exit <= 125, code.name
        assert re.fullmatch(r"[A-Z].*\.", code.sentence), code.name


def test_every_code_is_raised_listed_and_shown(tmp_path: Path) -> None:
    assert unraised(ROOT, CODES) == []
    assert unlisted(ROOT, CODES) == []
    assert unshown(ROOT, CODES) == []
    plant(
        tmp_path,
        {
            LIST: 'Code("dead_code")\n',
            "services/a/flow.py": 'raise errors.Refusal("too_late")\nraise Retryable("made_up", "why")\n'
            'raise Stop(name)\nraise ValueError("free_text")\n',
            "services/sandbox/a.py": 'def documented(): "dead_code"\n',
            "tests/a/test_flow.py": 'pytest.raises(Refusal, match="too_late: .*")\n# dead_code\n',
            "tests/house/test_b.py": 'x = "dead_code"\n',
        },
    )
    codes = ["dead_code", "too_late"]
    assert unraised(tmp_path, codes) == ["dead_code"]
    assert unlisted(tmp_path, codes) == ["services/a/flow.py:2 'made_up'"]
    assert unshown(tmp_path, codes) == ["dead_code"]


def test_the_documented_list_is_the_one_in_the_code(tmp_path: Path) -> None:
    pages = render(discover())
    assert stale_pages(pages, FOLDER) == []
    assert all(f"| `{code}` |" in pages["errors.md"] for code in CODES)
    for name, page in pages.items():
        (tmp_path / name).write_text(page, encoding="utf-8")
    (tmp_path / "errors.md").write_text(pages["errors.md"].replace("body", "letter"), encoding="utf-8")
    assert stale_pages(pages, tmp_path) == ["errors.md"]
