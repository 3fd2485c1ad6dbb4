"""Both stacks run the same journeys: each is collected for the embedded broker and for Apache Kafka, none left out."""

import re
import subprocess
import sys

from tests.house.source import ROOT, modules

JOURNEYS = "tests/journeys"
COLLECT_S = 120
# What would keep a journey from running on one stack and not on the other.
LEFT_OUT = re.compile(r"\b(skip|skipif|xfail|importorskip|deselect|on_kafka|getoption|collect_ignore\w*)\b")


def collected(stack: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "--no-header", f"--stack={stack}", JOURNEYS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=COLLECT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "deselected" not in done.stdout
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_every_journey_is_collected_for_both_stacks() -> None:
    embedded, kafka = collected("embedded"), collected("kafka")
    assert embedded == kafka
    files = {path.name for path in (ROOT / JOURNEYS).glob("test_*.py")}
    assert {node.partition("::")[0].rpartition("/")[2] for node in embedded} == files, "no file without a journey"


def test_no_journey_knows_on_which_stack_it_runs() -> None:
    found = [
        f"{module.place}:{number}"
        for module in modules(ROOT, JOURNEYS)
        for number, line in enumerate(module.text.splitlines(), start=1)
        if LEFT_OUT.search(line)
    ]
    assert found == []


def test_the_command_runs_all_of_them_with_apache_kafka() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = re.search(r"^STACK_TESTS := ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    assert listed is not None
    assert JOURNEYS in listed[1].split()
    recipe = re.search(r"^stack-test:[^\n]*\n((?:\t[^\n]*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    assert "--stack=kafka" in recipe[1]
    assert "$(STACK_TESTS)" in recipe[1]
    assert not re.search(r" -k| -m |--deselect|--ignore", recipe[1].replace("-m pytest", ""))
    assert "REQUIRE=stack make stack-test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
