"""`rowclaim schemas` and `rowclaim asyncapi`: written from the classes, held to them, and never broken in place."""

import json
from pathlib import Path

import pytest

from schemas import publish
from tests.operations.conftest import MakeTerminal, RunCommand

TOPIC = "stripe.events.v1.json"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of published files, as they are now."""
    monkeypatch.setattr(publish, "DIRECTORY", tmp_path)
    # Its functions have the real folder as their default.
    for name in ("read", "stale", "write"):
        monkeypatch.setattr(getattr(publish, name), "__defaults__", (tmp_path,))
    publish.write(tmp_path)
    return tmp_path


def rewrite(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


async def test_a_stale_file_is_found_and_rewritten(
    make_terminal: MakeTerminal, run_command: RunCommand, folder: Path
) -> None:
    line = make_terminal()
    assert (await run_command(line, "schemas", "--check")).code == 0
    rewrite(folder / TOPIC, title="Old")
    (folder / publish.ASYNCAPI).unlink()
    stale = await run_command(line, "schemas", "--check")
    told = "rowclaim: schemas_stale: asyncapi.json, stripe.events.v1.json"
    assert (stale.code, stale.err.splitlines()[0]) == (65, told)
    written = await run_command(line, "schemas")
    assert (written.code, written.out.split()) == (0, ["written", "asyncapi.json", TOPIC])
    assert (await run_command(line, "schemas", "--check")).code == 0


async def test_a_change_that_breaks_is_refused_here_and_against_another_version(
    make_terminal: MakeTerminal, run_command: RunCommand, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    line = make_terminal()
    former = tmp_path_factory.mktemp("former")
    publish.write(former)
    assert (await run_command(line, "schemas", "--check", "--against", str(former))).code == 0
    old = json.loads((former / TOPIC).read_text())
    rewrite(former / TOPIC, properties=old["properties"] | {"urgent": {"type": "boolean"}})
    broken = await run_command(line, "schemas", "--check", "--against", str(former))
    assert broken.code == 65
    assert broken.err.startswith("rowclaim: schema_breaks: stripe.events.v1.json: ")
    assert "urgent" in broken.err
    (former / TOPIC).replace(folder / TOPIC)
    before = (folder / TOPIC).read_text()
    assert (await run_command(line, "schemas")).code == 65
    assert (folder / TOPIC).read_text() == before


async def test_the_document_of_all_topics_is_printed(make_terminal: MakeTerminal, run_command: RunCommand) -> None:
    ended = await run_command(make_terminal(), "asyncapi")
    assert ended.code == 0
    assert {"stripe.events.v1", "stripe.events.v1.dlq"} <= json.loads(ended.out)["channels"].keys()


def test_the_published_files_are_fresh() -> None:
    assert publish.stale() == [], "run `rowclaim schemas`"
