"""The yardstick itself: it refuses what is not described, and says how to be had when it is not there."""

import shutil
from pathlib import Path

import pytest

from tests.sandbox.github import description as module
from tests.sandbox.github.description import Contradicts, Description, NotFetched, fetch

PUT = "/repos/a/b/collaborators/c"


def test_it_notices_what_contradicts_it(github_description: Description) -> None:
    github_description.check_request("PUT", PUT, b'{"permission": "pull"}')
    github_description.check_request("PUT", PUT, b"")
    with pytest.raises(Contradicts, match="is not of type 'string'"):
        github_description.check_request("PUT", PUT, b'{"permission": 1}')
    with pytest.raises(Contradicts, match="no JSON"):
        github_description.check_request("PUT", PUT, b"permission=pull")
    with pytest.raises(Contradicts, match="takes no body"):
        github_description.check_request("DELETE", PUT, b"{}")
    with pytest.raises(Contradicts, match="no operation"):
        github_description.check_request("PUT", "/repos/a/b/collaborator/c", b"")
    with pytest.raises(Contradicts, match="'invitee' is a required property"):
        github_description.check_answer("PUT", PUT, 201, b'{"id": 1}')
    with pytest.raises(Contradicts, match="no body is described"):
        github_description.check_answer("PUT", PUT, 204, b"{}")
    assert github_description.check_answer("PUT", PUT, 204, b"") is True
    assert github_description.check_answer("PUT", PUT, 418, b"anything") is False


def test_without_npm_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED", tmp_path / "none.json")
    monkeypatch.setattr(module, "find_npm", lambda: None)
    with pytest.raises(NotFetched, match=r"npm was not found\. .*-m tests\.sandbox\.github\.description"):
        fetch()


def test_a_registry_out_of_reach_is_told_with_what_npm_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "npm"
    broken.write_text("#!/bin/sh\necho no registry today >&2\nexit 7\n")
    broken.chmod(0o755)
    monkeypatch.setattr(module, "CACHE", tmp_path)
    monkeypatch.setattr(module, "CACHED", tmp_path / "none.json")
    monkeypatch.setattr(module, "find_npm", lambda: str(broken))
    with pytest.raises(NotFetched, match="no registry today"):
        fetch()
    assert not (tmp_path / "none.json").exists()


def test_npm_comes_with_the_development_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    npm = module.find_npm()
    assert npm is not None
    assert Path(npm).name == "npm"
