"""What all bodies of the API have in common: camelCase on the wire, and no member that is unknown."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, StringConstraints
from pydantic.alias_generators import to_camel

REASON_CHARACTERS_MAX: Final = 500

Reason = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=REASON_CHARACTERS_MAX),
]
"""Why somebody did it, in their words."""


class Asked(BaseModel):
    """A request's body. A member that is not described is refused: it would be one that does nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


class Answer(BaseModel):
    """An answer's body. Instants are ISO 8601 in UTC, with a ``Z``."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)
