"""Where Apache Kafka comes from on this machine: Maven's jars, else a container, else nowhere, with the reasons."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tests.fixtures.brokers import BrokerServer
from tests.stack.container import ContainedKafka, compose_image, require_engine
from tests.stack.jars import JAVA_MIN, Jars, Unavailable, find_jars
from tests.stack.kafka import ApacheKafka

WAY_OUT: Final = (
    f"Install a Java of {JAVA_MIN} or newer and Maven (Debian, Ubuntu: apt-get install openjdk-{JAVA_MIN}-jre-headless "
    "maven), or start Docker."
)


class Supply(Protocol):
    """Makes brokers; none is started yet."""

    def make(self, directory: Path) -> BrokerServer:
        """One broker whose data and log lie in `directory`, which must not be there yet."""

    @property
    def described(self) -> str: ...


@dataclass(frozen=True, slots=True)
class FromJars:
    jars: Jars

    @property
    def described(self) -> str:
        return f"jars in {self.jars.folder}, {self.jars.java}"

    def make(self, directory: Path) -> BrokerServer:
        directory.mkdir(parents=True)
        return ApacheKafka(directory / "data", log_path=directory / "log", jars=self.jars)


@dataclass(frozen=True, slots=True)
class FromImage:
    image: str

    @property
    def described(self) -> str:
        return f"containers of {self.image}"

    def make(self, directory: Path) -> BrokerServer:
        return ContainedKafka(self.image)


def find_supply() -> Supply:
    """Raises Unavailable, with one reason for each way."""
    try:
        return FromJars(find_jars())
    except Unavailable as no_jars:
        try:
            require_engine()
        except Unavailable as no_engine:
            raise Unavailable(f"Apache Kafka is not to be had here: {no_jars}; {no_engine}. {WAY_OUT}") from None
    return FromImage(compose_image())
