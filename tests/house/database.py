"""The project's modules, machines and roles as the laws about the database read them."""

import pkgutil
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType

import services
from services.kernel.transition import Machine
from tests.house.source import ROOT
from tests.house.test_sql_text import Statement, statements

SERVICE_ROLES = ("rowclaim_ingress", "rowclaim_fulfillment", "rowclaim_identity", "rowclaim_operator")
"""Login roles of processes that use the kernel: members of ``rowclaim_service``."""
LOGIN_ROLES = (*SERVICE_ROLES, "rowclaim_reader", "rowclaim_cdc", "rowclaim_retention")
OWNER_ROLE = "rowclaim_owner"

_CREATED = re.compile(r"^create (?:table|view) (?:if not exists )?([\w.]+)", re.MULTILINE)


def lawful_modules() -> Iterator[ModuleType]:
    """Every importable module of services/ but the sandbox and the command line."""
    for found in pkgutil.walk_packages(services.__path__, "services."):
        if not found.name.startswith(("services.sandbox", "services.__main__")):
            yield import_module(found.name)


def machines() -> dict[str, tuple[Machine, ModuleType]]:
    """Every machine of the code by table, with the module that defines its states."""
    found: dict[str, tuple[Machine, ModuleType]] = {}
    for module in lawful_modules():
        for value in vars(module).values():
            if isinstance(value, Machine):
                known, _ = found.setdefault(value.table, (value, import_module(value.states.__module__)))
                assert known is value, f"two machines for {value.table}"
    return found


def claims() -> list[Statement]:
    """Every statement of the code that claims: takes rows for whoever asks, and passes over what others hold."""
    return [statement for statement in statements(ROOT) if re.search(r"\bedge = 'claim'", statement.text)]


def created() -> Mapping[str, str]:
    """Tables and views by the slice whose migration makes them."""
    return {
        name: path.stem.split("_")[1]
        for path in sorted((ROOT / "migrations").glob("*.sql"))
        for name in _CREATED.findall(path.read_text(encoding="utf-8"))
    }
