"""Slices, pairs and processor time."""

import itertools
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAIRS_MIN: Final = 2
PAIRS_MAX: Final = 12


def pairs(until: float) -> Iterator[int]:
    """Numbers of pairs to take, until that instant of the monotonic clock; never fewer than two."""
    for nth in itertools.count():
        if nth >= PAIRS_MAX or (nth >= PAIRS_MIN and time.monotonic() >= until):
            return
        yield nth


@dataclass(frozen=True, slots=True)
class Slice:
    """One short run of one side. ``cpu_us``: processor time of one operation, by who spent it (ours, the server's)."""

    operations: int
    seconds: float
    p50_ms: float | None
    p99_ms: float | None
    client_cpu_us: float
    server_cpu_us: float

    @property
    def per_second(self) -> float:
        return self.operations / self.seconds


@dataclass(frozen=True, slots=True)
class Comparison:
    """Slices of ours and of the baseline, taken in turns."""

    name: str
    baseline_name: str
    unit: str
    ours: Sequence[Slice]
    baseline: Sequence[Slice]

    @property
    def ratios(self) -> list[float]:
        """Ours over the baseline, pair by pair."""
        return [ours.per_second / base.per_second for ours, base in zip(self.ours, self.baseline, strict=True)]

    def as_json(self) -> dict[str, object]:
        ratios = self.ratios
        return {
            "name": self.name,
            "baseline": self.baseline_name,
            "unit": self.unit,
            "pairs": len(ratios),
            "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
            "ours_figures": figures(self.ours),
            "baseline_figures": figures(self.baseline),
        }


def figures(slices: Sequence[Slice]) -> dict[str, float | None]:
    """The medians of a side."""
    return {
        "per_second": statistics.median(one.per_second for one in slices),
        "p50_ms": _median(one.p50_ms for one in slices),
        "p99_ms": _median(one.p99_ms for one in slices),
        "client_cpu_us": statistics.median(one.client_cpu_us for one in slices),
        "server_cpu_us": statistics.median(one.server_cpu_us for one in slices),
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def percentile_ms(latencies_s: Sequence[float], share: float) -> float:
    """The latency below which ``share`` of all lie, in milliseconds."""
    ordered = sorted(latencies_s)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


def cpu_seconds(pid: int) -> float:
    """Processor time used so far by a process and all its descendants, those that live. 0 where /proc is not."""
    spent_ns, waiting = 0, [pid]
    while waiting:
        tasks = Path(f"/proc/{waiting.pop()}/task")
        try:
            for task in tasks.iterdir():
                spent_ns += int((task / "schedstat").read_text().split()[0])
                waiting += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return spent_ns / 1e9
