"""A well-mannered GitHub client, and GitHub's published description."""

from collections.abc import AsyncIterator

import httpx
import pytest

from services.sandbox.github.world import DEFAULT_TOKEN
from services.sandbox.world import Urls
from tests.sandbox.github.description import Description, NotFetched

HEADERS = {
    "accept": "application/vnd.github+json",
    "authorization": f"Bearer {DEFAULT_TOKEN}",
    "user-agent": "rowclaim-tests",
    "x-github-api-version": "2026-03-10",
}


@pytest.fixture
async def github(urls: Urls) -> AsyncIterator[httpx.AsyncClient]:
    """Speaks to the sandbox's GitHub as its API asks for, with the seeded token."""
    async with httpx.AsyncClient(base_url=urls.github, headers=HEADERS, trust_env=False, timeout=5) as client:
        yield client


@pytest.fixture(scope="session")
def description() -> Description:
    """Fails, and never skips, when the description cannot be had."""
    try:
        return Description.load()
    except NotFetched as error:
        pytest.fail(str(error), pytrace=False)
