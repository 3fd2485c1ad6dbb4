"""A whole shop for a journey: our own processes as an operator starts them, the vendors outside, a broker between.

    serve        `rowclaim serve`: the front door, to which the sandbox posts signed webhooks
    consumers    any number of `rowclaim consume`, by name; killed, stopped and started again as a journey likes

On Apache Kafka nothing is told to a process but the broker's address: idempotent producers, acks from every replica,
the default session and fetch times. Topics are made by `rowclaim topics`.
"""

import asyncio
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from schemas.triggers import STRIPE_EVENTS
from services.fulfillment.consumer import SERVICE
from services.sandbox.control import SandboxControl
from services.sandbox.embedded.process import Command, ServerProcess, StopStep, free_port, spawn, until_ready
from services.sandbox.outbox import Posting
from services.sandbox.wire import AddStripeEndpoint, CompleteSession, CreateSession
from tests.fixtures.brokers import BrokerServer, settings_of
from tests.fixtures.database import ROOT, Connection
from tests.fixtures.fulfillment import DIES_AT, House, session_params
from tests.waiting import wait_until

READY_S: Final = 90.0
SETTLED_S: Final = 90.0
"""Bounds for a machine that does many other things; on one that does nothing else it is a second or two."""
STOP_S: Final = 60.0
PARTITIONS: Final = tuple(TopicPartition(STRIPE_EVENTS.name, number) for number in range(STRIPE_EVENTS.partitions))
GROUP: Final = f"{SERVICE.name}.{STRIPE_EVENTS.name}"


@dataclass(slots=True)
class Premises:
    """Open `serve` and consumers as needed; `close` ends what still runs, by force."""

    house: House
    control: SandboxControl
    owner: Connection
    broker: BrokerServer
    directory: Path
    settings: dict[str, str] = field(default_factory=dict)
    processes: dict[str, ServerProcess] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    endpoint: str = ""

    # ---------------------------------------------------------------------------------------------------- our processes
    async def open(self, *consumers: str, posting: Posting = Posting.AUTO) -> None:
        """The topics, the front door and these consumers, all ready."""
        self.ports["serve"] = free_port()
        door = f"http://127.0.0.1:{self.ports['serve']}"
        endpoint = await self.control.do(AddStripeEndpoint(f"{door}/webhooks/stripe", posting=posting))
        self.endpoint = endpoint.id
        self.settings = settings_of(self.broker) | {
            "ROWCLAIM_HTTP_PORT": str(self.ports["serve"]),
            "ROWCLAIM_INGRESS_STRIPE_SECRETS": ",".join(endpoint.secrets),
            "ROWCLAIM_FULFILLMENT_DELIVERY_LEASE_S": "6",
        }
        await self.make_topics()
        await asyncio.gather(self.start("serve"), *(self.start(name) for name in consumers))

    async def make_topics(self) -> None:
        done = await self.house.command("topics", "--json", **self.settings)
        assert done.exit == 0, done.err

    async def start(self, name: str, *, dies_at: tuple[str, str, str] | None = None, **settings: str) -> None:
        """Start `rowclaim serve`, or a consumer of this name, and return when it is ready."""
        port = self.ports.setdefault(name, free_port())
        own = {} if name == "serve" else {"ROWCLAIM_HEALTH_PORT": str(port)}
        code = ["-c", DIES_AT, *dies_at] if dies_at else ["-m", "services"]
        process = self.processes[name] = spawn(
            Command(
                name=name,
                argv=(sys.executable, *code, "serve" if name == "serve" else "consume"),
                log_path=self.directory / f"{name}.log",
                death_signal=signal.SIGKILL,
                stop=(StopStep(signal.SIGTERM, STOP_S),),
                environment={**self.house.environ, **self.settings, **own, **settings},
                cwd=ROOT,
            )
        )
        await self.until_ready(name, process)

    async def until_ready(self, name: str, process: ServerProcess) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:

            async def ready() -> bool:
                try:
                    return (await http.get(f"http://127.0.0.1:{self.ports[name]}/health/ready")).is_success
                except httpx.TransportError:
                    return False

            await until_ready(process, ready, within_s=READY_S)

    async def stop(self, name: str) -> int | None:
        """SIGTERM, and its exit code."""
        await self.processes[name].stop()
        return self.processes[name].exit_code

    def named(self, pid: int) -> str:
        """The process with this pid."""
        return next(name for name, process in self.processes.items() if process.pid == pid)

    async def close(self) -> None:
        for process in self.processes.values():
            process.kill()

    async def rung(self, *names: str) -> int:
        """How many records of the trigger topic these consumers were rung by, as their metrics tell."""
        return sum([await self._rung(name) for name in names])

    async def _rung(self, name: str) -> int:
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
            told = (await http.get(f"http://127.0.0.1:{self.ports[name]}/metrics")).text
        line = rf'^rowclaim_trigger_records_total{{result="rung",topic="{re.escape(STRIPE_EVENTS.name)}"}} (\S+)$'
        found = re.search(line, told, re.MULTILINE)
        return int(float(found[1])) if found else 0

    # -------------------------------------------------------------------------------------------------------- the world
    async def sells(self, *logins: str) -> None:
        """Buyers pay; Stripe posts what happened to the front door."""
        for login in logins:
            if self.house.world.github.find_account(login) is None:
                self.house.world.github.add_account(login)
            session = await self.control.do(CreateSession(session_params(login)))
            await self.control.do(CompleteSession(session["id"], email=f"{login}@example.com"))

    async def until_delivered(self, *logins: str) -> None:
        """Each of them has a purchase, delivered, and a mail; and nobody was invited or written to twice."""

        async def settled() -> bool:
            rows = await self.owner.fetch("select github_handle from purchases where fulfillment_state = 'delivered'")
            mailed = {recipient for mail in self.house.sink.messages for recipient in mail.recipients}
            return {row[0] for row in rows} >= set(logins) and mailed >= {f"{login}@example.com" for login in logins}

        try:
            await wait_until(settled, within_s=SETTLED_S, what=f"{logins} delivered")
        except AssertionError as error:
            for name, process in self.processes.items():
                error.add_note(f"{name} ({process.exit_code}): {process.log_tail()}")
            raise
        self.nothing_twice()

    def nothing_twice(self) -> None:
        assert max(Counter(self.house.invited()).values()) == 1
        assert max(Counter(mail.recipients for mail in self.house.sink.messages).values()) == 1

    async def events(self) -> list[int]:
        """Ids of all stored events that fulfillment is owed, oldest first."""
        rows = await self.owner.fetch("select event_id from webhook_deliveries order by event_id")
        return [row["event_id"] for row in rows]

    # ------------------------------------------------------------------------------------------------------- the topics
    async def tell(self, *values: bytes | None, partition: int | None = None) -> None:
        """Anybody who can reach the broker writes to the trigger topic."""
        producer = AIOKafkaProducer(bootstrap_servers=self.broker.bootstrap)
        try:
            await producer.start()
            for value in values:
                # A record must have one of the two.
                key = b"tombstone" if value is None else None
                await producer.send_and_wait(STRIPE_EVENTS.name, value, key=key, partition=partition)
        finally:
            await producer.stop()

    async def ends(self) -> int:
        """How many records the trigger topic has had."""
        return sum((await self._offsets())[0])

    async def until_heard(self, *, more_than: int = 0) -> None:
        """Every record of the trigger topic was read and committed by the group; there are more than so many."""

        async def nothing_left() -> bool:
            ends, committed = await self._offsets()
            return ends == committed and sum(ends) > more_than

        await wait_until(nothing_left, within_s=SETTLED_S, what="every ring heard")

    async def _offsets(self) -> tuple[list[int], list[int]]:
        reader = AIOKafkaConsumer(bootstrap_servers=self.broker.bootstrap, group_id=GROUP, enable_auto_commit=False)
        reader.assign(PARTITIONS)
        try:
            await reader.start()
            ends = await reader.end_offsets(PARTITIONS)
            return [ends[one] for one in PARTITIONS], [await reader.committed(one) or 0 for one in PARTITIONS]
        finally:
            await reader.stop()

    async def dead_letters(self, expected: int) -> list[bytes | None]:
        """The values of so many dead letters, in no order."""
        reader = AIOKafkaConsumer(bootstrap_servers=self.broker.bootstrap, auto_offset_reset="earliest")
        where = TopicPartition(STRIPE_EVENTS.dead_letters, 0)
        reader.assign([where])
        try:
            await reader.start()
            return [(await asyncio.wait_for(reader.getone(where), SETTLED_S)).value for _ in range(expected)]
        finally:
            await reader.stop()


def told(ids: Iterable[int]) -> bytes:
    return f'{{"ids":[{",".join(map(str, ids))}]}}'.encode()
