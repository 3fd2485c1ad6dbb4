"""Units of work name their row, traces are the standard's, metrics name no row."""

import importlib
import pkgutil

import pytest
import structlog
from prometheus_client import REGISTRY

import services
from services.kernel.telemetry import LABELS, Trace, unit_of_work

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def bound() -> dict[str, object]:
    return dict(structlog.contextvars.get_contextvars())


def test_a_unit_of_work_binds_what_it_is_about() -> None:
    trace = Trace.parse(PARENT)
    with unit_of_work(event_id=7, row_kind="purchase", row_id=12, claim_token=3, trace=trace):
        assert bound() == {
            "event_id": 7,
            "row_kind": "purchase",
            "row_id": 12,
            "claim_token": 3,
            "trace_id": "0af7651916cd43dd8448eb211c80319c",
            "span_id": "b7ad6b7169203331",
        }
    assert bound() == {}


def test_a_unit_inside_a_unit_adds_to_it_and_keeps_its_trace() -> None:
    with unit_of_work(event_id=7):
        outer = bound()
        with unit_of_work(row_kind="purchase", row_id=12):
            assert bound() == outer | {"row_kind": "purchase", "row_id": 12}
        assert bound() == outer
    with unit_of_work(event_id=8):
        assert bound()["trace_id"] != outer["trace_id"]


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
