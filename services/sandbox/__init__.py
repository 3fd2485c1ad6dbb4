"""The outside world for newcomers and tests: wire formats only. Imports no slice."""
