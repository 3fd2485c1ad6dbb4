"""Log lines name their row, traces are the standard's, metrics name no row."""

import importlib
import io
import json
import logging
import pkgutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from prometheus_client import REGISTRY

import services
from services.kernel.telemetry import LABELS, Trace, configure_logging, unit_of_work
from tests.fixtures.logs import logging_restored

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[Lines]:
    """What was written to stderr, line by line; the logging of the test process is put back as it was."""
    with logging_restored():
        yield lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_of_a_unit_of_work_names_it(lines: Lines) -> None:
    configure_logging("info", process="consume", run="run-1")
    log = structlog.get_logger("services.toy")
    trace = Trace.parse(PARENT)
    with unit_of_work(event_id=7, row_kind="purchase", row_id=12, claim_token=3, trace=trace):
        log.info("toy.delivered", outcome="done")
    log.info("toy.idle")
    inside, outside = lines()
    assert {"event_id": 7, "row_kind": "purchase", "row_id": 12, "claim_token": 3}.items() <= inside.items()
    assert (inside["trace_id"], inside["span_id"]) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert (inside["event"], inside["outcome"], inside["level"]) == ("toy.delivered", "done", "info")
    assert {"process": "consume", "run": "run-1"}.items() <= outside.items()
    assert inside["at"].endswith("Z")
    assert {"event_id", "row_id", "trace_id"}.isdisjoint(outside)


def test_a_unit_inside_a_unit_keeps_its_trace(lines: Lines) -> None:
    configure_logging("info", process="consume", run=None)
    log = structlog.get_logger()
    with unit_of_work(event_id=7):
        log.info("outer")
        with unit_of_work(row_kind="purchase", row_id=12):
            log.info("inner")
        log.info("outer again")
    outer, inner, again = lines()
    assert len(outer["trace_id"]) == 32
    assert inner["trace_id"] == outer["trace_id"] == again["trace_id"]
    assert (inner["event_id"], inner["row_id"]) == (7, 12)
    assert "row_id" not in again


def test_two_units_are_two_traces(lines: Lines) -> None:
    configure_logging("info", process="consume", run=None)
    for event_id in (1, 2):
        with unit_of_work(event_id=event_id):
            structlog.get_logger().info("unit")
    first, second = lines()
    assert first["trace_id"] != second["trace_id"]


def test_libraries_write_the_same_lines(lines: Lines) -> None:
    configure_logging("info", process="consume", run=None)
    with unit_of_work(event_id=7):
        logging.getLogger("some.library").warning("lost %s", "it")
        try:
            raise RuntimeError("why")
        except RuntimeError:
            structlog.get_logger("ours").exception("failed")
    library, ours = lines()
    assert (library["event"], library["event_id"], library["logger"]) == ("lost it", 7, "some.library")
    assert "RuntimeError: why" in ours["exception"]


def test_levels_are_kept_and_chatter_is_not(lines: Lines) -> None:
    configure_logging("debug", process="consume", run=None)
    logging.getLogger("httpx").info("GET https://api/?key=secret")
    logging.getLogger("ours").debug("shown")
    configure_logging("warning", process="consume", run=None)
    structlog.get_logger("ours").info("not shown")
    assert [line["event"] for line in lines()] == ["shown"]


def test_the_brokers_outage_is_told_once(lines: Lines) -> None:
    configure_logging("info", process="consume", run=None)
    for _ in range(70):
        logging.getLogger("aiokafka.conn").error("Unable connect to %s", "127.0.0.1:9")
        logging.getLogger("ours").error("kept")
    events = [line["event"] for line in lines()]
    assert events.count("kept") == 70
    assert len(events) == 71


@pytest.mark.usefixtures("lines")
def test_a_terminal_gets_lines_for_eyes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    configure_logging("info", process="serve", run=None)
    structlog.get_logger().info("hello", port=1)
    assert "hello" in terminal.getvalue()
    assert not terminal.getvalue().startswith("{")


def test_a_position_in_a_trace_is_read_and_written() -> None:
    trace = Trace.parse(PARENT)
    assert trace is not None
    assert trace.header == PARENT
    child = trace.child()
    assert (child.trace_id, child.sampled) == (trace.trace_id, True)
    assert child.span_id != trace.span_id
    assert Trace.parse(child.header) == child
    unsampled = Trace.parse(PARENT[:-2] + "00")
    assert unsampled is not None
    assert not unsampled.sampled
    assert unsampled.header.endswith("-00")


def test_a_new_trace_is_one() -> None:
    first, second = Trace.begin(), Trace.begin()
    assert first.trace_id != second.trace_id
    assert Trace.parse(first.header) == first


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n",
        "00-\u0660af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ],
)
def test_what_is_no_position_is_none(header: str | None) -> None:
    assert Trace.parse(header) is None


def test_a_later_version_may_say_more() -> None:
    assert Trace.parse("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more") is not None


def test_no_metric_names_a_row() -> None:
    for found in pkgutil.walk_packages(services.__path__, "services."):
        if "sandbox" not in found.name and not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    ours = {metric for metric in REGISTRY._collector_to_names if hasattr(metric, "_labelnames")}
    labels = {label for metric in ours for label in metric._labelnames}
    assert len(ours) > 5
    assert labels <= LABELS
    assert not [label for label in LABELS if label.endswith(("id", "token", "user", "email", "key"))]
