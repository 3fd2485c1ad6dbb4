"""How a process writes its log: whoever speaks, every line is JSON and names what it is about."""

import io
import json
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from services.kernel.telemetry import Trace, unit_of_work
from services.operations.logs import OutageFilter, configure_logging
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
        logging.getLogger("some.package").warning("lost %s", "it")
        try:
            raise RuntimeError("why")
        except RuntimeError:
            structlog.get_logger("ours").exception("failed")
    library, ours = lines()
    assert (library["event"], library["event_id"], library["logger"]) == ("lost it", 7, "some.package")
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


def log_record(name: str, message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, __file__, 1, message, arguments, None)


def test_an_outage_is_one_line_a_form_and_window_and_the_rest_are_counted() -> None:
    now = 100.0
    outage = OutageFilter(every_s=30.0, clock=lambda: now)
    assert outage.filter(log_record("aiokafka.conn", "cannot connect to %s", "a"))
    assert not any(outage.filter(log_record("aiokafka.conn", "cannot connect to %s", node)) for node in "abc" * 100)
    assert outage.filter(log_record("aiokafka.conn", "another form"))
    assert outage.filter(log_record("aiokafka", "cannot connect to %s", "a"))  # another logger's
    now += 31.0
    late = log_record("aiokafka.conn", "cannot connect to %s", "b")
    assert outage.filter(late)
    assert late.getMessage() == "cannot connect to b (300 like it were not written)"


def test_the_filter_leaves_every_other_logger_alone() -> None:
    outage = OutageFilter(clock=lambda: 0.0)
    assert all(outage.filter(log_record("services.kernel.triggers", "the same")) for _ in range(100))


def test_the_filter_works_from_a_handler_for_all_of_the_drivers_loggers() -> None:
    seen: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    handler = Keep()
    handler.addFilter(OutageFilter())
    root = logging.getLogger("aiokafka")
    root.addHandler(handler)
    try:
        for child in ("aiokafka.conn", "aiokafka.consumer.fetcher"):
            for _ in range(70):
                logging.getLogger(child).error("lost %s", "it")
    finally:
        root.removeHandler(handler)
    assert seen == ["lost it", "lost it"]
