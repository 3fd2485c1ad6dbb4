"""An S3 object store with Object Lock (SeaweedFS) as a child process."""

import json
import secrets
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError

from services.sandbox.embedded import packages
from services.sandbox.embedded.process import Command
from services.sandbox.embedded.server import Server

REGION: Final = "us-east-1"

_CANARY_BUCKET: Final = "canary"
_CANARY_WITHIN_S: Final = 1.0  # the first one sometimes hangs, the next one never
_PORT_FLAGS: Final = (
    "s3.port",
    "s3.port.grpc",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
)


class ObjectStore(Server):
    """One server over one data directory, with fresh ports and fresh keys for each object of this class.

    Its stop is a SIGKILL: on SIGTERM it lingers 15 s, and acknowledged objects survive either way.
    """

    name = "S3 object store"
    ready_within_s = 60.0  # some 3 s on an idle machine, most of them its own waits

    def __init__(self, data_dir: Path, *, log_path: Path) -> None:
        # all eight: an unset gRPC port is its port + 10000, where the system's client ports begin
        super().__init__(log_path=log_path, ports_needed=len(_PORT_FLAGS))
        self.data_dir = data_dir
        self.access_key = f"rc{secrets.token_hex(8)}"
        self.secret_key = secrets.token_hex(20)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def client(self, *, bound_s: float = 5.0) -> AsyncIterator[Any]:
        """An aiobotocore S3 client for it: path style, one attempt, `bound_s` for a connection and for each answer."""
        config = AioConfig(
            s3={"addressing_style": "path"},
            retries={"total_max_attempts": 1},
            connect_timeout=bound_s,
            read_timeout=bound_s,
        )
        async with get_session().create_client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=config,
        ) as client:
            yield client

    async def create_locked_bucket(self, name: str) -> None:
        """Create a bucket whose objects can be locked; one that exists is left as it is."""
        async with self.client() as client:
            await _create_bucket(client, name, locked=True)

    async def stop(self) -> None:
        await super().stop()
        self._remove_sockets()

    async def _prepare(self) -> None:
        self._tidy()

    def _tidy(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._remove_sockets()  # of a run that was killed
        for folder in self.data_dir.glob("m[0-9]*"):  # the master's, one for each port it ever had
            shutil.rmtree(folder, ignore_errors=True)

    def _command(self) -> Command:
        self._ports_file.write_text(json.dumps(self._ports))
        return Command(
            name=self.name,
            argv=(
                *(packages.objects_binary(), "-logtostderr=true", "server", f"-dir={self.data_dir}"),
                *("-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
                "-master.telemetry=false",  # on by default, and calls home
                *("-filer", "-s3", f"-s3.config={self._write_keys()}"),
                *(f"-{flag}={port}" for flag, port in zip(_PORT_FLAGS, self._ports, strict=True)),
                *("-s3.port.iceberg=0", "-s3.port.lance=0"),  # else fixed ports: two instances clash
                "-master.peers=none",  # a single master: it leads at once instead of holding an election
                *("-volume.preStopSeconds=0", "-master.volumeSizeLimitMB=64", "-volume.max=64"),
            ),
            log_path=self.log_path,
            death_signal=signal.SIGKILL,
            # a bucket takes one volume at a time instead of seven: the canary alone would leave none of eight
            environment={"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"},
        )

    async def _is_ready(self) -> bool:
        """A bucket list answers seconds before reads and writes do; only our child knows our fresh keys."""
        if not _listens(self.port):
            return False
        try:
            async with self.client(bound_s=_CANARY_WITHIN_S) as client:
                await _create_bucket(client, _CANARY_BUCKET, locked=False)
                await client.put_object(Bucket=_CANARY_BUCKET, Key="canary", Body=b"canary")
                answer = await client.get_object(Bucket=_CANARY_BUCKET, Key="canary")
                return bool(await answer["Body"].read() == b"canary")
        except (BotoCoreError, ClientError, OSError, TimeoutError):
            return False

    def _write_keys(self) -> Path:
        path = self.data_dir / "s3.json"
        path.touch(mode=0o600)
        keys = {"accessKey": self.access_key, "secretKey": self.secret_key}
        identity = {"name": "rowclaim", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
        path.write_text(json.dumps({"identities": [identity]}))
        return path

    @property
    def _ports_file(self) -> Path:
        return self.data_dir / "ports.json"

    def _remove_sockets(self) -> None:
        """Remove the dead sockets of our ports, whose names are fixed: another user on the same ports could not.

        Which ports the last run had stands in a file; a socket that somebody answers on is somebody else's by now.
        """
        if not self._ports_file.exists():
            return
        for port in json.loads(self._ports_file.read_text()):
            for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108 - weed knows no other place
                if not _answers(path):
                    path.unlink(missing_ok=True)


async def _create_bucket(client: Any, name: str, *, locked: bool) -> None:
    try:
        await client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=locked)
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("BucketAlreadyExists", "BucketAlreadyOwnedByYou"):
            raise


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
