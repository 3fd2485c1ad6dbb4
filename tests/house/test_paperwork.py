"""The files around the code do what they say: setup, CI, the servers of production, the image, both type checkers."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.house.source import ROOT, plant

SCRIPTS = Path(sysconfig.get_path("scripts"))


def run(command: list[str | Path], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


# --------------------------------------------------------------------------------------------------------------- setup
@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What setup reads of a clone, without a .venv, and a folder of commands that comes first in PATH."""
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    for folder in (".ci", "services/kernel", "services/sandbox"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "services" / "__init__.py", tmp_path / "services")
    (tmp_path / "commands").mkdir()
    return tmp_path


def setup(clone: Path, groups: str = "embedded", **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{clone / 'commands'}:/usr/bin:/bin"
    return run([clone / ".ci" / "setup", groups], clone, PATH=path, **environment)


def command(clone: Path, name: str, script: str) -> Path:
    path = clone / "commands" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_setup_stops_at_once_where_no_python_will_do(clone: Path) -> None:
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14"):
        command(clone, name, "exit 127")  # what a version manager's shim of a missing version does
    done = setup(clone)
    assert done.returncode == 78
    assert "no Python 3.11 or newer" in done.stderr
    assert "make demo PYTHON=" in done.stderr
    assert not (clone / ".venv").exists()


def test_setup_stops_at_once_on_an_unsupported_platform(clone: Path) -> None:
    # An interpreter that believes it runs on a Mac with an Intel processor.
    command(
        clone,
        "sitecustomize.py",
        'import platform\nplatform.system = lambda: "Darwin"\nplatform.machine = lambda: "x86_64"',
    )
    shim = command(clone, "python3", f'PYTHONPATH={clone / "commands"} exec {sys.executable} "$@"')
    done = setup(clone, PYTHON=str(shim))
    assert done.returncode == 78
    assert "Darwin on x86_64" in done.stderr
    assert "ROWCLAIM_DATABASE_URL" in done.stderr, "the way out"
    assert not (clone / ".venv").exists()


def test_the_platform_is_judged_before_anything_is_installed() -> None:
    judge = "import services.sandbox.embedded.packages as packages; packages.check_platform()"
    without_site_packages = run([sys.executable, "-S", "-c", judge], ROOT)
    assert without_site_packages.returncode == 0, without_site_packages.stderr


def test_setup_makes_the_venv_once_for_each_change_of_what_decides_it(clone: Path) -> None:
    """With a pip that only writes down what it was asked to install."""
    asked = clone / "asked"
    shim = command(
        clone,
        "python3",
        f"""case "$*" in
        "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
        "-m pip"*) echo "$*" >> {asked} ;;
        *) exec {sys.executable} "$@" ;;
        esac""",
    )

    def installs(groups: str, **environment: str) -> int:
        before = asked.read_text().count("\n") if asked.exists() else 0
        done = setup(clone, groups, **environment)
        assert done.returncode == 0, done.stderr
        return asked.read_text().count("\n") - before

    assert installs("embedded", PYTHON=str(shim)) == 1
    assert "--only-binary :all: --constraint constraints.txt --editable .[embedded]" in asked.read_text()
    assert installs("embedded") == 0, "nothing changed, and no interpreter asked for"
    assert installs("embedded,dev") == 1
    assert installs("embedded") == 0, "a subset is there already"
    (clone / "constraints.txt").write_text("anyio==0\n")
    assert installs("embedded,dev", PYTHON=str(shim)) == 1
    project = (clone / "pyproject.toml").read_text()
    (clone / "pyproject.toml").write_text(project + "\n# a tool's setting\n")
    assert installs("embedded,dev") == 0
    (clone / "pyproject.toml").write_text(project.replace('"anyio",', '"anyio>=4",'))
    assert installs("embedded,dev", PYTHON=str(shim)) == 1


# ------------------------------------------------------------------------------------------------------------------ CI
def pipeline(root: Path, *stages: str, total_s: int = 60) -> subprocess.CompletedProcess[str]:
    """`.ci/run` with other stages."""
    script = (ROOT / ".ci" / "run").read_text()
    listed = "\n".join(f'    "{stage}"' for stage in stages)
    script = re.sub(r"STAGES=\(\n.*?\n\)", f"STAGES=(\n{listed}\n)", script, flags=re.DOTALL)
    script = re.sub(r"TOTAL_S=\d+", f"TOTAL_S={total_s}", script)
    plant(root, {".ci/run": script})
    return run(["bash", root / ".ci" / "run"], root)


def test_ci_is_green_only_when_every_stage_is(tmp_path: Path) -> None:
    done = pipeline(tmp_path, "setup 5 true", "test 5 echo closing line")
    assert done.returncode == 0
    assert "closing line" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("ci: green, 2 of 2 stages in ")
    assert re.search(r"^==> test ok in \d+ s$", done.stdout, re.MULTILINE)


def test_ci_is_red_for_a_failure_and_runs_the_rest(tmp_path: Path) -> None:
    done = pipeline(tmp_path, "setup 5 true", "check 5 exit 3", "test 5 echo ran")
    assert done.returncode == 1
    assert "check RED (exit 3)" in done.stdout
    assert "\nran\n" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("ci: RED, 2 of 3 stages green in ")


def test_ci_is_red_for_a_stage_over_its_budget_and_for_one_that_did_not_run(tmp_path: Path) -> None:
    done = pipeline(tmp_path, "setup 5 true", "slow 1 sleep 30")
    assert done.returncode == 1
    assert "slow RED (over its budget of 1 s)" in done.stdout
    done = pipeline(tmp_path, "setup 5 false", "test 5 echo ran")
    assert done.returncode == 1
    assert "test DID NOT RUN" in done.stdout
    assert "\nran\n" not in done.stdout
    done = pipeline(tmp_path, "setup 5 true", "test 5 echo ran", total_s=0)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("ci: RED, 0 of 2")


def test_ci_stays_within_25_minutes_and_runs_only_what_the_makefile_has() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "readonly TOTAL_S=1500\n" in script
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^[^#]*\bmake ([a-z-]+)", script, re.MULTILINE)) <= targets


def test_the_readme_tells_every_target_and_no_other() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)) - {"help"}
    told = set(re.findall(r"^\| `make ([a-z-]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert told == targets


# ---------------------------------------------------------------------------------------------------------- containers
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = YAML(typ="safe").load((ROOT / "docker-compose.yml").read_text())
    return loaded


def schema_check(path: Path) -> subprocess.CompletedProcess[str]:
    return run([SCRIPTS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", path], path.parent)


def test_the_compose_file_follows_the_published_schema(tmp_path: Path) -> None:
    done = schema_check(ROOT / "docker-compose.yml")
    assert done.returncode == 0, done.stdout
    misspelt = tmp_path / "docker-compose.yml"
    misspelt.write_text((ROOT / "docker-compose.yml").read_text().replace("healthcheck:", "healthcheque:"))
    assert schema_check(misspelt).returncode != 0


def test_every_server_is_pinned_healthy_and_on_loopback() -> None:
    services = compose()["services"]
    assert set(services) == {"postgres", "kafka", "valkey", "seaweedfs", "mailpit"}
    for name, service in services.items():
        assert re.fullmatch(r"[a-z/]+:v?\d[\d.]*", service["image"]), f"{name} has no fixed version"
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert service["ports"], name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
    assert "wal_level=logical" in services["postgres"]["command"]
    assert int(services["postgres"]["image"].partition(":")[2]) >= 17
    assert services["kafka"]["image"].startswith("apache/kafka:4.")
    assert services["kafka"]["environment"]["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"


def test_the_image_holds_the_service_group_alone() -> None:
    text = (ROOT / "Dockerfile").read_text()
    installs = re.findall(r"pip install (.*)", text.replace("\\\n", " "))
    assert installs
    assert not any("[" in line for line in installs), "an extra is installed"
    assert re.search(r"^ARG BASE=", text, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}
    copied = set(re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE))
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {name for line in copied for name in line.split()} == sent
    assert all((ROOT / name).exists() for name in sent)


# -------------------------------------------------------------------------------------------------------- type checkers
LITERAL = """
from typing import Final, LiteralString
FIND: Final[LiteralString] = "select 1"
def fetch(query: LiteralString) -> None: ...
def good() -> None:
    fetch(FIND)
"""
BUILT = """
def bad(table: str) -> None:
    fetch(f"select a from {table}")
"""


def test_only_literal_sql_passes_the_second_type_checker(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    plant(tmp_path, {"services/__init__.py": "", "schemas/__init__.py": "", "services/a.py": LITERAL})
    assert run([SCRIPTS / "basedpyright"], tmp_path).returncode == 0
    plant(tmp_path, {"services/a.py": LITERAL + BUILT})
    done = run([SCRIPTS / "basedpyright"], tmp_path)
    assert done.returncode == 1
    assert 'not assignable to "LiteralString"' in done.stdout
    assert "reportArgumentType" in done.stdout


def test_the_first_type_checker_is_strict_and_the_linter_sees_built_sql(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    plant(tmp_path, {"services/__init__.py": "", "schemas/__init__.py": "", "services/a.py": "def f(x): return x\n"})
    untyped = run([SCRIPTS / "mypy", "--cache-dir", os.devnull], tmp_path)
    assert "[no-untyped-def]" in untyped.stdout
    plant(tmp_path, {"services/a.py": LITERAL + BUILT})
    assert "S608" in run([SCRIPTS / "ruff", "check", "--no-cache", "services"], tmp_path).stdout
