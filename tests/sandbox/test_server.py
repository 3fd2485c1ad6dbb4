"""The embedded server: its port, its start and its stop."""

import socket

import httpx
import pytest

from services.sandbox.server import PORTS, listen, serving
from tests.sandbox.clients import plain
from tests.sandbox.receiver import Receiver


def test_a_free_port_is_found_below_the_outgoing_ones() -> None:
    with listen(0) as first, listen(0) as second:
        ports = {first.getsockname()[1], second.getsockname()[1]}
    assert len(ports) == 2
    assert all(port in PORTS for port in ports)
    assert PORTS.stop < 32_768


def test_a_taken_port_is_refused_at_once() -> None:
    with listen(0) as held:
        held.listen()
        with pytest.raises(OSError, match="in use"):
            listen(held.getsockname()[1])


async def test_answers_do_not_wait_for_acknowledgements() -> None:
    with listen(0) as listener:
        assert listener.proto == socket.IPPROTO_TCP, "or asyncio leaves Nagle's algorithm on, at 40 ms an answer"


async def test_a_stopped_server_frees_its_port_and_its_connections() -> None:
    app = Receiver()
    async with plain() as client:
        async with serving(app, 0) as base:
            assert (await client.post(base)).status_code == 200
        with pytest.raises(httpx.ConnectError):
            await client.post(base)
        async with serving(app, int(base.rsplit(":", 1)[1])) as again:
            assert again == base
            assert (await client.post(again)).status_code == 200
