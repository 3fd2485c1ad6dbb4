"""GitHub's REST API as far as inviting collaborators needs it (version 2026-03-10)."""
