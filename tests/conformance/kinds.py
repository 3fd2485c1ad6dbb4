"""Every kind under the law: the house tests ask each claim of the code for one."""

from importlib import import_module
from pathlib import Path

from tests.conformance.claims import Claims
from tests.conformance.kind import Kind


def kinds() -> list[Kind]:
    """All kinds that have a test class here."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        import_module(f"tests.conformance.{path.stem}")
    return [held.kind for held in Claims.__subclasses__()]
