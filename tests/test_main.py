"""`rowclaim` as a process: the cards it finds, the pager it wires, and how it starts, ends and is refused."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from schemas.triggers import TOPICS
from services.__main__ import discover, issuer_keys, page_sender
from services.kernel.gate import VENDORS
from services.operations.paging import LogSender
from services.operations.process import Process
from services.operations.terminal import Terminal
from services.sandbox.embedded.process import free_port
from services.vendors.jwks import Jwks
from services.vendors.pagerduty import PagerDuty
from tests.fixtures.brokers import BrokerServer, settings_of
from tests.fixtures.database import DatabaseUrl
from tests.fixtures.servers import create_topics
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]
REQUIRED = {
    "FULFILLMENT_STRIPE_API_KEY": "sk_test_1",
    "FULFILLMENT_GITHUB_TOKEN": "t",
    "FULFILLMENT_GITHUB_REPOSITORY": "owner/name",
    "FULFILLMENT_MAIL_FROM": "shop@example.com",
    "FULFILLMENT_PRODUCT_NAME": "The Product",
}


def environ(database_url: DatabaseUrl, **settings: str) -> dict[str, str]:
    """What a process of this test is told, and nothing of the shell's own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROWCLAIM_")}
    run = {"ROWCLAIM_RUN": os.environ["ROWCLAIM_RUN"]} if "ROWCLAIM_RUN" in os.environ else {}
    given = {"DATABASE_URL": database_url(), **REQUIRED, **settings}
    return inherited | run | {f"ROWCLAIM_{name}": value for name, value in given.items()}


def rowclaim(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services", *arguments],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def running(*arguments: str, env: dict[str, str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that stays until the end of the block."""
    with log.open("wb") as written:
        process = subprocess.Popen([sys.executable, "-m", "services", *arguments], env=env, cwd=ROOT, stderr=written)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def ended(process: "subprocess.Popen[bytes]") -> int:
    await wait_until(lambda: process.poll() is not None, within_s=30, what="the process ends")
    return process.returncode


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


async def answers(url: str, status: int = 200) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:

        async def asked() -> bool:
            try:
                return (await http.get(url)).status_code == status
            except httpx.TransportError:
                return False

        await wait_until(asked, within_s=60, what=f"{url} answers {status}")


def test_every_slice_is_found_by_its_card() -> None:
    folders = {path.parent.name for path in (ROOT / "services").glob("*/consumer.py")}
    assert {card.name for card in discover()} == folders >= {"fulfillment", "ingress"}


@pytest.mark.parametrize(("key", "kind"), [(None, LogSender), ("R0UTE", PagerDuty)])
async def test_pages_go_to_pagerduty_where_a_key_is_set(database_url: DatabaseUrl, key: str | None, kind: type) -> None:
    given = environ(database_url, **({"PAGERDUTY_ROUTING_KEY": key} if key else {}))
    terminal = Terminal(discover(), page_sender, given)
    services = terminal.chosen("fulfillment", lambda service: service.consume)
    async with Process.open("toy", services, terminal.load(services), page_sender) as process:
        assert type(await page_sender(process)) is kind


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({"AUTH_ISSUER": "https://issuer.example"}, "https://issuer.example/.well-known/jwks.json"),
        ({"AUTH_ISSUER": "https://issuer.example/"}, "https://issuer.example/.well-known/jwks.json"),
        ({"AUTH_ISSUER": "https://issuer.example", "AUTH_JWKS_URL": "https://keys.example/"}, "https://keys.example/"),
    ],
)
async def test_keys_come_from_the_issuer_or_from_where_the_setting_says(
    database_url: DatabaseUrl, given: dict[str, str], url: str
) -> None:
    terminal = Terminal(discover(), page_sender, environ(database_url, **given), issuer_keys)
    services = terminal.chosen("ingress", lambda service: service.routes)
    async with Process.open("toy", services, terminal.load(services), page_sender) as process:
        keys = await issuer_keys(process)
        assert isinstance(keys, Jwks)
        assert keys._url == url


def test_every_vendor_that_a_gate_can_hold_is_known_to_the_command_line() -> None:
    assert {"github", "jwks", "pagerduty", "smtp", "stripe"} <= VENDORS


def test_a_command_line_without_settings_tells_what_is_missing() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("ROWCLAIM_")}
    done = rowclaim("migrate", env=env)
    assert done.returncode == 78
    assert done.stderr.splitlines()[0] == "rowclaim: setting_invalid: ROWCLAIM_DATABASE_URL: is not set"


def test_the_console_script_is_this_module() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"rowclaim": "services.__main__:main"}


async def test_a_serving_process_answers_until_it_is_told_to_stop(database_url: DatabaseUrl, tmp_path: Path) -> None:
    port = free_port()
    env = environ(database_url, HTTP_PORT=str(port), KAFKA_BOOTSTRAP="127.0.0.1:1")
    with running("serve", env=env, log=tmp_path / "log") as process:
        await answers(f"http://127.0.0.1:{port}/health/ready")
        async with httpx.AsyncClient(trust_env=False, base_url=f"http://127.0.0.1:{port}") as http:
            assert (await http.get("/nowhere")).json()["code"] == "not_found"
            assert (await http.post("/webhooks/stripe", content=b"{}")).status_code == 400
        process.send_signal(signal.SIGTERM)
        assert await ended(process) == 0
    events = [line["event"] for line in lines(tmp_path / "log")]
    assert [event for event in events if event.startswith("process.")] == [
        "process.serving",
        "process.stopping",
        "process.stopped",
    ]
    assert {line["process"] for line in lines(tmp_path / "log")} == {"serve"}


async def test_a_consuming_process_joins_works_and_stops(
    database_url: DatabaseUrl, broker_server: BrokerServer, tmp_path: Path, owner: Any
) -> None:
    port = free_port()
    env = environ(database_url, HEALTH_PORT=str(port)) | settings_of(broker_server)
    await create_topics(broker_server.bootstrap, {topic.name: topic.partitions for topic in TOPICS})
    with running("consume", env=env, log=tmp_path / "log") as process:
        await answers(f"http://127.0.0.1:{port}/health/ready")
        await answers(f"http://127.0.0.1:{port}/health/live")

        async def planned() -> bool:
            return bool(await owner.fetchval("select count(*) from job_runs where state = 'done'"))

        await wait_until(planned, within_s=15, what="the job that is due is done")
        process.send_signal(signal.SIGTERM)
        assert await ended(process) == 0
    assert await owner.fetchval("select count(*) from webhook_subscriptions where consumer = 'fulfillment'") == 6
    assert lines(tmp_path / "log")[-1]["event"] == "process.stopped"


async def test_a_consuming_process_ends_when_our_own_code_fails(
    database_url: DatabaseUrl, tmp_path: Path, owner: Any
) -> None:
    # A statement of ours that the schema refuses stands for a mistake of ours.
    await owner.execute("alter table webhook_deliveries rename column next_attempt_at to lost")
    env = environ(database_url, KAFKA_BOOTSTRAP="127.0.0.1:1")
    with running("consume", "--slice", "fulfillment", env=env, log=tmp_path / "log") as process:
        assert await ended(process) == 70
    told = (tmp_path / "log").read_text().splitlines()
    assert told[-2].startswith("rowclaim: task_crashed: ")
    assert "Traceback" not in told[-2] + told[-1]
    assert await owner.fetchval("select count(*) from pages where dedup_key like 'crashed:consume:%'") >= 1


def test_a_database_that_is_away_at_the_start_is_told() -> None:
    env = environ(lambda role="": "postgres://127.0.0.1:1/none")
    done = rowclaim("serve", env=env)
    assert (done.returncode, done.stderr.splitlines()[-2].split(": ")[1]) == (75, "database_unavailable")
