"""Which engines the suite runs on: `--stack=embedded` (the default) or `--stack=kafka`, the same tests on both.

Without Java and Maven, or Docker, a run on Apache Kafka skips every test with the one reason. With REQUIRE=stack in the
environment that is a failure, as is anything else that keeps a test from running: a skip, a choice of some tests.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fixtures.brokers import BrokerServer
from tests.stack.jars import Unavailable
from tests.stack.supply import FromImage, Supply, find_supply

OPTION: Final = "--stack"
EMBEDDED: Final = "embedded"
KAFKA: Final = "kafka"
HERE: Final = Path(__file__).parent
_SUPPLY: Final = pytest.StashKey[Supply]()
_MISSING: Final = pytest.StashKey[str]()
_VERSIONS: Final = pytest.StashKey[set[str]]()
_TOLD: Final = "kafka_versions"


def required(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether REQUIRE (names parted by commas) asks that the stack be there."""
    return "stack" in environ.get("REQUIRE", "").split(",")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, choices=(EMBEDDED, KAFKA), default=EMBEDDED, help="the broker of the tests")


def on_kafka(config: pytest.Config) -> bool:
    return bool(config.getoption(OPTION) == KAFKA)


def supply_of(config: pytest.Config) -> Supply:
    """Where brokers come from. Only tests that were not skipped for the want of it may ask."""
    return config.stash[_SUPPLY]


def met(config: pytest.Config, broker: BrokerServer) -> None:
    """Remember what a broker that runs says of itself."""
    config.stash[_VERSIONS].add(broker.version)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_VERSIONS] = set()
    if not on_kafka(config) or config.option.collectonly:
        return
    if required() and (config.option.keyword or config.option.markexpr or config.option.deselect):
        raise pytest.UsageError("REQUIRE=stack: every journey must run, but some were asked to be left out")
    try:
        # In the controller first: workers that start side by side find the jars there.
        config.stash[_SUPPLY] = find_supply()
    except Unavailable as reason:
        if required():
            raise pytest.UsageError(f"REQUIRE=stack: {reason}") from None
        config.stash[_MISSING] = str(reason)


def pytest_report_header(config: pytest.Config) -> str:
    if not on_kafka(config):
        return "stack: embedded"
    supply = config.stash.get(_SUPPLY, None)
    return f"stack: Apache Kafka, {supply.described if supply else config.stash.get(_MISSING, 'not looked for')}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests of Apache Kafka itself mean nothing on the embedded broker."""
    itself = collection_path.parent == HERE and collection_path.name.startswith("test_kafka")
    return True if itself and not on_kafka(config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if reason := config.stash.get(_MISSING, ""):
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))
    elif isinstance(config.stash.get(_SUPPLY, None), FromImage):
        # Where Kafka comes in a container there are no jars to start, and that is no fault of the run.
        of_the_jars = [item for item in items if hasattr(getattr(item, "module", None), "find_jars")]
        config.hook.pytest_deselected(items=of_the_jars)
        items[:] = [item for item in items if item not in of_the_jars]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker of a parallel run is done."""
    node.config.stash[_VERSIONS].update(getattr(node, "workeroutput", {}).get(_TOLD, ()))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput[_TOLD] = sorted(config.stash[_VERSIONS])
    elif _shortcomings(config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if on_kafka(config) and (versions := config.stash[_VERSIONS]):
        terminalreporter.write_line(f"ran on {', '.join(sorted(versions))}")
    for shortcoming in _shortcomings(config):
        terminalreporter.write_line(f"REQUIRE=stack: {shortcoming}", red=True)


def _shortcomings(config: pytest.Config) -> list[str]:
    """Why a run that was to show everything on Apache Kafka did not."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if not on_kafka(config) or not required() or config.option.collectonly or reporter is None:
        return []
    skipped = len(reporter.stats.get("skipped", []))
    return [f"{skipped} skipped"] * (skipped > 0) + ["no test met Apache Kafka"] * (not config.stash[_VERSIONS])
