"""Clerk's webhooks, which Svix sends: what is believed, and for everything else its own reason."""

import base64
import json
from collections.abc import Callable

import pytest

from services.ingress.gateway.clerk import ClerkVerifier, is_key
from services.ingress.machine import Headers, Rejected, Rejection, Verified
from tests.ingress.signing import CLERK_NEW, CLERK_OLD, changed, clerk_event, clerk_headers, seconds

VERIFIER = ClerkVerifier([CLERK_OLD, CLERK_NEW])
BODY = clerk_event()


def judge(body: bytes, headers: Headers, verifier: ClerkVerifier = VERIFIER) -> Verified | Rejection:
    verdict = verifier.verify(headers, body)
    return verdict.reason if isinstance(verdict, Rejected) else verdict


def test_an_event_is_named_by_its_header_and_read_by_its_head() -> None:
    body = clerk_event("user.updated", id="not_the_event's")
    verdict = judge(body, clerk_headers(body, message_id="msg_2abc-D"))
    assert isinstance(verdict, Verified)
    assert (verdict.external_id, verdict.kind, verdict.parked_reason) == ("msg_2abc-D", "user.updated", None)


HEADER_FAULTS: dict[str, tuple[dict[str, Callable[[bytes], bytes | None]], Rejection]] = {
    "no id": ({"svix_id": lambda _: None}, Rejection.SIGNATURE_MISSING),
    "no timestamp": ({"svix_timestamp": lambda _: None}, Rejection.SIGNATURE_MISSING),
    "no signature": ({"svix_signature": lambda _: None}, Rejection.SIGNATURE_MISSING),
    "empty signature": ({"svix_signature": lambda _: b""}, Rejection.SIGNATURE_MISSING),
    "empty id": ({"svix_id": lambda _: b""}, Rejection.SIGNATURE_MISSING),
    "garbage": ({"svix_signature": lambda _: b"garbage"}, Rejection.SIGNATURE_MALFORMED),
    "no base64": ({"svix_signature": lambda _: b"v1,!!!A"}, Rejection.SIGNATURE_MALFORMED),
    "two commas": ({"svix_signature": lambda _: b"v1,AA,BB"}, Rejection.SIGNATURE_MALFORMED),
    "double space": ({"svix_signature": lambda s: s + b"  " + s}, Rejection.SIGNATURE_MALFORMED),
    "space at the end": ({"svix_signature": lambda s: s + b" "}, Rejection.SIGNATURE_MALFORMED),
    "short": ({"svix_signature": lambda _: b"v1,QUJD"}, Rejection.SIGNATURE_MALFORMED),
    "not ASCII": ({"svix_signature": lambda s: s + b"\xe9"}, Rejection.SIGNATURE_MALFORMED),
    "id not ASCII": ({"svix_id": lambda _: b"msg_\xe9"}, Rejection.SIGNATURE_MALFORMED),
    "another scheme": ({"svix_signature": lambda _: b"v1a,AAAA"}, Rejection.SIGNATURE_SCHEME),
    "v0": ({"svix_signature": lambda s: s.replace(b"v1,", b"v0,")}, Rejection.SIGNATURE_SCHEME),
    "nan": ({"svix_timestamp": lambda _: b"nan"}, Rejection.SIGNATURE_TIMESTAMP),
    "infinite": ({"svix_timestamp": lambda _: b"inf"}, Rejection.SIGNATURE_TIMESTAMP),
    "fraction": ({"svix_timestamp": lambda t: t + b".9"}, Rejection.SIGNATURE_TIMESTAMP),
    "exponent": ({"svix_timestamp": lambda _: b"1e9"}, Rejection.SIGNATURE_TIMESTAMP),
    "negative": ({"svix_timestamp": lambda t: b"-" + t}, Rejection.SIGNATURE_TIMESTAMP),
    "endless": ({"svix_timestamp": lambda _: b"9" * 400}, Rejection.SIGNATURE_TIMESTAMP),
    "id with a dot": ({"svix_id": lambda _: b"msg.1"}, Rejection.EVENT_ID),
    "id with a colon": ({"svix_id": lambda _: b"msg:1"}, Rejection.EVENT_ID),
    "id too long": ({"svix_id": lambda _: b"m" * 256}, Rejection.EVENT_ID),
    "another id": ({"svix_id": lambda _: b"msg_2"}, Rejection.SIGNATURE_MISMATCH),
    "another second": ({"svix_timestamp": lambda t: str(int(t) - 1).encode()}, Rejection.SIGNATURE_MISMATCH),
    "wrong": ({"svix_signature": lambda _: b"v1," + base64.b64encode(b"0" * 32)}, Rejection.SIGNATURE_MISMATCH),
}


@pytest.mark.promise("F88")
@pytest.mark.parametrize("fault", HEADER_FAULTS)
def test_every_fault_of_a_header_has_its_reason(fault: str) -> None:
    changes, reason = HEADER_FAULTS[fault]
    headers = clerk_headers(BODY)
    good = {name.decode().replace("-", "_"): value for name, value in headers}
    assert judge(BODY, changed(headers, **{name: make(good[name]) for name, make in changes.items()})) is reason


@pytest.mark.promise("F88")
def test_a_dot_cannot_move_between_id_timestamp_and_body() -> None:
    at = seconds()
    moved = f"{at}.".encode() + BODY
    headers = clerk_headers(moved, message_id="msg_1")
    signature = dict(headers)[b"svix-signature"]
    split_otherwise = [
        (b"svix-id", f"msg_1.{dict(headers)[b'svix-timestamp'].decode()}".encode()),
        (b"svix-timestamp", str(at).encode()),
        (b"svix-signature", signature),
    ]
    assert judge(BODY, split_otherwise) is Rejection.EVENT_ID
    assert judge(moved, headers) is Rejection.BODY_NOT_JSON


@pytest.mark.promise("F88")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff\xfe", Rejection.BODY_NOT_UTF8),
        (b"nope", Rejection.BODY_NOT_JSON),
        (b"[]", Rejection.BODY_NOT_OBJECT),
        (b"{}", Rejection.EVENT_OBJECT),
        (clerk_event(object="v2.core.event"), Rejection.EVENT_OBJECT),
        (clerk_event(type=["user.created"]), Rejection.EVENT_MALFORMED),
        (clerk_event(""), Rejection.EVENT_KIND),
        (clerk_event("user created"), Rejection.EVENT_KIND),
    ],
)
def test_signed_garbage_has_its_reason(body: bytes, reason: Rejection) -> None:
    assert judge(body, clerk_headers(body)) is reason


@pytest.mark.parametrize("name", [b"svix-id", b"svix-timestamp", b"svix-signature"])
def test_a_header_too_many_has_its_reason(name: bytes) -> None:
    headers = clerk_headers(BODY)
    assert judge(BODY, [*headers, (name, dict(headers)[name])]) is Rejection.SIGNATURE_REPEATED


def test_the_bytes_are_signed_not_the_json() -> None:
    headers = clerk_headers(BODY)
    reencoded = json.dumps(json.loads(BODY), separators=(",", ":")).encode()
    assert judge(reencoded, headers) is Rejection.SIGNATURE_MISMATCH


@pytest.mark.promise("F89")
@pytest.mark.parametrize("tolerance_s", [300, 100_000, 0, -5])
def test_too_old_and_too_far_ahead_are_refused_whatever_the_tolerance(tolerance_s: int) -> None:
    verifier = ClerkVerifier([CLERK_NEW], tolerance_s=tolerance_s)
    assert judge(BODY, clerk_headers(BODY, offset_s=-302), verifier) is Rejection.SIGNATURE_STALE
    assert judge(BODY, clerk_headers(BODY, offset_s=+302), verifier) is Rejection.SIGNATURE_FUTURE


def test_within_the_tolerance_both_ways_is_taken() -> None:
    assert isinstance(judge(BODY, clerk_headers(BODY, offset_s=-290)), Verified)
    assert isinstance(judge(BODY, clerk_headers(BODY, offset_s=+290)), Verified)


@pytest.mark.promise("F90")
def test_either_of_two_secrets_is_good_beside_other_schemes() -> None:
    for secrets, place in (([CLERK_OLD], "1:"), ([CLERK_NEW], "2:"), ([CLERK_NEW, CLERK_OLD], "1:")):
        verdict = judge(BODY, clerk_headers(BODY, secrets))
        assert isinstance(verdict, Verified)
        assert verdict.secret.startswith(place)
    headers = clerk_headers(BODY)
    beside = b"v1a,AAAA " + dict(headers)[b"svix-signature"]
    assert isinstance(judge(BODY, changed(headers, svix_signature=beside)), Verified)
    unknown = "whsec_" + base64.b64encode(b"somebody else's").decode()
    assert judge(BODY, clerk_headers(BODY, [unknown])) is Rejection.SIGNATURE_MISMATCH


@pytest.mark.promise("F90")
@pytest.mark.parametrize("secrets", [[], [""], ["whsec_"], ["whsec_!!!"], ["no prefix"]])
def test_without_a_key_nothing_is_believed(secrets: list[str]) -> None:
    assert judge(BODY, clerk_headers(BODY), ClerkVerifier(secrets)) is Rejection.SIGNATURE_UNCONFIGURED


@pytest.mark.parametrize(
    ("secret", "good"),
    [
        (CLERK_NEW, True),
        ("whsec_QUI=", True),
        ("whsec_", False),
        ("whsec_QUJD\n", False),
        ("whsec_é", False),
        ("QUJD", False),
        ("sk_live_QUJD", False),
    ],
)
def test_what_can_be_a_key(secret: str, good: bool) -> None:
    assert is_key(secret) is good
