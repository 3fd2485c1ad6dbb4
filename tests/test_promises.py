"""The marker, the record and the report of promises, each shown on a suite of its own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import promises

DOCUMENT = """# Promises

| id | promise | shown by |
|---|---|---|
| F1 | One. | given / when / then |
| F2 | Two. | given / when / then |
| F3 | Three. | given / when / then |
| F4 | Four. | given / when / then |
| F5 | Five. | given / when / then |
| F6 | Six. | given / when / then |
"""
MATRIX = """# Matrix

| | T1 create | T2 update |
|---|---|---|
| immediate | L81-T1 | L81-T2 |
"""
PROJECT = """
[tool.pytest.ini_options]
addopts = ["--strict-markers", "-p", "no:cacheprovider"]
[tool.rowclaim.promises]
due = "F1-F2"
"""
Suite = Callable[[str], pytest.Pytester]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """Makes a project with two documents, the plugin and one test module; gives its pytester."""

    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def make(body: str) -> pytest.Pytester:
        documents = pytester.path / promises.DOCUMENTS
        documents.mkdir(parents=True)
        (documents / "fulfillment.md").write_text(DOCUMENT)
        (documents / "lockout.md").write_text(MATRIX)
        (pytester.path / "pyproject.toml").write_text(PROJECT)
        pytester.makeconftest(
            f"import sys\nsys.path.append({str(promises.ROOT)!r})\npytest_plugins = ['tests.promises']"
        )
        (pytester.path / "tests").mkdir()
        (pytester.path / "tests" / "test_shown.py").write_text(
            f"import pytest\npromise = pytest.mark.promise\n{body}\n"
        )
        return pytester

    return make


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_subprocess("-p", "xdist", "tests", *arguments)


MIXED = """
@promise("F1", "L81-T1")
def test_passes(): pass

@promise("F2")
def test_fails(): assert False

@promise("F3")
@pytest.mark.parametrize("good", [True, False])
def test_fails_for_one_parameter(good): assert good

@promise("F4")
def test_is_skipped(): pytest.skip("no reason")

@pytest.fixture
def leaky():
    yield
    raise OSError("left behind")

@promise("F5")
def test_passes_and_fails_to_clean_up(leaky): pass
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_an_id_counts_only_where_all_its_tests_ran_and_passed(suite: Suite, workers: tuple[str, ...]) -> None:
    project = suite(MIXED)
    run(project, *workers)
    shown = promises.read_record(project.path)
    assert shown is not None
    assert [promise_id for promise_id in ("F1", "F2", "F3", "F4", "F5", "F6") if shown.shows(promise_id)] == ["F1"]
    assert shown.by["L81-T1"] == ("tests/test_shown.py::test_passes",)
    assert set(shown.broken) == {"F2", "F3", "F4", "F5"}


WRONG = {
    "unknown": ('@promise("F99")', "no document under docs/promises has F99"),
    "many": ('@promise("F1", "F2", "F3", "F4", "F5", "F6")', "6 ids on one test"),
    "twice": ('@promise("F1")\n@promise("F1")', "an id is named twice"),
    "empty": ("@promise()", "names its ids"),
    "bare": ("@promise", "names its ids"),
    "keyword": ('@promise(id="F1")', "names its ids"),
}


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "a worker"])
def test_a_wrong_mark_is_a_collection_error(suite: Suite, workers: tuple[str, ...]) -> None:
    project = suite("def test_unmarked(): pass")
    for name, (mark, _) in WRONG.items():
        module = f"import pytest\npromise = pytest.mark.promise\n{mark}\ndef test_something(): pass\n"
        (project.path / "tests" / f"test_{name}.py").write_text(module)
    result = run(project, *workers)
    for name, (_, complaint) in WRONG.items():
        result.stdout.fnmatch_lines_random([f"tests/test_{name}.py::test_something: *{complaint}*"])
    assert result.parseoutcomes()["errors"] == len(WRONG)
    assert result.ret != pytest.ExitCode.OK


def test_a_later_run_of_the_same_tree_adds_and_a_changed_tree_counts_for_nothing(suite: Suite) -> None:
    project = suite('@promise("F1")\ndef test_one(): pass\n\n@promise("F2")\ndef test_two(): pass')
    run(project, "-k", "one")
    run(project, "-k", "two")
    both = promises.read_record(project.path)
    assert both is not None
    assert (both.shows("F1"), both.shows("F2")) == (True, True)

    module = project.path / "tests" / "test_shown.py"
    module.write_text(module.read_text() + "\n# changed\n")
    assert promises.read_record(project.path) is None
    run(project, "-k", "two")
    after = promises.read_record(project.path)
    assert after is not None
    assert (after.shows("F1"), after.shows("F2")) == (False, True)


def record(root: Path, tests: dict[str, tuple[tuple[str, ...], bool]]) -> None:
    promises.write_record(root, promises.fingerprint(root), tests)


def test_require_exits_non_zero_while_one_is_unshown(suite: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    root = suite("").path
    record(root, {"one": (("F1", "F2"), True), "three": (("F3",), False)})
    assert promises.main(["--require", "F1-F2"], root) == 0
    assert "all 2 required promises are shown" in capsys.readouterr().out
    assert promises.main(["--require"], root) == 0, "without a list: those that pyproject.toml says are due"
    assert promises.main(["--require", "F1,F3-F4"], root) == 1
    assert "required but unshown: F3, F4" in capsys.readouterr().out
    record(root, {"two": (("F2",), False)})
    assert promises.main(["--require"], root) == 1, "one failing test takes the id back"


def test_the_report_names_shown_unshown_and_the_tests_that_did_not_pass(
    suite: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    root = suite("").path
    record(root, {"one": (("F1", "F2"), True), "two": (("F2",), False)})
    assert promises.main([], root) == 0
    report = capsys.readouterr().out
    assert "fulfillment: 1 of 6 shown\n  shown:   F1\n  unshown: F2, F3, F4, F5, F6\n" in report
    assert "    F2 is not shown by two, which did not pass\n" in report
    assert "lockout: 0 of 2 shown\n  shown:   none\n  unshown: L81-T1, L81-T2\n" in report


def test_a_sample_is_drawn_by_its_seed_from_the_shown_ids(suite: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    root = suite("").path
    record(root, {"one": (("F1", "F2", "F3"), True), "four": (("F4",), True), "five": (("F5",), False)})

    def sample(seed: str) -> str:
        assert promises.main(["--sample", "2", "--seed", seed], root) == 0
        return capsys.readouterr().out

    drawn = {sample(seed) for seed in ("a", "b", "c", "d", "e", "f")}
    assert sample("a") == sample("a")
    assert len(drawn) > 1
    assert not any("F5" in report or "F6" in report for report in drawn)
    assert all(report.count("\n    ") == 2 for report in drawn), "each drawn id is followed by its test"


def test_no_record_of_this_tree_is_not_an_empty_success(suite: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    assert promises.main(["--require"], suite("").path) == 2
    assert "run `make test` first" in capsys.readouterr().err


def test_the_list_of_ids_is_checked(suite: Suite) -> None:
    known = ["F1", "F2", "F3", "L81-T1"]
    assert promises.expand("F1-F3, L81-T1 F1", known) == ("F1", "F2", "F3", "L81-T1")
    with pytest.raises(ValueError, match="no document has F4"):
        promises.expand("F2-F4", known)
    with pytest.raises(ValueError, match="is empty"):
        promises.expand("F3-F2", known)
    root = suite("").path
    record(root, {"one": (("F1",), True)})
    assert promises.main(["--require", "X1"], root) == 2


def test_an_id_stands_once(tmp_path: Path) -> None:
    folder = tmp_path / promises.DOCUMENTS
    folder.mkdir(parents=True)
    (folder / "one.md").write_text(DOCUMENT)
    (folder / "two.md").write_text(DOCUMENT)
    with pytest.raises(ValueError, match="F1, F2"):
        promises.read_documents(tmp_path)
    (folder / "two.md").unlink()
    (folder / "one.md").write_text(DOCUMENT + "| F1 | Again. | given / when / then |\n")
    with pytest.raises(ValueError, match="F1 stands twice"):
        promises.read_documents(tmp_path)


def test_the_documents_number_every_promise_without_a_gap() -> None:
    ids = {
        name: set(document.promises) for document in promises.read_documents(promises.ROOT) for name in [document.name]
    }
    assert ids["fulfillment"] == {f"F{number}" for number in range(1, 93)}
    assert ids["rewards"] == {f"R{number}" for number in range(1, 63)}
    assert ids["payouts"] == {f"P{number}" for number in range(1, 165)}
    cells = {f"L{variant}-T{trigger}" for variant in range(81, 85) for trigger in range(1, 8)}
    assert ids["lockout"] == {f"L{number}" for number in range(1, 90)} | cells


def test_those_due_are_promises_of_ours() -> None:
    known = [promise_id for document in promises.read_documents(promises.ROOT) for promise_id in document.promises]
    due = promises.expand(promises.due(promises.ROOT), known)
    assert len(due) == 89
