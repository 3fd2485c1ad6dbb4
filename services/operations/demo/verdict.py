"""What a demo ends with: checks with what was seen, a table a story, and one JSON document."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be true; ``detail`` says what was seen, true or not."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Scene:
    """One line of a story's table: what happened to how many purchases, and what came of it."""

    title: str
    purchases: int
    came_of_it: str
    seconds: float


@dataclass(slots=True)
class Told:
    """A story that was played: its figures, its scenes, its checks."""

    name: str
    figures: dict[str, int] = field(default_factory=dict)
    scenes: list[Scene] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    def check(self, name: str, seen: object, expected: object) -> None:
        """Equal, or the verdict fails and says both."""
        ok = seen == expected
        self.checks.append(Check(f"{self.name}: {name}", ok, f"{seen}" if ok else f"{seen}, expected {expected}"))


@dataclass(frozen=True, slots=True)
class Verdict:
    """``ok`` only when every check is; ``seconds`` is the whole run's wall time."""

    seconds: float
    told: tuple[Told, ...]
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return bool(self.checks) and all(check.ok for check in self.checks)

    def document(self) -> Mapping[str, Any]:
        """The JSON document of ``--json``."""
        return {
            "verdict": "ok" if self.ok else "failed",
            "seconds": round(self.seconds, 1),
            "stories": {story.name: story.figures for story in self.told},
            "checks": [asdict(check) for check in self.checks],
        }

    def write(self, path: Path) -> None:
        """Write the document, whole or not at all."""
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(self.document(), indent=2) + "\n")
        partial.replace(path)
