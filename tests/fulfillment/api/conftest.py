"""The slice's routes in the real app, behind the real check of tokens, with the sandbox outside."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import pytest

from services.sandbox.control import SandboxControl
from services.sandbox.world import Urls
from tests.fixtures.fulfillment import House
from tests.fixtures.shop import Shop, open_shop, shop_settings

Open = Callable[[Mapping[str, str | None]], AbstractAsyncContextManager[Shop]]


@pytest.fixture
def opened(house: House, urls: Urls, control: SandboxControl) -> Open:
    """Opens a serving process of this test's; a setting changed to None is not set."""

    @asynccontextmanager
    async def opened(changes: Mapping[str, str | None]) -> AsyncIterator[Shop]:
        settings = {**house.environ, **shop_settings(urls), **changes}
        environ = {name: value for name, value in settings.items() if value is not None}
        async with replace(house, environ=environ).runtime() as process, open_shop(house, process, control) as shop:
            yield shop

    return opened


@pytest.fixture
async def shop(opened: Open) -> AsyncIterator[Shop]:
    async with opened({}) as shop:
        yield shop
