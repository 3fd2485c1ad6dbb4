"""The slice's routes in the real app, behind the real check of tokens, with the sandbox outside."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from services.fulfillment.consumer import SERVICE
from services.kernel.errors import Invariant
from services.operations import web
from services.operations.access import Guard
from services.operations.tokens import Tokens
from services.sandbox.stripe.api import DEFAULT_KEY
from services.sandbox.world import Urls
from tests.fixtures.fulfillment import House
from tests.fixtures.tokens import ISSUER, PublishedKeys, bearer, token

BODY_BYTES_MAX = 4096


class Uncounted:
    async def count(self, kind: str, who: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Shop:
    """The API of one installation, and its callers."""

    house: House
    http: httpx.AsyncClient

    async def get(self, path: str, *, user: str = "user_1", role: str | None = None) -> httpx.Response:
        return await self.http.get(path, headers=bearer(token(user, role=role)))

    async def post(
        self, path: str, body: object, *, user: str = "user_1", role: str | None = None, **headers: str
    ) -> httpx.Response:
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(path, json=body, headers=bearer(token(user, role=role)) | headers)

    async def buys(self, username: object, **more: Any) -> httpx.Response:
        return await self.post("/checkout/session", {"githubUsername": username}, **more)

    async def corrects(self, purchase: int, username: str, **more: Any) -> httpx.Response:
        body = {"purchaseId": purchase, "githubUsername": username}
        return await self.post("/fulfillment/requeue", body, **more)

    async def sends_again(self, user: str, **body: Any) -> httpx.Response:
        return await self.post(f"/admin/users/{user}/fulfillment/retrigger", body, user="admin_1", role="admin")

    async def links(self, purchase: int, **body: Any) -> httpx.Response:
        return await self.post(f"/admin/purchases/{purchase}/link", body, user="admin_1", role="admin")

    async def attention(self) -> list[dict[str, Any]]:
        answer = await self.get("/admin/fulfillments/attention", user="admin_1", role="admin")
        assert answer.status_code == 200
        listed: list[dict[str, Any]] = answer.json()["purchases"]
        return listed


@asynccontextmanager
async def opened(house: House, changes: Mapping[str, str | None] | None = None) -> AsyncIterator[Shop]:
    """A serving process of this test's; a setting changed to None is not set."""
    settings = {name: value for name, value in {**house.environ, **(changes or {})}.items() if value is not None}

    async def invariant(error: Invariant) -> None:
        raise AssertionError(error)

    async with replace(house, environ=settings).runtime() as runtime:
        tokens = Tokens(PublishedKeys(), issuer=ISSUER, parties=(), role_claim="role")
        guard = Guard(tokens, Uncounted(), body_bytes_max=BODY_BYTES_MAX)
        assert SERVICE.routes is not None
        app = web.make_app(await SERVICE.routes(runtime, guard), {}, invariant)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as http:
            yield Shop(house, http)


@pytest.fixture
async def selling(house: House, urls: Urls) -> House:
    """The installation with something to sell."""
    price = {"currency": "usd", "unit_amount": "4900", "product_data[name]": "Course materials"}
    async with httpx.AsyncClient() as http:
        made = await http.post(f"{urls.stripe}/v1/prices", data=price, headers=bearer(DEFAULT_KEY))
    settings = {
        "ROWCLAIM_FULFILLMENT_CHECKOUT_PRICE": made.json()["id"],
        "ROWCLAIM_FULFILLMENT_CHECKOUT_SUCCESS_URL": "https://acme-school.example/thanks",
        "ROWCLAIM_FULFILLMENT_CHECKOUT_CANCEL_URL": "https://acme-school.example/checkout",
    }
    return replace(house, environ={**house.environ, **settings})


@pytest.fixture
async def shop(selling: House) -> AsyncIterator[Shop]:
    async with opened(selling) as shop:
        yield shop
