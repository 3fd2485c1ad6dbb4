"""`--stack=kafka` where Apache Kafka cannot be had: a skip with one reason, and red where it is required."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REASON = (
    "Apache Kafka is not to be had here: there is no java in PATH (Java 17 or newer is needed); "
    "no Docker engine answers (DockerException). Install a Java of 17 or newer and Maven"
)
JOURNEY = "def test_journey(): pass"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """One journey, on a machine without Java and Docker."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", str(pytester.path / "nothing"))
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("REQUIRE", raising=False)
    pytester.makepyfile(JOURNEY)
    return pytester


def run(suite: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return suite.runpytest_subprocess("-p", "tests.stack.plugin", "-p", "no:cacheprovider", "-rs", *arguments)


def test_the_embedded_broker_needs_nothing(suite: pytest.Pytester) -> None:
    ended = run(suite)
    ended.assert_outcomes(passed=1)
    ended.stdout.fnmatch_lines(["stack: embedded"])


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_without_java_and_docker_every_test_is_skipped_with_the_reason(
    suite: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    ended = run(suite, "--stack=kafka", *workers)
    ended.assert_outcomes(skipped=1)
    assert ended.ret == pytest.ExitCode.OK
    ended.stdout.fnmatch_lines([f"SKIPPED*{REASON}*"])


def test_where_it_is_required_that_is_red(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUIRE", "stack")
    ended = run(suite, "--stack=kafka")
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    ended.stderr.fnmatch_lines([f"*REQUIRE=stack: {REASON}*"])


@pytest.fixture
def supplied(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The same, where Apache Kafka is to be had, and must be."""
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setenv("REQUIRE", "stack")
    suite.makeconftest(
        "from tests.stack import plugin\n"
        "class Supply: described = 'a box of them'\n"
        "plugin.find_supply = Supply\n"
        "class Met: version = 'Apache Kafka 9.9.9'\n"
    )
    return suite


MEETS = """
import pytest
from conftest import Met, plugin
def test_journey(pytestconfig): plugin.met(pytestconfig, Met)
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_what_the_broker_says_of_itself_is_printed(supplied: pytest.Pytester, workers: tuple[str, ...]) -> None:
    supplied.makepyfile(MEETS)
    ended = run(supplied, "--stack=kafka", *workers)
    ended.assert_outcomes(passed=1)
    assert ended.ret == pytest.ExitCode.OK
    ended.stdout.fnmatch_lines(["stack: Apache Kafka, a box of them", "ran on Apache Kafka 9.9.9"])


def test_where_it_comes_in_a_container_the_tests_of_the_jars_are_no_part_of_the_run(
    supplied: pytest.Pytester,
) -> None:
    supplied.makeconftest(
        "from tests.stack import plugin\n"
        "plugin.find_supply = lambda: plugin.FromImage('apache/kafka:9.9.9')\n"
        "class Met: version = 'Apache Kafka 9.9.9'\n"
    )
    of_the_jars = "from tests.stack.jars import find_jars\ndef test_of_the_jars(): find_jars()"
    supplied.makepyfile(test_meets=MEETS, test_of_the_jars=of_the_jars)
    ended = run(supplied, "--stack=kafka", "test_meets.py", "test_of_the_jars.py")
    ended.assert_outcomes(passed=1, deselected=1)
    assert ended.ret == pytest.ExitCode.OK


@pytest.mark.parametrize(
    ("more", "shortcoming"),
    [
        ("def test_other(): pytest.skip('no time')", "1 skipped"),
        ("def test_journey(): pass", "no test met Apache Kafka"),
    ],
)
def test_where_it_is_required_a_skip_is_red_and_so_is_a_run_that_never_met_it(
    supplied: pytest.Pytester, more: str, shortcoming: str
) -> None:
    supplied.makepyfile(f"{MEETS}\n{more}")
    ended = run(supplied, "--stack=kafka")
    assert ended.ret == pytest.ExitCode.TESTS_FAILED
    ended.stdout.fnmatch_lines([f"REQUIRE=stack: {shortcoming}"])


@pytest.mark.parametrize("choice", [("-k", "other"), ("-m", "slow"), ("--deselect", "test_journey")])
def test_where_it_is_required_nothing_may_be_left_out(supplied: pytest.Pytester, choice: tuple[str, str]) -> None:
    ended = run(supplied, "--stack=kafka", *choice)
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    ended.stderr.fnmatch_lines(["*every journey must run, but some were asked to be left out*"])
