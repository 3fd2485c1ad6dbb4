"""``rowclaim reference``: the pages of docs/reference that are written from the code, so that they cannot disagree."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import SecretStr
from pydantic_core import PydanticUndefined

from services.kernel.auth import Access
from services.kernel.errors import CODES, Stop
from services.kernel.service import Service
from services.kernel.settings import FILE, Environment, Settings, variables
from services.operations.environment import SandboxSettings
from services.operations.openapi import document, listed
from services.operations.terminal import Terminal

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "reference"
WRITTEN_BY: Final = "<!-- Written by `rowclaim reference`; edit the code instead. -->\n"


def reference(
    context: typer.Context,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a page is stale.")] = False,
) -> None:
    """Write docs/reference: errors, settings, routes and the OpenAPI document."""
    terminal: Terminal = context.obj
    pages = render(terminal.services)
    if check:
        if stale := stale_pages(pages, FOLDER):
            raise Stop("reference_stale", ", ".join(stale))
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    terminal.show([{"page": str(FOLDER / name)} for name in pages], as_json=False)


def stale_pages(pages: dict[str, str], folder: Path) -> list[str]:
    """The pages whose file is missing or says something else."""
    return [
        name
        for name, text in pages.items()
        if not (folder / name).exists() or (folder / name).read_text(encoding="utf-8") != text
    ]


def render(services: Iterable[Service]) -> dict[str, str]:
    """Every page by its file name."""
    cards = tuple(services)
    return {
        "errors.md": errors_page(),
        "openapi.json": json.dumps(document(cards), indent=2) + "\n",
        "routes.md": routes_page(cards),
        "settings.md": settings_page(cards),
    }


def errors_page() -> str:
    rows = [
        f"| `{code.name}` | {code.status or ''} | {'' if code.exit is None else code.exit} | {code.sentence} |"
        for code in sorted(CODES.values(), key=lambda code: code.name)
    ]
    return "\n".join(
        [
            f"{WRITTEN_BY}# Errors",
            "",
            "Every failure has one code: in the body of an HTTP answer (`application/problem+json`, member `code`),",
            "on standard error of a command, and in the log. Exit statuses follow `sysexits(3)`; 1 is what waits for",
            "a person, and a demo whose verdict is bad. Beside them: 2 a command line that cannot be, 130 interrupted.",
            "",
            "| code | HTTP | exit | what to do |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def routes_page(services: Iterable[Service]) -> str:
    rows = listed(services)
    public = [row for row in rows if row.access is Access.PUBLIC]
    authenticated = [row for row in rows if row.access is not Access.PUBLIC]
    return "\n".join(
        [
            f"{WRITTEN_BY}# Routes",
            "",
            "Every route of `rowclaim serve` stands on one of these two lists; [openapi.json](openapi.json) describes",
            "them. An API route is checked, counted and bounded before anything of its body is read.",
            "",
            "## Public",
            "",
            "Webhooks are let in by their sender's signature alone.",
            "",
            "| method | path | what |",
            "|---|---|---|",
            *(f"| {row.method} | `{row.path}` | {row.summary} |" for row in public),
            "",
            "## Authenticated",
            "",
            "By `authorization: Bearer` token; `admin` is the role it must say.",
            "",
            "| method | path | who | what |",
            "|---|---|---|---|",
            *(f"| {row.method} | `{row.path}` | {row.access} | {row.summary} |" for row in authenticated),
            "",
        ]
    )


def settings_page(services: Iterable[Service]) -> str:
    sections: list[tuple[str, type[Environment]]] = [("Every process", Settings), ("Newcomers", SandboxSettings)]
    sections += [(f"Slice {service.name}", service.settings) for service in services]
    return "\n".join(
        [
            f"{WRITTEN_BY}# Settings",
            "",
            "Settings are environment variables. A name that begins with `ROWCLAIM_` and is not listed here is",
            "refused, with the nearest known one proposed. A secret may stand in a file instead: the variable's name",
            "and `_FILE`.",
            "",
            *(line for title, kind in sections for line in _section(title, kind)),
        ]
    )


def _section(title: str, kind: type[Environment]) -> list[str]:
    named = variables(kind)
    rows = []
    for variable, name in named.items():
        if variable.endswith(FILE) and variable.removesuffix(FILE) in named:
            continue
        field = kind.model_fields[name]
        in_file = f" (or `{FILE}`)" if f"{variable}{FILE}" in named else ""
        meaning = " ".join((field.description or "").replace("``", "`").split())
        rows.append(f"| `{variable}`{in_file} | {_default(field.get_default())} | {meaning} |")
    return [f"## {title}", "", "| variable | default | meaning |", "|---|---|---|", *rows, ""]


def _default(value: Any) -> str:
    """A default as the environment would say it; every one of them is public."""
    if value is PydanticUndefined:
        return "**required**"
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    match value:
        case None | ():
            return "unset"
        case bool():
            return f"`{str(value).lower()}`"
        case _:
            return f"`{value}`"
