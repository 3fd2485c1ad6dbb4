"""One bounded look at each server the settings name. Each returns what it saw, or raises the fault it found."""

import asyncio
import ssl
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from aiokafka.errors import KafkaError
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import SecretStr
from redis.exceptions import RedisError

from services.kernel.doors import Crossing, Door
from services.kernel.errors import Stop
from services.kernel.lease import connect_valkey
from services.kernel.settings import Settings
from services.operations.migrating import admin, wanted

PROBE_S: Final = 5.0
REGION: Final = "us-east-1"
SMTP_READY: Final = b"220"


async def probe_topics(settings: Settings) -> str:
    """The broker answers and holds every topic of this release."""
    try:
        async with asyncio.timeout(PROBE_S), admin(settings) as client:
            with Crossing(Door.KAFKA, "list topics"):
                there = set(await client.list_topics())
    except (KafkaError, OSError, TimeoutError) as error:
        raise Stop("broker_unreachable", f"{settings.kafka_bootstrap}: {type(error).__name__}") from error
    missing = [topic.name for topic in wanted() if topic.name not in there]
    if missing:
        raise Stop("topics_missing", ", ".join(missing))
    return f"{settings.kafka_bootstrap}, {len(wanted())} topics"


async def probe_valkey(url: SecretStr) -> str:
    """Valkey answers a PING."""
    client = connect_valkey(url.get_secret_value())
    try:
        with Crossing(Door.VALKEY, "ping"):
            await client.ping()
    except (RedisError, OSError) as error:
        raise Stop("valkey_unreachable", f"{_place(url)}: {type(error).__name__}") from error
    finally:
        await client.aclose()
    return _place(url)


async def probe_mail(url: SecretStr) -> str:
    """A mail server greets. Nothing is sent."""
    split = urlsplit(url.get_secret_value())
    tls = split.scheme == "smtps"
    port = split.port or (465 if tls else 25)
    context = ssl.create_default_context() if tls else None
    try:
        async with asyncio.timeout(PROBE_S):
            with Crossing(Door.SMTP, "greeting"):
                reader, writer = await asyncio.open_connection(split.hostname, port, ssl=context)
                try:
                    greeting = await reader.readline()
                    with suppress(OSError):  # who hangs up before the goodbye has greeted all the same
                        writer.write(b"QUIT\r\n")
                        await reader.read()
                finally:
                    writer.close()
                    with suppress(OSError):
                        await writer.wait_closed()
    except (OSError, TimeoutError) as error:
        raise Stop("mail_unreachable", f"{split.hostname}:{port}: {type(error).__name__}") from error
    if not greeting.startswith(SMTP_READY):
        raise Stop("mail_unreachable", f"{split.hostname}:{port} greets with something else than a mail server's 220")
    return f"{split.hostname}:{port}"


async def probe_objects(settings: Settings, url: SecretStr) -> str:
    """The object store answers, and the bucket holds its objects locked."""
    keys = (settings.s3_access_key, settings.s3_secret_key)
    access, secret = (key.get_secret_value() if key else None for key in keys)
    config = AioConfig(
        s3={"addressing_style": "path"},
        retries={"total_max_attempts": 1},
        connect_timeout=PROBE_S,
        read_timeout=PROBE_S,
    )
    session: Any = get_session()
    client_of = session.create_client(
        "s3",
        endpoint_url=url.get_secret_value(),
        region_name=REGION,
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        config=config,
    )
    try:
        async with client_of as client:
            with Crossing(Door.OBJECTS, "get lock configuration"):
                found = await client.get_object_lock_configuration(Bucket=settings.s3_bucket)
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        fault = "object_lock_missing" if status == HTTPStatus.NOT_FOUND else "objects_unreachable"
        raise Stop(fault, f"bucket {settings.s3_bucket}: {code}") from error
    except (BotoCoreError, OSError) as error:
        raise Stop("objects_unreachable", f"{_place(url)}: {type(error).__name__}") from error
    if found.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") != "Enabled":
        raise Stop("object_lock_missing", f"bucket {settings.s3_bucket}")
    return f"{_place(url)}, bucket {settings.s3_bucket} locked"


def _place(url: SecretStr) -> str:
    """Host and port of an address, without what may be secret."""
    split = urlsplit(url.get_secret_value())
    return split.netloc.rpartition("@")[2] or split.path
