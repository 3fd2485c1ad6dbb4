"""The pages of docs/reference are what the code says, and a stale one is found."""

from pathlib import Path

import pytest

from services.__main__ import discover
from services.kernel.errors import CODES
from services.kernel.settings import FILE, variables
from services.operations import reference
from services.operations.environment import kinds_of
from services.operations.reference import FOLDER, render, stale_pages
from tests.operations.conftest import OTHER, TOY, MakeTerminal, RunCommand


def test_the_pages_are_fresh() -> None:
    assert stale_pages(render(discover()), FOLDER) == [], "run `rowclaim reference`"


def test_every_code_is_on_its_page() -> None:
    page = render(())["errors.md"]
    for code in CODES.values():
        status = "" if code.status is None else str(code.status)
        ends = "" if code.exit is None else str(code.exit)
        assert f"| `{code.name}` | {status} | {ends} | {code.sentence} |" in page
    assert len([line for line in page.splitlines() if line.startswith("| `")]) == len(CODES)


def test_every_setting_is_on_its_page_with_a_meaning() -> None:
    page = render(discover())["settings.md"]
    listed = [line for line in page.splitlines() if line.startswith("| `")]
    for variable in (name for kind in kinds_of(discover()) for name in variables(kind) if not name.endswith(FILE)):
        (line,) = [line for line in listed if line.startswith((f"| `{variable}` |", f"| `{variable}` (or `{FILE}`) |"))]
        meaning = line.split(" | ")[-1].removesuffix(" |")
        assert meaning.endswith("."), line


def test_defaults_are_told_as_the_environment_says_them() -> None:
    page = render((TOY, OTHER))["settings.md"]
    assert "| `ROWCLAIM_KAFKA_IDEMPOTENT` | `true` |" in page
    assert "| `ROWCLAIM_SMTP_URL` (or `_FILE`) | `smtp://127.0.0.1:1025` |" in page
    assert "| `ROWCLAIM_PAGERDUTY_ROUTING_KEY` (or `_FILE`) | unset |" in page
    assert "| `ROWCLAIM_INGRESS_NEEDED` | **required** |" in page
    assert "## Slice fulfillment" in page


async def test_a_stale_page_is_found_and_rewritten(
    make_terminal: MakeTerminal, run_command: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "FOLDER", tmp_path / "reference")
    line = make_terminal()
    missing = await run_command(line, "reference", "--check")
    assert (missing.code, missing.err.splitlines()[0]) == (
        65,
        "rowclaim: reference_stale: errors.md, openapi.json, routes.md, settings.md",
    )
    assert not (tmp_path / "reference").exists()
    assert (await run_command(line, "reference")).code == 0
    assert (await run_command(line, "reference", "--check")).code == 0
    (tmp_path / "reference" / "errors.md").write_text("| `old` |\n")
    stale = await run_command(line, "reference", "--check")
    assert stale.err.splitlines()[0] == "rowclaim: reference_stale: errors.md"
