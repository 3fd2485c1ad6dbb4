"""``rowclaim migrate`` and ``rowclaim topics``: what must stand before a process starts. Both may be run again."""

import asyncio
import os
import subprocess
import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import parse_qs, urlsplit

import typer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from schemas.triggers import TOPICS
from services.kernel.doors import Crossing, Door
from services.kernel.errors import Retryable, Stop
from services.kernel.inbox import make_partitions
from services.kernel.settings import Settings
from services.kernel.triggers import RECORD_BYTES_MAX
from services.operations.terminal import Terminal, run_async

MIGRATIONS: Final = Path(__file__).resolve().parents[2] / "migrations"
MIGRATE_S: Final = 600.0
TRIES: Final = 4
RETRY_S: Final = 0.5
ADMIN_S: Final = 10.0
DETAIL_MAX: Final = 500
TOPIC_EXISTS: Final = 36
# Kept by key: a record put aside twice counts once. With room for its coordinates beside a record of the largest size.
DEAD_LETTER_CONFIGS: Final = {"cleanup.policy": "compact", "max.message.bytes": str(RECORD_BYTES_MAX)}
LOCAL_HOSTS: Final = (None, "", "localhost", "127.0.0.1", "::1")


def migrate(
    context: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="What was done as JSON.")] = False
) -> None:
    """Bring the database to this release's schema, as the user of ROWCLAIM_DATABASE_URL, and make weeks for events."""
    terminal: Terminal = context.obj
    settings = terminal.load().settings

    async def migrated() -> dict[str, object]:
        async with terminal.connected(settings.database_url_own) as database:
            applied = await apply_migrations(settings)
            return {"applied": applied, "weeks_made": await make_partitions(database)}

    terminal.show(run_async(migrated()), as_json=as_json)


async def apply_migrations(settings: Settings) -> list[str]:
    """Run every pending migration in order; returns their files. Raises Stop("migration_failed")."""
    applied: list[str] = []
    for tries in range(1, TRIES + 1):
        done = await asyncio.to_thread(dbmate, settings, "migrate", "--strict")
        applied += [line.split()[1] for line in done.stdout.splitlines() if line.startswith("Applied: ")]
        if done.returncode == 0:
            break
        # Two migrators at once: one loses, and finds the other's work done when it looks again.
        if tries == TRIES:
            raise failed(settings, done)
        await asyncio.sleep(RETRY_S)
    return applied


async def pending_migrations(settings: Settings) -> list[str]:
    """The files that were not yet applied. Raises Stop("migration_failed")."""
    done = await asyncio.to_thread(dbmate, settings, "status")
    if done.returncode != 0:
        raise failed(settings, done)
    return [line.removeprefix("[ ]").strip() for line in done.stdout.splitlines() if line.startswith("[ ]")]


def failed(settings: Settings, done: subprocess.CompletedProcess[str]) -> Stop:
    """What dbmate said at the end, without the address: it may hold a password."""
    said = done.stderr.replace(_for_dbmate(settings.database_url_own), "ROWCLAIM_DATABASE_URL")
    return Stop("migration_failed", " ".join(said.split())[-DETAIL_MAX:])


def dbmate(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run dbmate on our migrations. The address goes by the environment: an argument can be read by every user."""
    return subprocess.run(
        [
            str(Path(sysconfig.get_path("scripts")) / "dbmate"),
            *("--no-dump-schema", "--env-file", os.devnull, "--migrations-dir", str(MIGRATIONS)),
            *arguments,
        ],
        env={"DATABASE_URL": _for_dbmate(settings.database_url_own), "PATH": os.defpath}
        | ({"ROWCLAIM_RUN": settings.run} if settings.run else {}),
        capture_output=True,
        text=True,
        timeout=MIGRATE_S,
        check=False,
    )


def _for_dbmate(url: str) -> str:
    """On this machine the services connect without TLS unless told otherwise; dbmate would insist on it."""
    split = urlsplit(url)
    if "sslmode" in parse_qs(split.query) or split.hostname not in LOCAL_HOSTS:
        return url
    return split._replace(query="&".join(filter(None, [split.query, "sslmode=disable"]))).geturl()


def topics(
    context: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="What was done as JSON.")] = False
) -> None:
    """Create the trigger topics and their dead-letter topics; those that exist are left as they are."""
    terminal: Terminal = context.obj
    settings = terminal.load().settings
    created = run_async(create_topics(settings))
    terminal.show(
        {"created": created, "existing": [topic.name for topic in wanted() if topic.name not in created]},
        as_json=as_json,
    )


def wanted(replication: int = 1) -> list[NewTopic]:
    """Every topic of this release, each with its dead letters."""
    return [
        new
        for topic in TOPICS
        for new in (
            NewTopic(topic.name, topic.partitions, replication),
            NewTopic(topic.dead_letters, 1, replication, topic_configs=DEAD_LETTER_CONFIGS),
        )
    ]


async def create_topics(settings: Settings) -> list[str]:
    """Create what is missing; returns its names. Raises Retryable("broker_unavailable"), Stop("topic_refused")."""
    try:
        async with asyncio.timeout(ADMIN_S), admin(settings) as client:
            with Crossing(Door.KAFKA, "create topics"):
                answer: Any = await client.create_topics(wanted(settings.kafka_replication))
    except (KafkaError, OSError, TimeoutError) as error:
        raise Retryable("broker_unavailable", f"{settings.kafka_bootstrap}: {type(error).__name__}") from error
    created: list[str] = []
    # Refusals come in the answer, not as exceptions.
    for name, code, *words in answer.topic_errors:
        if code not in (0, TOPIC_EXISTS):
            raise Stop("topic_refused", f"{name}: error {code} {' '.join(map(str, words))}".rstrip())
        if code == 0:
            created.append(name)
    return created


@asynccontextmanager
async def admin(settings: Settings) -> AsyncIterator[AIOKafkaAdminClient]:
    """A connected administration client, closed even when it did not come up."""
    client = AIOKafkaAdminClient(bootstrap_servers=settings.kafka_bootstrap)
    try:
        with Crossing(Door.KAFKA, "connect"):
            await client.start()
        yield client
    finally:
        await client.close()
