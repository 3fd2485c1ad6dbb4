"""Six ways out of a process and no seventh: a place where nobody can kill us in a test is a place nobody tested."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from services.kernel.doors import Door
from tests.house.source import ROOT, Module, modules, plant

# Packages and modules that open connections or start processes, whoever brings them.
OUTWARD = frozenset(
    {
        "aiobotocore",
        "aiohttp",
        "aiokafka",
        "aiosmtplib",
        "asyncpg",
        "boto3",
        "botocore",
        "confluent_kafka",
        "faststream",
    }
    | {
        "ftplib",
        "http.client",
        "httpcore",
        "httpx",
        "imaplib",
        "kafka",
        "limits",
        "multiprocessing",
        "poplib",
        "psycopg",
    }
    | {"psycopg2", "redis", "requests", "smtplib", "socket", "socketserver", "stripe", "subprocess", "telnetlib"}
    | {"urllib.request", "urllib3", "valkey", "websockets", "xmlrpc"}
)
# Calls that do the same without such an import.
OUTWARD_CALLS = frozenset(
    {"create_connection", "create_datagram_endpoint", "create_subprocess_exec", "create_subprocess_shell"}
    | {"create_unix_connection", "open_connection", "open_unix_connection", "sock_connect"}
    | {"os.execv", "os.execve", "os.fork", "os.popen", "os.posix_spawn", "os.spawnv", "os.system"}
)
# Modules that exchange something with a server. Each crosses a door around every exchange.
DOORS = {
    "services/kernel/db.py": {"asyncpg"},
    "services/kernel/lease.py": {"redis"},
    "services/kernel/triggers.py": {"aiokafka"},
    "services/operations/limits.py": {"limits", "redis"},
    "services/operations/migrating.py": {"aiokafka", "subprocess"},
    "services/operations/subscribers.py": {"aiokafka", "faststream", "open_connection"},
    "services/operations/subscribing.py": {"aiokafka", "faststream"},
    "services/vendors/http.py": {"httpx"},
    "services/vendors/smtp.py": {"aiosmtplib", "socket"},
}
# Modules that look at servers from outside and are no part of any flow of rows: nothing of theirs can be half done.
OBSERVERS = {
    "services/operations/demo/stage.py": {"asyncpg", "httpx"},  # the demo's audience reads the end state
    "services/operations/installation.py": {"httpx"},  # asks its children whether they are ready
    "services/operations/probes.py": {"aiobotocore", "aiokafka", "botocore", "open_connection", "redis"},  # doctor
    "services/operations/publishing.py": {"subprocess"},  # asks git what was promised
}
# Modules that need a library's names and exchange nothing themselves, with what they need.
NAMES_ONLY = {
    "services/fulfillment/gateway/checkout.py": {"stripe": "its error classes"},
    "services/fulfillment/gateway/invite.py": {"httpx": "the client it is lent, and its error classes"},
    "services/ingress/api/commands.py": {"socket": "the host's name"},
    "services/ingress/gateway/history.py": {"stripe": "its client's type and error classes"},
    "services/ingress/gateway/stripe.py": {"stripe": "its signature check"},
    "services/ingress/store.py": {"asyncpg": "its error classes"},
    "services/kernel/claim.py": {"socket": "the host's name"},
    "services/operations/consuming.py": {"faststream": "the broker's class, handed to subscribing"},
    "services/operations/minting.py": {"httpx": "its error classes"},
    "services/operations/process.py": {"asyncpg": "its error classes"},
    "services/operations/web.py": {"socket": "the listening socket: a way in"},
    "services/vendors/jwks.py": {"httpx": "the client it is lent, and its error classes"},
    "services/vendors/pagerduty.py": {"httpx": "the client it is lent, and its error classes"},
    "services/vendors/stripe.py": {"httpx": "the client of vendors/http", "stripe": "requests handed to that client"},
}


def ways_out(root: Path) -> dict[str, set[str]]:
    """The ways out of each module of services/, the sandbox (which is the outside) left out."""
    found: dict[str, set[str]] = {}
    for module in modules(root, "services"):
        if not module.place.startswith("services/sandbox/") and (ways := set(_ways(module))):
            found[module.place] = ways
    return found


def _ways(module: Module) -> Iterator[str]:
    for _, name in module.imports():
        parts = name.split(".")
        yield from (prefix for n in (1, 2) if (prefix := ".".join(parts[:n])) in OUTWARD)
        if parts[-1] in OUTWARD_CALLS:
            yield parts[-1]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute):
            dotted = ast.unparse(node) if isinstance(node.value, ast.Name) else ""
            yield from {node.attr, dotted} & OUTWARD_CALLS


def own_clients(root: Path) -> list[str]:
    """HTTP exchanges begun without the client of vendors/http.py, whose transport stands in the door."""
    return [
        f"{module.place}:{line}"
        for module in modules(root, "services")
        if not module.place.startswith("services/sandbox/")
        and module.place not in {"services/vendors/http.py", *OBSERVERS}
        for line in _exchanges(module)
    ]


def _exchanges(module: Module) -> Iterator[int]:
    """Where httpx is told to begin an exchange, or where its name or one of its verbs is hidden behind another."""
    verbs = {"AsyncClient", "Client", "delete", "get", "head", "options", "patch", "post", "put", "request", "stream"}
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="httpx"), attr=verb)) if verb in verbs:
                yield node.lineno
            case ast.ImportFrom(module="httpx", names=names) if any(one.name in verbs for one in names):
                yield node.lineno
            case ast.Import(names=names) if any(one.name == "httpx" and one.asname for one in names):
                yield node.lineno


def uncrossed(root: Path, places: Iterator[str] | list[str]) -> list[str]:
    """Modules with a way out that never stand in a door."""
    return [place for place in places if "with Crossing(Door." not in (root / place).read_text(encoding="utf-8")]


def test_nothing_leaves_but_by_a_door() -> None:
    known = {place: ways | NAMES_ONLY.get(place, {}).keys() for place, ways in DOORS.items()}
    known |= {place: set(names) for place, names in NAMES_ONLY.items()} | OBSERVERS
    assert ways_out(ROOT) == known
    assert uncrossed(ROOT, sorted(DOORS)) == []
    assert own_clients(ROOT) == []


def test_a_seventh_way_out_is_noticed(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "services/a/flow.py": "import http.client\nfrom urllib.parse import quote\n",
            "services/a/store.py": "async def f():\n    await asyncio.open_connection()\n    import psycopg2.extras\n",
            "services/a/api.py": "from asyncio import create_subprocess_exec\nfrom urllib import request\n",
            "services/a/machine.py": "import os\nos.fork()\nself.system()\n",
            "services/a/quiet.py": "import json\n",
            "services/a/gateway.py": "def lent(client: httpx.AsyncClient): ...\nhttpx.AsyncClient()\n",
            "services/a/gateways.py": "import httpx\nfrom httpx import Response\nfrom httpx import AsyncClient as C\n"
            "import httpx as h\n",
            "services/sandbox/a.py": "import socket\n",
        },
    )
    assert ways_out(tmp_path) == {
        "services/a/api.py": {"create_subprocess_exec", "urllib.request"},
        "services/a/flow.py": {"http.client"},
        "services/a/gateways.py": {"httpx"},
        "services/a/machine.py": {"os.fork"},
        "services/a/store.py": {"open_connection", "psycopg2"},
    }
    assert own_clients(tmp_path) == [
        f"services/a/{place}" for place in ("gateway.py:2", "gateways.py:3", "gateways.py:4")
    ]
    assert uncrossed(tmp_path, ["services/a/quiet.py"]) == ["services/a/quiet.py"]


def test_every_crossing_names_one_of_the_six_doors() -> None:
    assert {door.name for door in Door} == {"DATABASE", "HTTP", "SMTP", "OBJECTS", "KAFKA", "VALKEY"}
    crossed = {
        name for module in modules(ROOT, "services") for name in re.findall(r"with Crossing\(Door\.(\w+)", module.text)
    }
    assert crossed <= {door.name for door in Door}
