"""What a trigger may carry, and the list of topics."""

import pytest
from pydantic import ValidationError

from schemas.triggers import IDS_MAX, TOPICS, EventsTrigger


def test_a_trigger_is_a_value() -> None:
    assert EventsTrigger(ids=(1, 2)) == EventsTrigger.model_validate_json(b'{"ids":[1,2]}')
    assert len({EventsTrigger(ids=(1,)), EventsTrigger(ids=(1,))}) == 1
    with pytest.raises(ValidationError):
        EventsTrigger(ids=(1,)).ids = (2,)  # type: ignore[misc]  # the point of the test


def test_a_reader_ignores_what_a_newer_writer_adds() -> None:
    assert EventsTrigger.model_validate_json(b'{"ids":[1],"since":"2027-01-01"}') == EventsTrigger(ids=(1,))


@pytest.mark.parametrize("ids", [(), tuple(range(1, IDS_MAX + 2)), (0,), (-1,), (2**63,), ("1",), (1.0,), (True,)])
def test_what_is_no_list_of_ids_is_refused(ids: tuple[object, ...]) -> None:
    with pytest.raises(ValidationError):
        EventsTrigger.model_validate({"ids": ids})


def test_topics_are_distinct_and_say_their_version() -> None:
    names = [name for topic in TOPICS for name in (topic.name, topic.dead_letters)]
    assert len(set(names)) == len(names)
    assert all(topic.name.endswith(".v1") for topic in TOPICS)
    assert all(topic.dead_letters == f"{topic.name}.dlq" for topic in TOPICS)
