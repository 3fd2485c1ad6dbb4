"""What only Apache Kafka does to its consumers, and how ours take it."""

from typing import Any

from services.operations.subscribers import is_consuming
from tests.fixtures.brokers import BrokerServer, kafka_of
from tests.fixtures.listening import Ears, listening, told
from tests.fixtures.servers import create_topics
from tests.waiting import wait_until


async def test_a_group_that_came_back_before_its_topic_hears_it_soon(own_broker: BrokerServer) -> None:
    """Nothing but the age of what it knows makes it look again; by default that is five minutes."""
    kafka = kafka_of(own_broker)
    await create_topics(own_broker.bootstrap, {"t": 1})
    ears = Ears(kafka, "t")
    async with listening(ears):
        await own_broker.wipe()
        consumer: Any = ears.subscriber.consumer
        await wait_until(lambda: not consumer.assignment(), within_s=90, what="a member without partitions")
        await wait_until(lambda: is_consuming(ears.broker), within_s=90, what="a settled consumer")
        await create_topics(own_broker.bootstrap, {"t": 1})
        await ears.publisher.publish("t", told("1"))
        await ears.until_heard(1, within_s=90)
