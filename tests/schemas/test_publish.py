"""The published files: up to date, honest, and never replaced by something that breaks who relied on them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from faststream.specification.asyncapi.v3_0_0.schema import ApplicationSchema
from pydantic import BaseModel, Field

from schemas import publish
from schemas.compatibility import Border
from schemas.publish import ASYNCAPI, PUBLISHED, Published, read, render, stale, write
from schemas.triggers import IDS_MAX, TOPICS, EventsTrigger


def test_the_files_are_what_the_classes_say() -> None:
    assert stale() == [], "run `rowclaim schemas`"


@pytest.mark.parametrize("one", PUBLISHED, ids=lambda one: one.name)
def test_a_published_schema_is_one_and_says_for_which_border(one: Published) -> None:
    schema = json.loads(render()[one.file])
    jsonschema.Draft202012Validator.check_schema(schema)
    assert (schema["$id"], schema["x-border"]) == (f"urn:rowclaim:{one.name}", one.border)
    if one.border is Border.REQUEST:
        assert schema["additionalProperties"] is False, "what is not known is refused"
    if one.border is Border.RESPONSE:
        assert sorted(schema["required"]) == sorted(schema["properties"]), "what is not known is null, never absent"


@pytest.mark.parametrize("one", [one for one in PUBLISHED if one.border is Border.TOPIC], ids=lambda one: one.name)
def test_a_published_schema_takes_what_the_class_takes(one: Published) -> None:
    schema = json.loads(render()[one.file])
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    assert one.model is EventsTrigger
    for good in ({"ids": [1]}, {"ids": list(range(1, IDS_MAX + 1)), "later": {}}):
        assert validator.is_valid(good)
        EventsTrigger.model_validate_json(json.dumps(good))
    for bad in ({}, {"ids": []}, {"ids": [0]}, {"ids": ["1"]}, {"ids": list(range(1, IDS_MAX + 2))}, 1, None):
        assert not validator.is_valid(bad)


# ------------------------------------------------------------------------------------------------------------- writing


class Message(BaseModel):
    """A message."""

    id: int


class WithOptional(BaseModel):
    """A message."""

    id: int
    note: str = ""


class WithRequired(BaseModel):
    """A message."""

    id: int
    note: str


@pytest.fixture
def publishes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets the classes say something else."""

    def change(*published: Published) -> None:
        monkeypatch.setattr(publish, "PUBLISHED", published)

    return change


def test_files_are_written_once_and_only_those_that_changed(tmp_path: Path, publishes: Any) -> None:
    publishes(Published("a.v1", Message, Border.TOPIC), Published("b.v1", Message, Border.TOPIC))
    assert stale(tmp_path) == ["a.v1.json", ASYNCAPI, "b.v1.json"]
    assert write(tmp_path) == ["a.v1.json", ASYNCAPI, "b.v1.json"]
    assert write(tmp_path) == stale(tmp_path) == []
    publishes(Published("a.v1", WithOptional, Border.TOPIC), Published("b.v1", Message, Border.TOPIC))
    assert write(tmp_path) == ["a.v1.json", ASYNCAPI]
    assert read(tmp_path) == render()


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        (Published("a.v1", WithRequired, Border.TOPIC), "a.v1.json: breaks a writer: $.note is required"),
        (Published("a.v1", Message, Border.REQUEST), "a.v1.json: was a topic, is a request"),
        (Published("b.v1", Message, Border.TOPIC), "a.v1.json: is published no longer"),
    ],
)
def test_a_breaking_change_is_refused_and_writes_nothing(
    tmp_path: Path, publishes: Any, then: Published, reason: str
) -> None:
    publishes(Published("a.v1", Message, Border.TOPIC))
    write(tmp_path)
    before = read(tmp_path)
    publishes(then)
    with pytest.raises(ValueError, match=reason.replace("$", r"\$")):
        write(tmp_path)
    assert read(tmp_path) == before


def test_a_file_edited_by_hand_is_stale(tmp_path: Path, publishes: Any) -> None:
    publishes(Published("a.v1", Message, Border.TOPIC))
    write(tmp_path)
    path = tmp_path / "a.v1.json"
    path.write_text(path.read_text().replace("A message", "The message"))
    (tmp_path / "forgotten.v1.json").write_text("{}")
    assert stale(tmp_path) == ["a.v1.json", "forgotten.v1.json"]


def test_a_response_is_published_as_it_is_written() -> None:
    class Answer(BaseModel):
        """An answer."""

        as_of: str = Field(default="", serialization_alias="asOf")

    assert list(Published("answer", Answer, Border.RESPONSE).schema()["properties"]) == ["asOf"]


# ------------------------------------------------------------------------------------------------------------ AsyncAPI


def references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        yield from ([node["$ref"]] if "$ref" in node else [])
        for inner in node.values():
            yield from references(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from references(inner)


def test_the_document_is_asyncapi_3_by_somebody_elses_reading() -> None:
    document = json.loads(render()[ASYNCAPI])
    understood = ApplicationSchema.model_validate(document)
    assert set(understood.channels) == {name for topic in TOPICS for name in (topic.name, topic.dead_letters)}


def test_every_reference_of_the_document_leads_somewhere() -> None:
    document = json.loads(render()[ASYNCAPI])
    found = list(references(document))
    assert found
    for reference in found:
        target: Any = document
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]


def test_the_document_names_every_topic_with_its_message_and_its_partitions() -> None:
    document = json.loads(render()[ASYNCAPI])
    for topic in TOPICS:
        channel = document["channels"][topic.name]
        assert channel["bindings"]["kafka"]["partitions"] == topic.partitions
        assert list(channel["messages"]) == [topic.message.__name__]
        message = document["components"]["messages"][topic.message.__name__]
        assert message["payload"]["schema"] == topic.message.model_json_schema()
        assert document["operations"][f"hear.{topic.name}"]["channel"] == {"$ref": f"#/channels/{topic.name}"}
