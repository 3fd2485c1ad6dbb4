"""The shared law. Knows no slice."""
