"""The layer alone: what a key remembers, and for how long (through the door: see test_api)."""

import pytest

from services.sandbox.clock import SandboxClock
from services.sandbox.http import Answer
from services.sandbox.stripe.idempotency import KEY_LIFE, IdempotencyLayer
from services.sandbox.stripe.refusals import StripeRefusal

ANSWER = Answer(200, b"{}", {})


@pytest.fixture
def clock() -> SandboxClock:
    return SandboxClock()


@pytest.fixture
def layer(clock: SandboxClock) -> IdempotencyLayer:
    return IdempotencyLayer(clock)


def test_a_saved_answer_is_there_for_the_next(layer: IdempotencyLayer) -> None:
    with layer.hold("k", "POST /v1/x", "[]") as slot:
        assert slot.saved is None
        slot.save(ANSWER, "req_1")
    with layer.hold("k", "POST /v1/x", "[]") as slot:
        assert (slot.saved, slot.request_id) == (ANSWER, "req_1")


def test_nothing_saved_frees_the_key_for_anything(layer: IdempotencyLayer) -> None:
    with layer.hold("k", "POST /v1/x", "[]"):
        pass
    with layer.hold("k", "POST /v1/y", "[1]") as slot:
        assert slot.saved is None


def test_a_crash_while_holding_frees_the_key(layer: IdempotencyLayer) -> None:
    with pytest.raises(RuntimeError), layer.hold("k", "POST /v1/x", "[]"):
        raise RuntimeError
    assert layer.slots == {}


def test_an_answer_given_but_not_yet_heard_is_replayed_at_once(layer: IdempotencyLayer) -> None:
    with layer.hold("k", "POST /v1/x", "[]") as first:
        first.save(ANSWER, "req_1")
        with layer.hold("k", "POST /v1/x", "[]") as second:
            assert second.saved is ANSWER


def test_a_key_in_use_outlives_its_day(layer: IdempotencyLayer, clock: SandboxClock) -> None:
    with layer.hold("k", "POST /v1/x", "[]"):
        clock.advance(KEY_LIFE.total_seconds() + 1)
        with pytest.raises(StripeRefusal) as refused, layer.hold("k", "POST /v1/x", "[]"):
            pass
    assert (refused.value.status, refused.value.error["code"]) == (409, "idempotency_key_in_use")


def test_the_day_is_counted_from_the_first_use(layer: IdempotencyLayer, clock: SandboxClock) -> None:
    with layer.hold("k", "POST /v1/x", "[]") as slot:
        slot.save(ANSWER, "req_1")
    for _ in range(2):
        clock.advance(KEY_LIFE.total_seconds() / 2 - 1)
        with layer.hold("k", "POST /v1/x", "[]") as slot:
            assert slot.saved is ANSWER
    clock.advance(3)
    with layer.hold("k", "POST /v1/x", "[]") as slot:
        assert slot.saved is None
