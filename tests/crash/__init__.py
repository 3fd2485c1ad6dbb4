"""SIGKILL at every await that leaves the process, the flow driven again, the end compared."""

import pytest

pytest.register_assert_rewrite("tests.crash.sweep")
