"""One law of claims for every kind of row. A kind gives an adapter (``Kind``) and a two-line test class."""

import pytest

pytest.register_assert_rewrite("tests.conformance.claims")
