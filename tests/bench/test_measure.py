"""The arithmetic of a comparison, and one small run of all of it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.measure import PAIRS_MAX, PAIRS_MIN, Comparison, Slice, cpu_seconds, figures, pairs, percentile_ms
from tests.fixtures.database import ROOT


def one(operations: int, seconds: float = 2.0, p50_ms: float | None = 1.0) -> Slice:
    return Slice(operations, seconds, p50_ms, p50_ms, client_cpu_us=3.0, server_cpu_us=5.0)


def test_a_ratio_is_of_neighbouring_slices() -> None:
    compared = Comparison("ours", "theirs", "ops", [one(300), one(20), one(80)], [one(100), one(10), one(20)])
    assert compared.ratios == [3.0, 2.0, 4.0]
    told = compared.as_json()
    assert told["pairs"] == 3
    assert told["ratio"] == {"median": 3.0, "min": 2.0, "max": 4.0}
    assert figures(compared.ours) == {
        "per_second": 40.0,
        "p50_ms": 1.0,
        "p99_ms": 1.0,
        "client_cpu_us": 3.0,
        "server_cpu_us": 5.0,
    }
    assert figures([one(1, p50_ms=None)])["p50_ms"] is None


def test_sides_of_different_length_are_no_comparison() -> None:
    with pytest.raises(ValueError, match="zip"):
        _ = Comparison("ours", "theirs", "ops", [one(1)], []).ratios


def test_percentiles() -> None:
    latencies = [n / 1000 for n in range(1, 101)]
    assert percentile_ms(latencies, 0.5) == 51
    assert percentile_ms(latencies, 0.99) == 100
    assert percentile_ms([0.002], 0.99) == 2


def test_pairs_end_with_the_time_but_not_before_there_are_two() -> None:
    assert list(pairs(until=0)) == list(range(PAIRS_MIN))
    assert list(pairs(until=time.monotonic() + 3600)) == list(range(PAIRS_MAX))


def test_processor_time_counts_a_process_and_its_children() -> None:
    burning = "import os, sys; os.fork() or [None for _ in iter(int, 1)]; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", burning], stdin=subprocess.PIPE) as parent:
        pids = {parent.pid}
        try:
            deadline = time.monotonic() + 30
            while cpu_seconds(parent.pid) < 1 and time.monotonic() < deadline:
                pids.update(
                    int(child) for child in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
                )
            (own,) = (int(line.split()[0]) for line in Path(f"/proc/{parent.pid}/schedstat").read_text().splitlines())
            assert cpu_seconds(parent.pid) >= 1
            assert own < 0.9e9, "the child spends it, not the process itself"
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)


def test_the_whole_bench_runs_and_reports(tmp_path: Path) -> None:
    """Two tiny pairs of each: that both sides store and finish what they are timed for is asserted by the bench."""
    report = tmp_path / "bench.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--seconds", "0", "--slice-s", "1", "--share", "0.1", "--json", str(report)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(report.read_text())
    assert [(one["name"], one["pairs"]) for one in told["comparisons"]] == [
        ("webhooks", 2),
        ("deliveries, one by one", 2),
        ("deliveries, 50 at a time", 2),
    ]
    for compared in told["comparisons"]:
        assert compared["ratio"]["min"] <= compared["ratio"]["median"] <= compared["ratio"]["max"]
        assert compared["ours_figures"]["per_second"] > 0
        assert compared["baseline"] in done.stdout or compared["baseline"].split(",")[0] in done.stdout
