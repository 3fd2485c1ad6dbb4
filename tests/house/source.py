"""The project's own text as the house laws read it, and small trees planted to break a law."""

import ast
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CODE = ("services", "schemas", "tests", "bench")
ROOMS = ("machine", "store", "flow", "gateway", "api", "consumer")
# Folders of services/ that are no slices: the shared law and adapters, the operators' commands, the outside world.
SHARED = ("kernel", "vendors", "operations", "sandbox")


@dataclass(frozen=True)
class Module:
    """One Python file. ``place`` is its path below the project, with slashes: ``services/kernel/db.py``."""

    root: Path
    path: Path

    @property
    def place(self) -> str:
        return self.path.relative_to(self.root).as_posix()

    @property
    def name(self) -> str:
        parts = self.path.relative_to(self.root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return _parse(self.text)

    def comments(self) -> Iterator[tuple[int, str]]:
        """Line numbers and texts of all comments; a ``#`` inside a string is none."""
        with self.path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.COMMENT:
                    yield token.start[0], token.string

    def imports(self) -> Iterator[tuple[int, str]]:
        """Line numbers and dotted names of everything imported, wherever in the file the import stands."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    yield node.lineno, f"{node.module}.{alias.name}"

    def strings(self) -> Iterator[ast.Constant]:
        """Every string constant but docstrings and the literal parts of f-strings."""
        hidden = {id(part) for node in ast.walk(self.tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                hidden.add(id(node.value))
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden:
                yield node


@cache
def _parse(text: str) -> ast.Module:
    """Each text once for all laws: they read the same few hundred files."""
    return ast.parse(text)


def modules(root: Path, *tops: str) -> list[Module]:
    """All Python files below the given folders (all of ours by default), by place."""
    return [Module(root, path) for top in tops or CODE for path in sorted((root / top).rglob("*.py"))]


def slices(root: Path) -> list[Path]:
    """The folders of services/ that are slices."""
    return [
        folder
        for folder in sorted((root / "services").iterdir())
        if folder.is_dir() and folder.name not in SHARED and folder.name != "__pycache__"
    ]


def plant(root: Path, files: Mapping[str, str]) -> Path:
    """Writes a small tree that breaks a law, to see the law notice."""
    for place, text in files.items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root
