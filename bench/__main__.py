"""``python -m bench [--json FILE] [--seconds N]``: every comparison on servers of its own, within a minute in all."""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import uvloop
from rich.console import Console
from rich.table import Table

from bench import claims, ingress
from bench.measure import Comparison, figures
from services.sandbox.embedded.stack import Part, Stack

SECONDS: Final = 42.0
SLICE_S: Final = 1.5
ROWS_ONE_BY_ONE: Final = 1_500
ROWS_IN_BATCHES: Final = 10_000
BATCH: Final = 50
# When each comparison takes no further pair, as a share of the time; what it has begun it finishes.
SHARES: Final = (0.45, 0.7, 0.95)
CUT_OFF_S: Final = 120.0
WIDTH: Final = 112


async def compare_all(folder: Path, seconds: float, slice_s: float, share: float) -> list[Comparison]:
    """All comparisons, one after another, on servers in ``folder``; ``share`` of the rows."""
    began = time.monotonic()
    web_until, single_until, batch_until = (began + seconds * part for part in SHARES)
    stack = Stack(folder / "data", parts=[Part.POSTGRES, Part.BROKER])
    await stack.start()
    try:
        for command in ("migrate", "topics"):
            subprocess.run(  # noqa: ASYNC221 - nothing else runs yet
                [sys.executable, "-m", "services", command],
                cwd=ingress.ROOT,
                env={**os.environ, **stack.settings()},
                stdout=subprocess.DEVNULL,
                timeout=60,
                check=True,
            )
        single, batches = int(ROWS_ONE_BY_ONE * share), int(ROWS_IN_BATCHES * share)
        return [
            await ingress.compare(stack, until=web_until, slice_s=slice_s),
            await claims.compare(stack, until=single_until, batch=1, rows=single),
            await claims.compare(stack, until=batch_until, batch=BATCH, rows=batches),
        ]
    finally:
        await stack.stop()


def table(comparisons: Sequence[Comparison]) -> Table:
    shown = Table(box=None, header_style="bold", pad_edge=False)
    shown.add_column("")
    for column in ("per second", "ratio (min-max)", "p50 / p99 ms", "CPU us: process", "PostgreSQL"):
        shown.add_column(column, justify="right")
    for one in comparisons:
        ratio = one.as_json()["ratio"]
        assert isinstance(ratio, Mapping)
        shown.add_row(
            f"{one.name} ({one.unit})",
            *_row(figures(one.ours), f"x{ratio['median']:.2f} ({ratio['min']:.2f}-{ratio['max']:.2f})"),
        )
        shown.add_row(f"  {one.baseline_name}", *_row(figures(one.baseline), "1"), style="dim")
    return shown


def _row(side: Mapping[str, float | None], ratio: str) -> tuple[str, str, str, str, str]:
    p50, p99 = side["p50_ms"], side["p99_ms"]
    latency = "" if p50 is None or p99 is None else f"{p50:.1f} / {p99:.1f}"
    return (
        f"{side['per_second']:,.0f}",
        ratio,
        latency,
        f"{side['client_cpu_us']:,.0f}",
        f"{side['server_cpu_us']:,.0f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for all comparisons (default {SECONDS:g})")
    parser.add_argument("--slice-s", type=float, default=SLICE_S, help=f"seconds of load a slice (default {SLICE_S})")
    parser.add_argument("--share", type=float, default=1.0, help="of the rows of a slice (default 1)")
    wanted = parser.parse_args()
    began = time.monotonic()

    async def bounded(folder: Path) -> list[Comparison]:
        async with asyncio.timeout(wanted.seconds + CUT_OFF_S):
            return await compare_all(folder, wanted.seconds, wanted.slice_s, wanted.share)

    with (
        tempfile.TemporaryDirectory(prefix="rc-bench-", dir="/tmp") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        Path(folder).chmod(0o755)  # as root, PostgreSQL runs as somebody else
        comparisons = runner.run(bounded(Path(folder)))
    seconds = round(time.monotonic() - began, 1)
    console = Console(width=max(WIDTH, Console().width))
    console.print(table(comparisons))
    told = "Ratios are of neighbouring slices; absolutes are this machine's, this minute's"
    console.print(f"{told}. {os.cpu_count()} cores, load generator included; {seconds} s.", style="dim")
    if wanted.json is not None:
        report = {
            "seconds": seconds,
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "comparisons": [one.as_json() for one in comparisons],
        }
        wanted.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
