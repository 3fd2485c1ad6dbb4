"""The API's document is one that any tool reads, and it describes every route there is."""

import json
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import ValidationError

from schemas import fulfillment as wire
from services.__main__ import discover
from services.kernel.auth import Access
from services.kernel.errors import CODES
from services.operations.openapi import document, listed
from tests.operations.conftest import TOY, MakeTerminal, RunCommand

DOCUMENT = document(discover())
OPERATIONS: list[tuple[str, str, dict[str, Any]]] = [
    (path, method, operation) for path, item in DOCUMENT["paths"].items() for method, operation in item.items()
]


def test_it_is_valid_openapi() -> None:
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert list(OpenAPIV31SpecValidator(DOCUMENT).iter_errors()) == []
    broken = json.loads(json.dumps(DOCUMENT))
    broken["paths"]["/webhooks/stripe"]["post"]["responses"]["400"]["content"] = []
    assert list(OpenAPIV31SpecValidator(broken).iter_errors()) != []


def test_every_route_is_in_it_once_under_a_name_of_its_own() -> None:
    assert {(method.upper(), path) for path, method, _ in OPERATIONS} == {
        (r.method, r.path) for r in listed(discover())
    }
    names = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(set(names)) == len(names)


def test_every_route_that_asks_for_a_token_says_so() -> None:
    access = {(row.method, row.path): row.access for row in listed(discover())}
    for path, method, operation in OPERATIONS:
        asks = access[method.upper(), path] is not Access.PUBLIC
        assert (operation.get("security") == [{"bearer": []}]) is asks, path
        assert {"401", "429"} <= operation["responses"].keys() or not asks, path
        assert ("403" in operation["responses"]) is (access[method.upper(), path] is Access.ADMIN), path
    assert DOCUMENT["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"


def test_a_thing_in_the_address_may_be_unknown_and_says_so() -> None:
    for path, _, operation in OPERATIONS:
        assert "404" in operation["responses"] or "{" not in path, path
    opened = DOCUMENT["paths"]["/admin/vendors/{vendor}/gate/open"]["post"]
    assert opened["responses"]["409"]["description"] == "The gate is open already."


@pytest.mark.parametrize("status", ["400", "401", "403", "408", "413", "422", "429", "500"])
def test_every_failure_is_a_problem(status: str) -> None:
    answers = [operation["responses"][status] for _, _, operation in OPERATIONS if status in operation["responses"]]
    assert answers
    for answer in answers:
        assert answer["content"] == {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    assert "HTTPValidationError" not in json.dumps(DOCUMENT)


def test_a_problem_is_described_as_it_is_answered() -> None:
    assert set(DOCUMENT["components"]["schemas"]["Problem"]["required"]) == {"type", "title", "status", "code"}
    assert {code.status for code in CODES.values() if code.status} >= {400, 401, 403, 408, 409, 413, 422, 429, 500, 503}


@pytest.mark.parametrize(
    ("source", "headers"),
    [("stripe", {"stripe-signature"}), ("clerk", {"svix-id", "svix-timestamp", "svix-signature"})],
)
def test_a_webhook_is_described_with_its_signature(source: str, headers: set[str]) -> None:
    operation = DOCUMENT["paths"][f"/webhooks/{source}"]["post"]
    assert {(one["name"], one["in"], one["required"]) for one in operation["parameters"]} == {
        (name, "header", True) for name in headers
    }
    assert set(operation["responses"]) == {"200", "202", "400", "408", "413", "503"}
    assert operation["requestBody"]["required"] is True
    assert "security" not in operation


def test_bodies_are_camel_case() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert not [member for member in schema.get("properties", {}) if "_" in member], name
    for asked in (wire.CheckoutRequest, wire.RequeueRequest, wire.RetriggerRequest, wire.LinkRequest):
        spelt = dict.fromkeys(asked.model_fields, "octocat")
        with pytest.raises(ValidationError) as refused:
            asked.model_validate(spelt)
        unknown = {fault["loc"][0] for fault in refused.value.errors() if fault["type"] == "extra_forbidden"}
        assert unknown == {name for name in spelt if "_" in name}, "as our code spells it, nobody hears it"


async def test_the_command_prints_it(make_terminal: MakeTerminal, run_command: RunCommand) -> None:
    line = make_terminal(TOY)
    whole = await run_command(line, "openapi")
    one_line = await run_command(line, "openapi", "--json")
    assert (whole.code, one_line.code) == (0, 0)
    assert json.loads(whole.out) == json.loads(one_line.out) == document((TOY,))
    assert one_line.out.count("\n") == 1
