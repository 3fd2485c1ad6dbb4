"""A consuming process for the tests: `python -m tests.operations.ringing_child TOPIC GROUP [die-before-commit]`.

Where the broker is stands in its environment, as for every process of ours. Prints a line of ids for every ring, and
`stopped` after an orderly stop on SIGTERM. With `die-before-commit` it is killed, as by SIGKILL, between its first ring
and the commit of the offset.
"""

import asyncio
import os
import signal
import sys

from services.kernel import doors
from services.kernel.doors import Door
from services.kernel.triggers import Publisher
from services.operations.subscribers import run_subscribers
from services.operations.subscribing import DeadLetters, make_broker, subscribe
from tests.fixtures.brokers import read_kafka


def die_before_commit(door: Door, what: str, moment: str) -> None:
    if door is Door.KAFKA and what.startswith("commit") and moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)


def ring(ids: frozenset[int]) -> None:
    sys.stdout.write(" ".join(map(str, sorted(ids))) + "\n")
    sys.stdout.flush()


async def main(topic: str, group: str, *faults: str) -> None:
    if faults:
        doors.watch(die_before_commit)
    kafka = read_kafka({name: value for name, value in os.environ.items() if name.startswith("ROWCLAIM_KAFKA_")})
    publisher, stop = Publisher(kafka), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    broker = make_broker(kafka)
    subscribe(broker, kafka, topic=topic, group=group, ring=ring, dead_letters=DeadLetters(publisher))
    await run_subscribers(broker, stop)
    await publisher.close()
    sys.stdout.write("stopped\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
