"""What JSON can say and the database cannot hold is refused where it enters."""

import pytest
from pydantic import TypeAdapter, ValidationError

from schemas.text import Text

TEXT: TypeAdapter[str] = TypeAdapter(Text)


@pytest.mark.parametrize("text", ["", "a", "ä", "\U0001f600", "\ufffe", " \t\n"])
def test_text_is_kept_as_it_is(text: str) -> None:
    assert TEXT.validate_python(text) == text


@pytest.mark.parametrize(("text", "why"), [("a\0b", "holds a NUL"), ("\ud83d", "Unicode"), ("a\udc00", "Unicode")])
def test_what_cannot_be_stored_is_no_text(text: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        TEXT.validate_python(text)


@pytest.mark.parametrize("written", [r'"a\u0000b"', r'"\ud83d"', r'"\udc00a"'])
def test_nor_is_it_in_json(written: str) -> None:
    with pytest.raises(ValidationError):
        TEXT.validate_json(written)
