"""Where things stand and how long they may be: the same six rooms in every slice, and no file called "utils"."""

import ast
from pathlib import Path

from tests.house.source import CODE, ROOMS, ROOT, modules, plant, slices

BANNED = frozenset({"common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"})
FUNCTION_LINES_MAX = 70
KERNEL_LINES_MAX = 2_500
# Beside its rooms a slice has its README and its package file.
BESIDE_ROOMS = frozenset({"README.md", "__init__.py", "__pycache__"})
TOP_LEVEL = frozenset(
    {"pyproject.toml", "services", "schemas", "migrations", "tests", "docker-compose.yml"}
    | {"README.md", "CHANGELOG.md", "LICENSE", "Dockerfile", "Makefile", "constraints.txt", "docs", "bench"}
)


def foreign_rooms(root: Path) -> list[str]:
    """What stands in a slice and is none of the six rooms. A room may be a file or a folder of its name."""
    allowed = BESIDE_ROOMS | {f"{room}.py" for room in ROOMS} | set(ROOMS)
    return [
        str(entry.relative_to(root))
        for folder in slices(root)
        for entry in sorted(folder.iterdir())
        if entry.name not in allowed
    ]


def doubled_rooms(root: Path) -> list[str]:
    """Rooms that are a file and a folder at once."""
    return [
        f"{folder.name}/{room}"
        for folder in slices(root)
        for room in ROOMS
        if (folder / room).is_dir() and (folder / f"{room}.py").exists()
    ]


def banned_names(root: Path) -> list[str]:
    places = {
        place for module in modules(root) for place in [module.path, *module.path.parents] if root in place.parents
    }
    return sorted(str(place.relative_to(root)) for place in places if place.stem in BANNED)


def rooms_in_the_kernel(root: Path) -> list[str]:
    return [module.place for module in modules(root, "services/kernel") if module.path.stem in ROOMS]


def long_functions(root: Path) -> list[str]:
    """Functions longer than the limit, decorators and docstring not counted."""
    found: list[str] = []
    for module in modules(root):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[0]
                documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
                docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
                lines = (node.end_lineno or 0) - node.lineno + 1 - docstring
                if lines > FUNCTION_LINES_MAX:
                    found.append(f"{module.place}:{node.lineno} {node.name}: {lines} lines")
    return found


def kernel_lines(root: Path) -> int:
    return sum(module.text.count("\n") for module in modules(root, "services/kernel"))


def test_a_slice_holds_the_six_rooms_and_nothing_else(tmp_path: Path) -> None:
    assert foreign_rooms(ROOT) == []
    assert doubled_rooms(ROOT) == []
    plant(
        tmp_path,
        {
            "services/refunds/flow.py": "",
            "services/refunds/gateway/bank.py": "",
            "services/refunds/gateway.py": "",
            "services/refunds/service.py": "",
            "services/kernel/anything.py": "",
        },
    )
    assert foreign_rooms(tmp_path) == ["services/refunds/service.py"]
    assert doubled_rooms(tmp_path) == ["refunds/gateway"]


def test_no_module_bears_a_name_that_says_nothing(tmp_path: Path) -> None:
    assert banned_names(ROOT) == []
    plant(tmp_path, {"services/kernel/utils.py": "", "tests/helpers/rows.py": "", "schemas/commonly.py": ""})
    assert banned_names(tmp_path) == ["services/kernel/utils.py", "tests/helpers"]


def test_no_kernel_file_bears_a_rooms_name(tmp_path: Path) -> None:
    assert rooms_in_the_kernel(ROOT) == []
    plant(tmp_path, {"services/kernel/store.py": "", "services/kernel/db.py": ""})
    assert rooms_in_the_kernel(tmp_path) == ["services/kernel/store.py"]


def test_a_function_can_be_read_on_one_screen(tmp_path: Path) -> None:
    assert long_functions(ROOT) == []
    body = "    x = 1\n" * FUNCTION_LINES_MAX
    docstring = '    """One.\n\n    Two.\n    """\n'
    plant(tmp_path, {"services/a.py": f"def fits():\n{docstring}{body[:-10]}\nasync def too_long():\n{body}"})
    assert long_functions(tmp_path) == [f"services/a.py:76 too_long: {FUNCTION_LINES_MAX + 1} lines"]


def test_the_kernel_stays_small(tmp_path: Path) -> None:
    assert kernel_lines(ROOT) < KERNEL_LINES_MAX
    plant(tmp_path, {"services/kernel/a.py": "x = 1\n" * 1_500, "services/kernel/b/c.py": "x = 1\n" * 1_000})
    assert kernel_lines(tmp_path) == KERNEL_LINES_MAX


def test_the_top_level_is_fixed() -> None:
    standing = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    generated = {name for name in standing if name.endswith(".egg-info")} | {"build", "var"}
    assert standing - generated <= TOP_LEVEL
    assert set(CODE) <= TOP_LEVEL
