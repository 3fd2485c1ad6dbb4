"""The sandbox as a process of its own: ready, useful, and gone when told."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from email.message import EmailMessage
from typing import Any

import aiosmtplib
import httpx
import pytest

from services.sandbox import wire
from services.sandbox.control import SandboxControl, SandboxRefused
from services.sandbox.faults import Act, Fault
from services.sandbox.log import Vendor
from services.sandbox.server import listen
from tests.sandbox.clients import plain
from tests.sandbox.github.conftest import HEADERS
from tests.waiting import wait_until

READY_BOUND_S = 30


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.sandbox",
        *arguments,
        env=os.environ | {"ROWCLAIM_RUN": "run-of-this-test"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def stopped(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    async with asyncio.timeout(READY_BOUND_S):
        _, stderr = await process.communicate()
    return process.returncode, stderr.decode()


@pytest.fixture
async def process() -> AsyncIterator[asyncio.subprocess.Process]:
    running = await start("--smtp-port", "0")
    yield running
    if running.returncode is None:
        running.kill()
        await running.communicate()


@pytest.fixture
async def ready(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    async with asyncio.timeout(READY_BOUND_S):
        line: dict[str, Any] = json.loads(await process.stdout.readline())
    return line


async def test_the_ready_line_is_all_a_setting_needs(
    process: asyncio.subprocess.Process, ready: dict[str, Any]
) -> None:
    assert (ready["ready"], ready["pid"], ready["run"]) == (True, process.pid, "run-of-this-test")
    headers = HEADERS | {"authorization": f"Bearer {ready['github_token']}"}
    async with (
        plain() as http,
        SandboxControl(ready["control_url"]) as control,
    ):
        invite = f"{ready['github_url']}/repos/{ready['github_repository']}/collaborators/octocat"
        assert (await http.put(invite, headers=headers, json={"permission": "pull"})).status_code == 201
        key = {"authorization": f"Bearer {ready['stripe_api_key']}"}
        assert (await http.get(f"{ready['stripe_url']}/v1/events", headers=key)).status_code == 200
        assert (await http.get(f"{ready['clerk_issuer']}/.well-known/jwks.json")).status_code == 200
        price = f"{ready['stripe_url']}/v1/prices/{ready['stripe_price']}"
        assert (await http.get(price, headers=key)).status_code == 200
        assert (await control.counts()).run == "run-of-this-test"
        await control.do(wire.AddFault(Fault(Vendor.GITHUB, Act.DROP)))
        with pytest.raises(httpx.RemoteProtocolError):
            await http.put(invite, headers=headers)
        assert {entry.vendor for entry in await control.log()} == set(Vendor)
    process.send_signal(signal.SIGTERM)
    assert await stopped(process) == (0, "")


async def test_mails_are_taken_and_shown(ready: dict[str, Any]) -> None:
    host, port = ready["smtp_url"].removeprefix("smtp://").split(":")
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "shop@example.com", "ada@example.com", "Your invitation, é"
    message["Message-ID"] = "<invite-1@rowclaim>"
    message.set_content("Welcome, Ada\n")
    async with SandboxControl(ready["control_url"]) as control:
        await aiosmtplib.send(message, hostname=host, port=int(port), start_tls=False)
        (mail,) = await control.mails()
        assert (mail.sender, mail.recipients) == ("shop@example.com", ("ada@example.com",))
        assert (mail.message_id, mail.subject) == ("<invite-1@rowclaim>", "Your invitation, é")
        assert mail.text.strip() == "Welcome, Ada"
        assert b"Message-ID: <invite-1@rowclaim>" in mail.content
        await control.do(wire.FailMail("refuse_recipient", times=1))
        with pytest.raises(aiosmtplib.SMTPRecipientsRefused):
            await aiosmtplib.send(message, hostname=host, port=int(port), start_tls=False)
        await control.do(wire.FailMail("defer_data"))
        await control.do(wire.HealMail())
        await aiosmtplib.send(message, hostname=host, port=int(port), start_tls=False)
        assert (await control.counts()).mails == 2
        with pytest.raises(SandboxRefused, match="not a valid MailFault"):
            await control.do(wire.FailMail("explode"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_stops_at_once_whoever_hangs(
    process: asyncio.subprocess.Process, ready: dict[str, Any], number: signal.Signals
) -> None:
    async with (
        SandboxControl(ready["control_url"]) as control,
        plain() as http,
    ):
        await control.do(wire.AddFault(Fault(Vendor.GITHUB, Act.HANG)))
        asked = asyncio.ensure_future(http.get(f"{ready['github_url']}/users/octocat", headers=HEADERS, timeout=60))

        async def hanging() -> int:
            return (await control.counts()).requests

        await wait_until(hanging, within_s=10, what="the request hangs")
        began = time.monotonic()
        process.send_signal(number)
        assert await stopped(process) == (0, "")
        assert time.monotonic() - began < 10
        with pytest.raises(httpx.TransportError):
            await asked


@pytest.mark.parametrize("option", ["--port", "--smtp-port"])
async def test_a_taken_port_is_said_and_exits(option: str) -> None:
    with listen(0) as held:
        held.listen()
        code, stderr = await stopped(await start(option, str(held.getsockname()[1])))
    assert code == 1
    assert stderr.startswith("the sandbox cannot listen: ")
    assert "choose another port" in stderr


async def test_a_given_port_is_used() -> None:
    with listen(0) as free:
        port = free.getsockname()[1]
    running = await start("--port", str(port))
    assert running.stdout is not None
    line = json.loads(await running.stdout.readline())
    assert (line["github_url"], line["smtp_url"]) == (f"http://127.0.0.1:{port}/github", None)
    with pytest.raises(OSError, match=r"refused|timed out"), socket.create_connection(("127.0.0.2", port), timeout=1):
        pass
    running.terminate()
    assert await stopped(running) == (0, "")
