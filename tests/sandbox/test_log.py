"""The request log: written on arrival, completed at the end, never rewritten."""

from collections import deque
from hashlib import sha256

from services.sandbox.log import Ending, OpenRequest, RequestLog, Vendor


def arrive(log: RequestLog, vendor: Vendor = Vendor.GITHUB, path: str = "/a", method: str = "GET") -> OpenRequest:
    return log.arrive(vendor, method=method, path=path, query="", headers={}, raw=b"body", body=None)


def test_a_request_is_there_before_it_ends() -> None:
    log = RequestLog()
    entry = arrive(log)
    (seen,) = log.entries()
    assert (seen.seq, seen.ending, seen.status, seen.ended_at) == (1, Ending.PENDING, None, None)
    assert (seen.body_bytes, seen.body_sha256) == (4, sha256(b"body").hexdigest())
    entry.effect = "something"
    log.end(entry, Ending.ANSWERED, 201)
    (ended,) = log.entries()
    assert (ended.ending, ended.status, ended.effect) == (Ending.ANSWERED, 201, "something")
    assert ended.ended_at is not None
    assert ended.ended_at >= ended.arrived_at
    assert seen.ending is Ending.PENDING, "what was read stays as it was"


def test_overlaps_name_who_was_in_flight_at_the_same_vendor() -> None:
    log = RequestLog()
    first = arrive(log)
    arrive(log, Vendor.STRIPE)
    second = arrive(log)
    log.end(first, Ending.ANSWERED, 200)
    third = arrive(log)
    log.end(second, Ending.DROPPED, None)
    arrive(log)
    assert [entry.overlaps for entry in log.entries(Vendor.GITHUB)] == [(), (1,), (3,), (third.seq,)]
    assert [entry.overlaps for entry in log.entries(Vendor.STRIPE)] == [()]


def test_entries_are_found_by_what_they_are() -> None:
    log = RequestLog()
    arrive(log, path="/users/a")
    arrive(log, path="/repos/o/r/collaborators/a", method="PUT")
    arrive(log, Vendor.STRIPE, path="/v1/events")
    assert [entry.seq for entry in log.entries(method="PUT")] == [2]
    assert [entry.seq for entry in log.entries(path_contains="/users/")] == [1]
    assert [entry.seq for entry in log.entries(Vendor.STRIPE)] == [3]
    assert [entry.seq for entry in log.entries(since_seq=2, limit=1)] == [2]
    assert (log.first_seq, log.last_seq) == (1, 3)


def test_what_was_let_go_is_told() -> None:
    log = RequestLog(_entries=deque(maxlen=2))
    assert (log.first_seq, log.last_seq) == (1, 0)
    for _ in range(5):
        arrive(log)
    assert (log.first_seq, log.last_seq) == (4, 5)
