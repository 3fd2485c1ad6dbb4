"""Every route is on exactly one of two lists, written out here by hand; and a route that asks for a token refuses what
is not good enough, and then nothing is written.

A new route is added to the lists below and to nothing else: the rest of this file finds it.
"""

import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import jwt
import pytest
from starlette.routing import BaseRoute

from services.__main__ import discover
from services.kernel.auth import Access, PublicRoute
from services.operations import web
from services.operations.access import GuardedRoute
from services.operations.environment import load
from services.operations.openapi import Listed, described, listed, method_of
from services.operations.process import Process
from services.operations.serving import page_invariant, routes_of
from tests.fixtures.database import Connection, DatabaseUrl
from tests.fixtures.tokens import ISSUER, KID, PublishedKeys, bearer, claims, forged, private_key, token
from tests.operations.conftest import log_sender
from tests.test_main import REQUIRED

PUBLIC = {
    "GET /health/live",
    "GET /health/ready",
    "GET /metrics",
    "POST /webhooks/clerk",
    "POST /webhooks/stripe",
}
AUTHENTICATED = {
    "GET /admin/fulfillments/attention": Access.ADMIN,
    "POST /admin/purchases/{purchase_id}/link": Access.ADMIN,
    "POST /admin/users/{user_id}/fulfillment/retrigger": Access.ADMIN,
    "POST /admin/vendors/{vendor}/gate/close": Access.ADMIN,
    "POST /admin/vendors/{vendor}/gate/open": Access.ADMIN,
    "GET /fulfillment": Access.USER,
    "POST /checkout/session": Access.USER,
    "POST /fulfillment/requeue": Access.USER,
}

GUARDED = [row for row in listed(discover()) if row.access is not Access.PUBLIC]
BODY_BYTES_MAX = 2048
TABLES = """
select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname !~ '^pg_'
order by 1"""


def named(row: Listed) -> str:
    return f"{row.method} {row.path}"


# ----------------------------------------------------------------------------------------------------------- the lists
def test_every_route_is_on_exactly_one_list() -> None:
    rows = listed(discover())
    assert PUBLIC & AUTHENTICATED.keys() == set()
    assert sorted(named(row) for row in rows) == sorted([*PUBLIC, *AUTHENTICATED]), "each once"
    assert {named(row): row.access for row in rows if row.access is not Access.PUBLIC} == AUTHENTICATED


def test_an_administrators_address_says_so() -> None:
    for row in GUARDED:
        assert row.path.startswith("/admin/") == (row.access is Access.ADMIN), named(row)


def test_every_route_says_what_it_is_for() -> None:
    said = {named(row): row.summary for row in listed(discover())}
    assert not [name for name, summary in said.items() if " " not in summary], "a function's name is no sentence"


# ---------------------------------------------------------------------------------------------------- the serving whole
@dataclass
class Served:
    """What `rowclaim serve` answers with in this installation, every slice in one process."""

    http: httpx.AsyncClient
    routes: list[BaseRoute]


@pytest.fixture
async def served(database_url: DatabaseUrl) -> AsyncIterator[Served]:
    cards = discover()
    given = {"DATABASE_URL": database_url(), "AUTH_ISSUER": ISSUER, "HTTP_BODY_BYTES_MAX": str(BODY_BYTES_MAX)}
    environ = {f"ROWCLAIM_{name}": value for name, value in (REQUIRED | given).items()}

    async def make_keys(_: Process) -> PublishedKeys:
        return PublishedKeys()

    async with Process.open("serve", cards, load(cards, cards, environ), log_sender) as process:
        routes = await routes_of(process, cards, make_keys)
        app = web.make_app(routes, {}, lambda error: page_invariant(process, error))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            yield Served(http, routes)


def shapes(routes: Iterable[BaseRoute]) -> list[tuple[str, str, str, str]]:
    found = []
    for route in routes:
        assert isinstance(route, PublicRoute | GuardedRoute)
        access = route.access if isinstance(route, GuardedRoute) else "bare"
        operation = route.operation if isinstance(route, PublicRoute) else {"body": str(route.body_field)}
        found.append((method_of(route), route.path, str(access), json.dumps(operation, default=str)))
    return sorted(found)


async def test_what_is_described_is_what_is_served(served: Served) -> None:
    """Slice by slice: the card's ``describe`` is its ``routes``, wired to nothing."""
    assert all((card.routes is None) == (card.describe is None) for card in discover())
    assert shapes(described(discover())) == shapes([*web.health_routes({}, None), *served.routes])


# ------------------------------------------------------------------------------------------------------ what is refused
def unsigned() -> str:
    return jwt.encode(claims(role="admin"), None, algorithm="none", headers={"kid": KID})


def bad_tokens() -> Mapping[str, tuple[dict[str, str], str]]:
    """By fault: the headers of a request, and the code it is answered with."""
    now = claims()["iat"]
    return {
        "none": ({}, "token_missing"),
        "of another scheme": ({"authorization": "Basic dXNlcjpwYXNz"}, "token_missing"),
        "no token": (bearer("nonsense"), "token_malformed"),
        "expired": (bearer(token(role="admin", exp=now - 10)), "token_expired"),
        "not yet valid": (bearer(token(role="admin", nbf=now + 60)), "token_not_yet_valid"),
        "made in the future": (bearer(token(role="admin", iat=now + 60)), "token_not_yet_valid"),
        "another issuer's": (bearer(token(role="admin", iss="https://elsewhere.example")), "token_issuer"),
        "another key's": (bearer(token(role="admin", key=private_key("stranger"))), "token_signature"),
        "unsigned": (bearer(unsigned()), "token_algorithm"),
        "signed with the public key": (bearer(forged()), "token_algorithm"),
        "the same, said to be RS256": (bearer(forged(alg="RS256")), "token_signature"),
        "an unknown key's": (bearer(token(role="admin", headers={"kid": "gone"})), "token_key_unknown"),
        "nobody's": (bearer(token(role="admin", sub=None)), "token_malformed"),
    }


async def contents(owner: Connection) -> dict[str, Any]:
    """Every row of every table, as one hash each."""
    tables = [row[0] for row in await owner.fetch(TABLES)]
    hashed = "select md5(string_agg(t::text, chr(10) order by t::text)) from {} t"
    return {table: await owner.fetchval(hashed.format(table)) for table in tables}


@pytest.mark.parametrize("row", GUARDED, ids=named)
async def test_what_is_not_good_enough_is_refused_and_writes_nothing(
    served: Served, owner: Connection, row: Listed
) -> None:
    path = re.sub(r"\{[^}]+\}", "1", row.path)
    before = await contents(owner)

    async def asked(headers: Mapping[str, str], content: bytes = b"{}") -> tuple[int, str]:
        said = {"content-type": "application/json", **headers}
        answer = await served.http.request(row.method, path, headers=said, content=content)
        assert answer.headers["content-type"] == "application/problem+json"
        if answer.status_code == 401:
            assert answer.headers["www-authenticate"] == "Bearer"
        return answer.status_code, answer.json()["code"]

    for fault, (headers, code) in bad_tokens().items():
        assert await asked(headers) == (401, code), fault
    if row.access is Access.ADMIN:
        for role in (None, "member", "Admin"):
            assert await asked(bearer(token(role=role))) == (403, "role_missing"), role
    good = bearer(token(role="admin"))
    assert await asked(good, b" " * (BODY_BYTES_MAX + 1)) == (413, "request_too_large")
    if row.method != "GET":
        assert await asked(good, b"{") == (422, "request_not_json")
        assert await asked(good | {"content-type": "text/plain"}, b"{}") == (422, "request_not_json")
        for content in (b"", b"[]", b"null", b'{"notAMember": 1}'):
            assert await asked(good, content) == (422, "request_invalid"), content
    assert await contents(owner) == before
