"""A well-mannered GitHub client."""

from collections.abc import AsyncIterator

import httpx
import pytest

from services.sandbox.github.world import DEFAULT_TOKEN
from services.sandbox.world import Urls
from tests.sandbox.clients import plain

HEADERS = {
    "accept": "application/vnd.github+json",
    "authorization": f"Bearer {DEFAULT_TOKEN}",
    "user-agent": "rowclaim-tests",
    "x-github-api-version": "2026-03-10",
}


@pytest.fixture
async def github(urls: Urls) -> AsyncIterator[httpx.AsyncClient]:
    """Speaks to the sandbox's GitHub as its API asks for, with the seeded token."""
    async with plain(base_url=urls.github, headers=HEADERS, timeout=30) as client:
        yield client
