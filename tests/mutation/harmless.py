"""Mutants that no test can notice, because nothing that can happen is different; each with the reason.

One that a test does notice has no place here: the list is checked both ways.
"""

from typing import Final

HARMLESS: Final[dict[str, str]] = {}
