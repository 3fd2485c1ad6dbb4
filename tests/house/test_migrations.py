"""Every migration says what, why and which locks, carries a version of its own, and cannot surprise the migrator."""

import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from tests.house.source import ROOT, plant, slices

NAME = re.compile(r"(?P<version>\d{14})_(?P<slice>[a-z]+)_(?P<noun>[a-z][a-z0-9_]*)\.sql")
HEADER = ("what", "why", "locks")
UP = re.compile(r"^-- migrate:up(?P<options>.*)$", re.MULTILINE)
DOWN = re.compile(r"^-- migrate:down\b", re.MULTILINE)
COMMENT = re.compile(r"--[^\n]*")


def faults(root: Path) -> list[str]:
    owners = {"kernel", "operations", *(folder.name for folder in slices(root))}
    paths = sorted((root / "migrations").iterdir())
    versions = Counter(path.name[:14] for path in paths)
    return [
        f"{path.name}: {fault}"
        for path in paths
        for fault in [*_name_faults(path.name, owners, versions), *_text_faults(path.read_text(encoding="utf-8"))]
    ]


def _name_faults(file_name: str, owners: set[str], versions: Counter[str]) -> list[str]:
    name = NAME.fullmatch(file_name)
    if name is None:
        return ["is not called YYYYMMDDHHMMSS_<slice>_<noun>.sql"]
    found: list[str] = []
    if name["slice"] not in owners:
        found.append(f"no slice is called {name['slice']}")
    if versions[name["version"]] > 1:
        # A database that has the first of two skips the second without a word.
        found.append("shares its version")
    try:
        datetime.strptime(name["version"], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        found.append("its version is no instant")
    return found


def _text_faults(text: str) -> list[str]:
    up = UP.search(text)
    if up is None:
        return ["no -- migrate:up"]
    found: list[str] = []
    down = DOWN.search(text)
    if down is None or down.start() < up.start():
        # Noticed by the migrator only when its turn comes, with the earlier files already applied.
        found.append("no -- migrate:down")
    header = text[: up.start()]
    found += [f"its header does not say {word}" for word in HEADER if not re.search(rf"^-- {word}: +\S", header, re.M)]
    body = COMMENT.sub("", text[up.end() : down.start() if down else None])
    if "transaction:false" in up["options"]:
        # Two statements of one file are sent as one implicit transaction, which a concurrent index refuses.
        if len([part for part in body.split(";") if part.strip()]) != 1:
            found.append("has no transaction and more than one statement")
    elif not body.lstrip().startswith("set lock_timeout = '"):
        found.append("does not begin with its lock_timeout")
    return found


GOOD = "-- what:  a\n-- why:   b\n-- locks: none\n-- migrate:up\nset lock_timeout = '2s';\nselect 1;\n-- migrate:down\n"


def test_every_migration_is_well_formed() -> None:
    assert faults(ROOT) == []


def test_a_malformed_migration_is_noticed(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "services/kernel/db.py": "",
            "services/refunds/store.py": "",
            "migrations/20260101000000_kernel_law.sql": GOOD,
            "migrations/20260102000000_refunds_a.sql": GOOD.replace("-- migrate:down\n", ""),
            "migrations/20260103000000_refunds_b.sql": GOOD.replace("-- why:   b\n", "").replace("none", ""),
            "migrations/20260104000000_refunds_c.sql": GOOD,
            "migrations/20260104000000_refunds_d.sql": GOOD,
            "migrations/20260105000000_orders_e.sql": GOOD,
            "migrations/20260106000000_refunds_f.sql": GOOD.replace("set lock_timeout = '2s';\n", ""),
            "migrations/20260107000000_refunds_g.sql": GOOD.replace("up\n", "up transaction:false\n"),
            "migrations/20261307000000_refunds_h.sql": GOOD,
            "migrations/next.sql": GOOD,
            "migrations/20260108000000_refunds_i.sql": "select 1;\n-- migrate:down\n",
        },
    )
    assert faults(tmp_path) == [
        "20260102000000_refunds_a.sql: no -- migrate:down",
        "20260103000000_refunds_b.sql: its header does not say why",
        "20260103000000_refunds_b.sql: its header does not say locks",
        "20260104000000_refunds_c.sql: shares its version",
        "20260104000000_refunds_d.sql: shares its version",
        "20260105000000_orders_e.sql: no slice is called orders",
        "20260106000000_refunds_f.sql: does not begin with its lock_timeout",
        "20260107000000_refunds_g.sql: has no transaction and more than one statement",
        "20260108000000_refunds_i.sql: no -- migrate:up",
        "20261307000000_refunds_h.sql: its version is no instant",
        "next.sql: is not called YYYYMMDDHHMMSS_<slice>_<noun>.sql",
    ]
