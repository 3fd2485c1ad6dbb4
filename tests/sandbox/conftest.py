"""Somebody to send webhooks to."""

from collections.abc import AsyncIterator

import pytest

from services.sandbox.server import serving
from services.sandbox.world import World
from tests.sandbox.receiver import Receiver


@pytest.fixture
async def receiver(world: World) -> AsyncIterator[Receiver]:
    """A served receiver; the world's outbox is closed with it."""
    app = Receiver()
    async with serving(app, 0) as base:
        app.url = f"{base}/webhooks"
        yield app
        await world.outbox.close()
