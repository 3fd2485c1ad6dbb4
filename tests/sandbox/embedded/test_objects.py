import datetime
import json
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from services.sandbox.embedded.leftovers import command_line
from services.sandbox.embedded.objects import ObjectStore
from services.sandbox.embedded.process import free_ports
from tests.sandbox.embedded.listening import listening

RETAIN_UNTIL = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture
def bucket() -> str:
    return f"archive-{secrets.token_hex(4)}"


async def put_locked(store: ObjectStore, bucket: str, key: str, body: bytes) -> str:
    """Put an object that nobody may remove, once; returns its version."""
    async with store.client() as client:
        answer = await client.put_object(
            Bucket=bucket,
            Key=key,
            Body=body,
            IfNoneMatch="*",
            ObjectLockMode="COMPLIANCE",
            ObjectLockRetainUntilDate=RETAIN_UNTIL,
        )
    return str(answer["VersionId"])


async def refusal_of_delete(store: ObjectStore, bucket: str, key: str, version: str) -> str:
    async with store.client() as client:
        with pytest.raises(ClientError) as refused:
            await client.delete_object(Bucket=bucket, Key=key, VersionId=version)
        answer = await client.get_object(Bucket=bucket, Key=key)
        assert await answer["Body"].read() == b"segment"
    return str(refused.value.response["Error"]["Code"])


async def test_a_locked_object_is_written_once_and_cannot_be_removed(object_store: ObjectStore, bucket: str) -> None:
    await object_store.create_locked_bucket(bucket)
    await object_store.create_locked_bucket(bucket)  # one that exists is left as it is
    version = await put_locked(object_store, bucket, "segment-1", b"segment")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        await put_locked(object_store, bucket, "segment-1", b"another")
    assert await refusal_of_delete(object_store, bucket, "segment-1", version) == "AccessDenied"


async def test_the_keys_are_checked(object_store: ObjectStore, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "secret_key", "guessed")
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        await object_store.create_locked_bucket(bucket)


async def test_there_is_room_for_a_bucket_in_each_test(object_store: ObjectStore, bucket: str) -> None:
    """By default each takes seven volumes of the 64."""
    async with object_store.client() as client:
        for number in range(10):
            await client.create_bucket(Bucket=f"{bucket}-{number}")
            await client.put_object(Bucket=f"{bucket}-{number}", Key="key", Body=b"segment")


async def test_calls_nobody_and_listens_on_its_own_ports_alone(object_store: ObjectStore) -> None:
    pid = object_store.process.pid
    line = command_line(pid)
    assert line is not None
    assert " -master.telemetry=false " in line
    assert listening(pid) == {("127.0.0.1", port) for port in object_store._ports}


async def test_killed_data_is_served_again_on_other_ports_with_its_locks(tmp_path: Path, bucket: str) -> None:
    first = ObjectStore(tmp_path / "data", log_path=tmp_path / "log")
    await first.start()
    try:
        await first.create_locked_bucket(bucket)
        version = await put_locked(first, bucket, "segment-1", b"segment")
    finally:
        first.kill()
    left = sockets(first._ports)
    assert left != []  # the kill left them behind
    second = ObjectStore(tmp_path / "data", log_path=tmp_path / "log")
    await second.start()
    try:
        assert sockets(first._ports) == []
        assert [path.name for path in second.data_dir.glob("m[0-9]*")] == [f"m{second._ports[2]}"]
        assert second.secret_key != first.secret_key
        assert await refusal_of_delete(second, bucket, "segment-1", version) == "AccessDenied"
    finally:
        await second.stop()
    assert sockets(second._ports) == []


@pytest.fixture
def dead_and_alive() -> Iterator[tuple[int, Path, int, Path]]:
    """Two ports of an earlier run: one left a dead socket, on the other somebody else's answers by now."""
    dead_port, live_port = free_ports(2)
    dead, live = socket_path(dead_port), socket_path(live_port)
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(dead))
    with socket.socket(socket.AF_UNIX) as answering:
        answering.bind(str(live))
        answering.listen()
        yield dead_port, dead, live_port, live
    dead.unlink(missing_ok=True)
    live.unlink(missing_ok=True)


def test_somebody_elses_socket_is_left_alone(tmp_path: Path, dead_and_alive: tuple[int, Path, int, Path]) -> None:
    dead_port, dead, live_port, live = dead_and_alive
    store = ObjectStore(tmp_path, log_path=tmp_path / "log")
    (tmp_path / "ports.json").write_text(json.dumps([dead_port, live_port]))
    store._tidy()
    assert (dead.exists(), live.exists()) == (False, True)


def socket_path(port: int) -> Path:
    return Path(f"/tmp/seaweedfs-master-grpc-{port}.sock")  # noqa: S108 - weed knows no other place


def sockets(ports: tuple[int, ...]) -> list[Path]:
    folder = Path("/tmp")  # noqa: S108 - weed knows no other place
    return [path for port in ports for path in folder.glob(f"seaweedfs-*-{port}.sock")]
