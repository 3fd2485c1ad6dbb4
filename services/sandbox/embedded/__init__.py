"""The embedded stack: real servers out of wheels, spawned as our own children, without root and without containers."""
