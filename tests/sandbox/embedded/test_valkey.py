from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from services.sandbox.embedded.process import ExitedEarly
from services.sandbox.embedded.valkey import Valkey


@asynccontextmanager
async def client(server: Valkey) -> AsyncIterator[Redis]:
    connection = Redis.from_url(server.url)
    try:
        yield connection
    finally:
        await connection.aclose()


async def test_keeps_what_it_is_told_until_it_ends(tmp_path: Path) -> None:
    server = Valkey(tmp_path / "data", log_path=tmp_path / "log")
    await server.start()
    try:
        address = server.url
        async with client(server) as first:
            await first.set("key", "value")
            assert await first.get("key") == b"value"
        server.kill()
        await server.start()
        async with client(server) as second:
            assert (server.url, await second.get("key")) == (address, None)
        await server.stop()
        assert (server.process.alive, server.process.exit_code) == (False, 0)
        assert [path.name for path in server.data_dir.iterdir()] == []  # nothing is written, also at an orderly end
    finally:
        await server.stop()


async def test_another_server_on_the_port_is_not_taken_for_ours(valkey_server: Valkey, tmp_path: Path) -> None:
    second = Valkey(tmp_path / "data", log_path=tmp_path / "log", port=valkey_server.port)
    with pytest.raises(ExitedEarly, match="Valkey: it exited with code 1"):
        await second.start()
    async with client(valkey_server) as untouched:
        assert await untouched.ping()
