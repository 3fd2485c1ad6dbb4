"""The published schemas from the command line: written, checked, and never broken unasked."""

import json
import subprocess
from pathlib import Path

import pytest

from schemas import publish
from schemas.compatibility import Border
from schemas.publish import ASYNCAPI, Published
from schemas.triggers import EventsTrigger
from services.operations.publishing import relied_on
from tests.operations.conftest import MakeTerminal, RunCommand


class WithSince(EventsTrigger):
    """A trigger that older writers cannot write."""

    since: str


async def test_files_are_written_checked_and_found_stale(
    make_terminal: MakeTerminal, run_command: RunCommand, tmp_path: Path
) -> None:
    line = make_terminal()
    missing = await run_command(line, "schemas", "--check", "--directory", str(tmp_path))
    assert missing.code == 65
    named = ", ".join(sorted(publish.render()))
    assert missing.err.splitlines()[0] == "rowclaim: schema_stale: " + named
    assert {"asyncapi.json", "clerk.events.v1.json", "stripe.events.v1.json"} <= publish.render().keys()
    written = await run_command(line, "schemas", "--directory", str(tmp_path))
    assert written.code == 0
    assert "stripe.events.v1.json" in written.out
    assert publish.read(tmp_path) == publish.render()
    assert (await run_command(line, "schemas", "--check", "--directory", str(tmp_path))).code == 0


async def test_a_change_that_breaks_somebody_is_refused_with_its_reason(
    make_terminal: MakeTerminal, run_command: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = make_terminal()
    publish.write(tmp_path)
    before = publish.read(tmp_path)
    monkeypatch.setattr(publish, "PUBLISHED", (Published("stripe.events.v1", WithSince, Border.TOPIC),))
    for arguments in (("schemas",), ("schemas", "--check")):
        refused = await run_command(line, *arguments, "--directory", str(tmp_path))
        assert refused.code == 65
        assert "rowclaim: schema_breaks: clerk.events.v1.json: is published no longer" in refused.err
        assert "stripe.events.v1.json: breaks a writer: $.since is required and may be absent" in refused.err
    assert publish.read(tmp_path) == before


def test_nothing_breaks_who_relied_on_the_files() -> None:
    """Neither on those lying here, nor on the last commit's, nor on the last release's."""
    promised = relied_on(publish.DIRECTORY)
    assert publish.read() in promised
    assert [publish.broken(before, publish.render()) for before in promised] == [[]] * len(promised)


async def test_files_regenerated_by_hand_are_held_against_the_last_commit_and_the_last_release(
    make_terminal: MakeTerminal, run_command: RunCommand, tmp_path: Path
) -> None:
    """Whoever deletes a file and writes it anew has changed what lies there, and nothing that others rely on."""

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.test", "-c", "tag.gpgsign=false")
        subprocess.run(["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True, timeout=30)

    line, folder = make_terminal(), tmp_path / "published"
    folder.mkdir()
    publish.write(folder)
    stripe = folder / "stripe.events.v1.json"
    published = json.loads(stripe.read_text())

    def commit(**fields: object) -> None:
        stripe.write_text(json.dumps(published | {"properties": published["properties"] | fields}))
        git("add", "-A")
        git("commit", "-qm", "schemas")

    git("init", "-q")
    commit(released={"type": "string"})
    git("tag", "v1.0.0")
    commit(committed={"type": "string"})
    stripe.unlink()
    assert (await run_command(line, "schemas", "--directory", str(folder))).code == 0
    found = await run_command(line, "schemas", "--check", "--directory", str(folder))
    assert found.code == 65
    assert "field $.committed was removed; stripe.events.v1.json: field $.released was removed" in found.err


async def test_the_document_is_printed_as_it_is_published(make_terminal: MakeTerminal, run_command: RunCommand) -> None:
    printed = await run_command(make_terminal(), "asyncapi")
    assert (printed.code, printed.out) == (0, publish.render()[ASYNCAPI])
