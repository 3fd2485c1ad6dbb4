"""Apache Kafka for the tests: the same broker that users run, from Maven's jars or from a container."""
