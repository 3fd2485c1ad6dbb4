"""The chapters, in the order of an event's life.

- ``intake``: a webhook comes in, is verified, stored, rung for and answered.
- ``backfill``: what a sender lists and the inbox lacks is stored as if it had arrived.
- ``repair``: an operator has stored events worked on once more (``replay``, ``unpark``).
"""
