"""Which promises the suite shows: the marker `promise`, the record of a run, and the report.

`docs/promises/*.md` number what the software promises. A test that shows one carries `@pytest.mark.promise("F12")`;
an id that no document has, or more than five ids on one test, is a collection error. A run records, per marked test,
whether it passed in every phase; an id is shown when at least one of its tests ran and none of them failed or was
skipped. The record belongs to one state of the tree: after any change of code or tests it counts for nothing.

    python -m tests.promises                            shown and unshown ids, per document
    python -m tests.promises --sample 20 --seed COMMIT  ids whose code to break, with the tests that must then die
    python -m tests.promises --require F1,F3-F13        exit 1 if one is unshown (without a list: those due by now)

Exit codes: 0 fine, 1 a required id is unshown, 2 no record of this tree or a wrong argument.
"""

import argparse
import hashlib
import json
import os
import random
import re
import sys
import tomllib
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

IDS_PER_TEST_MAX: Final = 5
ROOT: Final = Path(__file__).resolve().parent.parent
RECORD: Final = Path(".rowclaim/promises.json")
DOCUMENTS: Final = Path("docs/promises")
FINGERPRINTED: Final = (
    "services",
    "schemas",
    "migrations",
    "tests",
    "docs/promises",
    "pyproject.toml",
    "constraints.txt",
)
FINGERPRINTED_SUFFIXES: Final = frozenset({".py", ".sql", ".md", ".toml", ".txt", ".json"})

_ROW: Final = re.compile(r"^\| (?P<id>[A-Z]\d+) \| (?P<text>.*?) \| .* \|$")
_CELL: Final = re.compile(r"\b[A-Z]\d+-T\d+\b")
_RANGE: Final = re.compile(r"^(?P<letter>[A-Z])(?P<first>\d+)-(?P=letter)?(?P<last>\d+)$")
_KNOWN: Final = pytest.StashKey[frozenset[str]]()
_WORKER_INPUT: Final = "workerinput"  # pytest-xdist sets it on the configuration of its workers


# ------------------------------------------------------------------------------------------------------- the documents
@dataclass(frozen=True, slots=True)
class Document:
    """One file of promises: its name without suffix, and its ids with their texts, in the file's order."""

    name: str
    promises: Mapping[str, str]


def read_documents(root: Path) -> tuple[Document, ...]:
    """Every document under `docs/promises`, by name. Raises `ValueError` for an id that stands twice."""
    documents = tuple(
        Document(path.stem, dict(_rows(path.read_text(encoding="utf-8"))))
        for path in sorted((root / DOCUMENTS).glob("*.md"))
    )
    seen: set[str] = set()
    for document in documents:
        if twice := seen & document.promises.keys():
            raise ValueError(f"promise ids in two documents: {', '.join(sorted(twice))}")
        seen |= document.promises.keys()
    return documents


def _rows(text: str) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for line in text.splitlines():
        if not line.startswith("| "):
            continue
        row = _ROW.match(line)
        # A line of the acceptance matrix holds cells (L81-T1 ...) and no id of its own.
        found = [(row["id"], row["text"])] if row else [(cell, line) for cell in _CELL.findall(line)]
        for promise_id, words in found:
            if promise_id in seen:
                raise ValueError(f"promise id {promise_id} stands twice in one document")
            seen.add(promise_id)
            yield promise_id, words


def expand(listed: str, known: Iterable[str]) -> tuple[str, ...]:
    """`"F1, F3-F5"` as `("F1", "F3", "F4", "F5")`. Raises `ValueError` for an id that no document has."""
    ids: list[str] = []
    for part in re.split(r"[,\s]+", listed.strip()):
        if span := _RANGE.match(part):
            numbers = range(int(span["first"]), int(span["last"]) + 1)
            if not numbers:
                raise ValueError(f"the range {part} is empty")
            ids.extend(f"{span['letter']}{number}" for number in numbers)
        elif part:
            ids.append(part)
    known_ids = frozenset(known)
    if unknown := [promise_id for promise_id in ids if promise_id not in known_ids]:
        raise ValueError(f"no document has {', '.join(unknown)}")
    return tuple(dict.fromkeys(ids))


def due(root: Path) -> str:
    """The ids that pyproject.toml says are due by now."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    listed: str = project["tool"]["rowclaim"]["promises"]["due"]
    return listed


# ---------------------------------------------------------------------------------------------------------- the record
@dataclass(frozen=True, slots=True)
class Shown:
    """What a run showed. `by` maps each id to the tests that passed for it; `broken` to those that did not."""

    by: Mapping[str, tuple[str, ...]]
    broken: Mapping[str, tuple[str, ...]]

    def shows(self, promise_id: str) -> bool:
        return promise_id in self.by and promise_id not in self.broken


@dataclass(slots=True)
class _Test:
    ids: tuple[str, ...]
    passed: bool = False
    failed: bool = False

    @property
    def shows(self) -> bool:
        return self.passed and not self.failed


def fingerprint(root: Path) -> str:
    """A hash of everything that decides what a test shows: code, schema, tests, promises, pinned versions."""
    digest = hashlib.sha256()
    for name in FINGERPRINTED:
        top = root / name
        paths = [top] if top.is_file() else sorted(top.rglob("*"))
        for path in paths:
            if path.suffix in FINGERPRINTED_SUFFIXES and path.is_file():
                digest.update(f"{path.relative_to(root)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def read_record(root: Path) -> Shown | None:
    """What the runs of this very tree showed, or None if there was none."""
    try:
        record: dict[str, Any] = json.loads((root / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if record["tree"] != fingerprint(root):
        return None
    by: dict[str, tuple[str, ...]] = {}
    broken: dict[str, tuple[str, ...]] = {}
    for test, result in sorted(record["tests"].items()):
        target = by if result["shows"] else broken
        for promise_id in result["ids"]:
            target[promise_id] = (*target.get(promise_id, ()), test)
    return Shown(by, broken)


def write_record(root: Path, tree: str, tests: Mapping[str, tuple[tuple[str, ...], bool]]) -> None:
    """Adds `{test: (ids, shows)}` to the record of this tree; a record of another tree is replaced."""
    path = root / RECORD
    path.parent.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"tree": tree, "tests": {}}
    if path.exists():
        former = json.loads(path.read_text(encoding="utf-8"))
        record = former if former["tree"] == tree else record
    record["tests"] |= {test: {"ids": list(ids), "shows": shows} for test, (ids, shows) in tests.items()}
    # Written aside and renamed: a run that is killed here leaves the former record, never half of one.
    aside = path.with_suffix(f".{os.getpid()}")
    aside.write_text(json.dumps(record, indent=1, sort_keys=True), encoding="utf-8")
    aside.replace(path)


# ---------------------------------------------------------------------------------------------------------- the plugin
@dataclass(slots=True, eq=False)  # pytest keeps plugins in sets
class _Recorder:
    """Collects the outcome of each marked test. Under pytest-xdist the controller hears the workers' reports."""

    root: Path
    tree: str
    tests: dict[str, _Test] = field(default_factory=dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        ids = tuple(str(value) for name, value in report.user_properties if name == "promise")
        if not ids:
            return
        test = self.tests.setdefault(report.nodeid, _Test(ids))
        # Set-up and tear-down count: a test whose clean-up fails has not shown that nothing is left behind.
        test.passed |= report.when == "call" and report.passed
        test.failed |= not report.passed

    def pytest_sessionfinish(self) -> None:
        if self.tests:
            write_record(self.root, self.tree, {name: (test.ids, test.shows) for name, test in self.tests.items()})


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"promise(*ids): the promises this test shows, at most {IDS_PER_TEST_MAX} ids")
    config.stash[_KNOWN] = frozenset(
        promise_id for document in read_documents(config.rootpath) for promise_id in document.promises
    )
    if not hasattr(config, _WORKER_INPUT) and not config.option.collectonly:
        config.pluginmanager.register(_Recorder(config.rootpath, fingerprint(config.rootpath)), "promise-recorder")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turns a wrong mark into a collection error of its module; hands right ones on to the reports."""
    report = yield
    faults: list[str] = []
    for item in report.result or ():
        if isinstance(item, pytest.Item):
            ids = [promise_id for mark in item.iter_markers("promise") for promise_id in mark.args]
            faults += _faults(item, ids, collector.config.stash[_KNOWN])
            item.user_properties += [("promise", promise_id) for promise_id in ids]
    if faults:
        report.outcome = "failed"
        report.longrepr = "\n".join(faults)
        report.result = []
    return report


def _faults(item: pytest.Item, ids: list[object], known: frozenset[str]) -> Iterator[str]:
    if any(not mark.args or mark.kwargs for mark in item.iter_markers("promise")):
        yield f"{item.nodeid}: a promise mark names its ids, as in @pytest.mark.promise('F12')"
    if unknown := [promise_id for promise_id in ids if promise_id not in known]:
        yield f"{item.nodeid}: no document under {DOCUMENTS} has {', '.join(map(str, unknown))}"
    if len(ids) > IDS_PER_TEST_MAX:
        yield f"{item.nodeid}: {len(ids)} ids on one test, at most {IDS_PER_TEST_MAX} can be shown by one"
    if len(set(ids)) < len(ids):
        yield f"{item.nodeid}: an id is named twice"


# ---------------------------------------------------------------------------------------------------------- the report
def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    options = _parse(arguments)
    documents = read_documents(root)
    known = [promise_id for document in documents for promise_id in document.promises]
    try:
        required = expand(due(root) if options.require == "" else options.require or "", known)
    except ValueError as error:
        print(f"promises: {error}", file=sys.stderr)
        return 2
    shown = read_record(root)
    if shown is None:
        print("promises: no run of this very tree is recorded; run `make test` first", file=sys.stderr)
        return 2
    if options.sample is not None:
        _print_sample(documents, shown, options.sample, options.seed)
    else:
        _print_report(documents, shown)
    missing = [promise_id for promise_id in required if not shown.shows(promise_id)]
    if missing:
        print(f"required but unshown: {', '.join(missing)}")
        return 1
    if required:
        print(f"all {len(required)} required promises are shown")
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.promises", description="Which promises the suite shows.")
    parser.add_argument(
        "--require", nargs="?", const="", metavar="IDS", help="exit 1 if one is unshown: F1,F3-F13 (default: those due)"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="N shown ids with their tests, drawn by --seed")
    parser.add_argument("--seed", default="", metavar="COMMIT", help="what the sample is drawn by")
    return parser.parse_args(arguments)


def _print_report(documents: Iterable[Document], shown: Shown) -> None:
    for document in documents:
        yes = [promise_id for promise_id in document.promises if shown.shows(promise_id)]
        no = [promise_id for promise_id in document.promises if not shown.shows(promise_id)]
        print(f"{document.name}: {len(yes)} of {len(document.promises)} shown")
        print(f"  shown:   {', '.join(yes) or 'none'}")
        print(f"  unshown: {', '.join(no) or 'none'}")
        for promise_id in no:
            for test in shown.broken.get(promise_id, ()):
                print(f"    {promise_id} is not shown by {test}, which did not pass")


def _print_sample(documents: Iterable[Document], shown: Shown, size: int, seed: str) -> None:
    texts = {promise_id: text for document in documents for promise_id, text in document.promises.items()}
    candidates = sorted(promise_id for promise_id in texts if shown.shows(promise_id))
    for promise_id in sorted(random.Random(seed).sample(candidates, min(size, len(candidates)))):
        print(f"{promise_id}: {texts[promise_id]}")
        for test in shown.by[promise_id]:
            print(f"    {test}")


if __name__ == "__main__":
    sys.exit(main())
