"""A slice made for the proofs: letters that must be posted once. The same rooms, statements and laws as the real ones."""
