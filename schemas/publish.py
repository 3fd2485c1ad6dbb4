"""The published form of everything that crosses a border: JSON Schema and AsyncAPI, generated from the classes.

The files in ``schemas/published`` are what others may rely on. ``rowclaim schemas`` writes them, and refuses to replace
one by something that breaks who wrote or read by it: such a change takes a new name (``….v2``) beside the old one.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode

from schemas import fulfillment
from schemas.compatibility import Border, breaks
from schemas.triggers import TOPICS, Topic

DIRECTORY: Final = Path(__file__).resolve().parent / "published"
ASYNCAPI: Final = "asyncapi.json"
BORDER: Final = "x-border"


@dataclass(frozen=True, slots=True)
class Published:
    """One class and the name others know its form by."""

    name: str
    model: type[BaseModel]
    border: Border

    @property
    def file(self) -> str:
        return f"{self.name}.json"

    def schema(self) -> dict[str, Any]:
        """Its JSON Schema; of a response as it is written, of anything else as it is read."""
        mode: JsonSchemaMode = "serialization" if self.border is Border.RESPONSE else "validation"
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"urn:rowclaim:{self.name}",
            BORDER: self.border.value,
            **self.model.model_json_schema(mode=mode),
        }


BODIES: Final = (
    Published("fulfillment.checkout.request", fulfillment.CheckoutRequest, Border.REQUEST),
    Published("fulfillment.checkout.response", fulfillment.CheckoutSession, Border.RESPONSE),
    Published("fulfillment.purchases.response", fulfillment.Purchases, Border.RESPONSE),
    Published("fulfillment.requeue.request", fulfillment.RequeueRequest, Border.REQUEST),
    Published("fulfillment.retrigger.request", fulfillment.RetriggerRequest, Border.REQUEST),
    Published("fulfillment.retrigger.response", fulfillment.RetriggerAnswer, Border.RESPONSE),
    Published("fulfillment.link.request", fulfillment.LinkRequest, Border.REQUEST),
    Published("fulfillment.link.response", fulfillment.PurchaseInSight, Border.RESPONSE),
    Published("fulfillment.attention.response", fulfillment.Attention, Border.RESPONSE),
)
"""HTTP bodies."""

PUBLISHED: Final = (*(Published(topic.name, topic.message, Border.TOPIC) for topic in TOPICS), *BODIES)


def render() -> dict[str, str]:
    """Every file of ``schemas/published``, by name."""
    rendered = {one.file: _text(one.schema()) for one in PUBLISHED}
    return rendered | {ASYNCAPI: _text(asyncapi())}


def broken(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """What replacing the files ``before`` by ``after`` would break, a sentence each."""
    return [
        f"{name}: {reason}" for name in sorted(before) if name != ASYNCAPI for reason in _broken(name, before, after)
    ]


def _broken(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    if name not in after:
        return ["is published no longer"]
    old, new = json.loads(before[name]), json.loads(after[name])
    if old[BORDER] != new[BORDER]:
        return [f"was a {old[BORDER]}, is a {new[BORDER]}"]
    return breaks(old, new, Border(old[BORDER]))


def read(directory: Path = DIRECTORY) -> dict[str, str]:
    """The published files as they lie there."""
    return {path.name: path.read_text() for path in sorted(directory.glob("*.json"))}


def stale(directory: Path = DIRECTORY) -> list[str]:
    """The files that are not what the classes say now."""
    lying, rendered = read(directory), render()
    return sorted(name for name in lying.keys() | rendered.keys() if lying.get(name) != rendered.get(name))


def write(directory: Path = DIRECTORY) -> list[str]:
    """Bring the files up to date; the names of those written. ValueError, and none is written, if one would break."""
    if reasons := broken(read(directory), render()):
        raise ValueError("; ".join(reasons))
    names = stale(directory)
    for name in names:
        (directory / name).write_text(render()[name])
    return names


def asyncapi() -> dict[str, Any]:
    """The AsyncAPI document of every topic and its dead letters."""
    messages = {one.model.__name__: _message(one) for one in PUBLISHED if one.border is Border.TOPIC}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "rowclaim",
            "version": "v1",
            "description": "Trigger topics: doorbells that carry ids. Losing a record costs latency, never an effect.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": dict(channel for topic in TOPICS for channel in _channels(topic)),
        "operations": dict(operation for topic in TOPICS for operation in _operations(topic)),
        "components": {"messages": messages | {"DeadLetter": DEAD_LETTER}},
    }


DEAD_LETTER: Final[dict[str, Any]] = {
    "name": "DeadLetter",
    "summary": "A record that could not be decoded: its bytes and headers unchanged, and where it came from.",
    "contentType": "application/octet-stream",
    "payload": {"description": "Any bytes, or none."},
    "headers": {
        "type": "object",
        "required": ["rowclaim-topic", "rowclaim-partition", "rowclaim-offset", "rowclaim-reason"],
        "properties": {
            "rowclaim-topic": {"type": "string"},
            "rowclaim-partition": {"type": "string", "pattern": "^[0-9]+$"},
            "rowclaim-offset": {"type": "string", "pattern": "^[0-9]+$"},
            "rowclaim-timestamp-ms": {"type": "string", "pattern": "^-?[0-9]+$"},
            "rowclaim-reason": {"type": "string", "description": "Where and how the schema refused it."},
            "rowclaim-key": {"description": "The record's own key; its place in the log is the key here."},
            "rowclaim-cut-bytes": {
                "type": "string",
                "pattern": "^[0-9]+$",
                "description": "Of a record that found no room here: its size. Only its beginning is here.",
            },
        },
    },
}


def _message(one: Published) -> dict[str, Any]:
    return {
        "name": one.model.__name__,
        "summary": (one.model.__doc__ or "").strip(),
        "contentType": "application/json",
        "payload": {
            "schemaFormat": "application/schema+json;version=draft-07",
            "schema": one.model.model_json_schema(),
        },
    }


def _channels(topic: Topic) -> Iterator[tuple[str, dict[str, Any]]]:
    name = topic.message.__name__
    kafka = {"topic": topic.name, "partitions": topic.partitions, "bindingVersion": "0.5.0"}
    yield (
        topic.name,
        {
            "address": topic.name,
            "summary": topic.summary,
            "messages": {name: {"$ref": f"#/components/messages/{name}"}},
            "bindings": {"kafka": kafka},
        },
    )
    yield (
        topic.dead_letters,
        {
            "address": topic.dead_letters,
            "summary": f"What could not be decoded on {topic.name}; for people, read by no service.",
            "messages": {"DeadLetter": {"$ref": "#/components/messages/DeadLetter"}},
            "bindings": {"kafka": {"topic": topic.dead_letters, "partitions": 1, "bindingVersion": "0.5.0"}},
        },
    )


def _operations(topic: Topic) -> Iterator[tuple[str, dict[str, Any]]]:
    for verb, action, channel, summary in (
        ("ring", "send", topic.name, "After the commit that stored the events."),
        ("hear", "receive", topic.name, "Wakes the workers of every service that is owed such events."),
        ("set_aside", "send", topic.dead_letters, "A record that could not be decoded."),
    ):
        yield (
            f"{verb}.{topic.name}",
            {
                "action": action,
                "channel": {"$ref": f"#/channels/{channel}"},
                "summary": summary,
            },
        )


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
