"""The senders' ways of signing, each behind ``flow.Verifier``. Everything here works on bytes nobody believes yet."""
