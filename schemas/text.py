"""Text that both JSON and the database can hold."""

from typing import Annotated

from pydantic import AfterValidator


def _storable(text: str) -> str:
    """JSON can say what PostgreSQL's text cannot hold: a NUL, half a surrogate pair."""
    if "\0" in text:
        raise ValueError("holds a NUL")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("is no Unicode text") from None
    return text


Text = Annotated[str, AfterValidator(_storable)]
