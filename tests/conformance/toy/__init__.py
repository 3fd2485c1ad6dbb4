"""A slice made for the proofs: letters that must be posted once. Rooms, statements and laws of the real ones."""
