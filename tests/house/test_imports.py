"""The import contracts of pyproject.toml hold, and each of them breaks on the violation it is there for."""

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.house.source import ROOT, plant

LINT_IMPORTS = Path(sysconfig.get_path("scripts")) / "lint-imports"
# A small house in which every room, the shared folders and the root exist.
CLEAN = {
    "services/__init__.py": "",
    "services/__main__.py": "import services.refunds.consumer\n",
    "services/kernel/__init__.py": "",
    "services/kernel/db.py": "",
    "services/vendors/__init__.py": "",
    "services/vendors/bank.py": "import services.kernel.db\n",
    "services/sandbox/__init__.py": "",
    "services/refunds/__init__.py": "",
    "services/refunds/machine.py": "",
    "services/refunds/store.py": "import services.refunds.machine\nimport services.kernel.db\n",
    "services/refunds/flow.py": "import services.refunds.store\n",
    "services/refunds/gateway.py": "import services.refunds.machine\nimport services.vendors.bank\n",
    "services/refunds/api.py": "import services.refunds.flow\n",
    "services/refunds/consumer.py": "import services.refunds.gateway\nimport services.refunds.api\n",
    "services/orders/__init__.py": "",
    "services/orders/flow.py": "",
    "services/orders/store.py": "",
    "schemas/__init__.py": "",
}
# One file each, and the contract that it breaks.
VIOLATIONS = {
    "Rooms stack": ("services/refunds/store.py", "import services.refunds.flow"),
    "Slices are strangers": ("services/orders/flow.py", "import services.refunds.machine"),
    "The api calls flow, not store": ("services/refunds/api.py", "import services.refunds.store"),
    "A gateway sees machine, schemas, kernel, vendors": (
        "services/refunds/gateway.py",
        "import services.refunds.store",
    ),
    "Kernel, vendors and schemas know no slice": ("services/kernel/db.py", "import services.refunds.store"),
    "Schemas import nothing of ours": ("schemas/__init__.py", "import services.kernel.db"),
    "The sandbox is the outside world: it knows no slice": (
        "services/sandbox/__init__.py",
        "import services.refunds.machine",
    ),
    "Only gateways speak to vendors": ("services/refunds/flow.py", "import httpx"),
    "Only gateways use the shared vendor adapters": ("services/refunds/flow.py", "import services.vendors.bank"),
    "Only a consumer wires a gateway": ("services/__main__.py", "import services.refunds.gateway"),
    "The machine is pure": ("services/refunds/machine.py", "import asyncpg"),
}


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    # The tree to be looked at must come before the one that is installed.
    environment = {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "200"}
    return subprocess.run(
        [LINT_IMPORTS, "--no-cache"], cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def broken(report: str) -> list[str]:
    return re.findall(r"^(.+) BROKEN\b", report, re.MULTILINE)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return plant(tmp_path, CLEAN)


def test_the_contracts_hold() -> None:
    done = lint(ROOT)
    assert (done.returncode, broken(done.stdout)) == (0, []), done.stdout + done.stderr


def test_a_clean_house_breaks_none(house: Path) -> None:
    done = lint(house)
    assert (done.returncode, broken(done.stdout)) == (0, []), done.stdout + done.stderr


@pytest.mark.parametrize("contract", VIOLATIONS)
def test_each_contract_breaks_on_its_violation(house: Path, contract: str) -> None:
    place, line = VIOLATIONS[contract]
    path = house / place
    path.write_text(f"{path.read_text()}{line}\n")
    done = lint(house)
    assert done.returncode == 1, done.stdout + done.stderr
    assert contract in broken(done.stdout)


def test_every_contract_has_a_violation() -> None:
    stated = re.findall(r'^name = "(.+)"\ntype', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert stated == list(VIOLATIONS)
