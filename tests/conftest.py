"""The root of the suite: only what every test of the house needs."""

pytest_plugins = ["tests.promises", "tests.fixtures.servers", "tests.fixtures.database"]
