"""The root of the suite: only what every test of the house needs."""

pytest_plugins = [
    "pytester",
    "tests.promises",
    "tests.stack.plugin",
    "tests.fixtures.leftovers",
    "tests.fixtures.servers",
    "tests.fixtures.database",
    "tests.crash.plugin",
    "tests.fixtures.listening",
    "tests.fixtures.sandbox",
    "tests.fixtures.fulfillment",
]
