"""Stripe's webhooks: what is believed, and for everything else its own reason."""

import hashlib
import json
from collections.abc import Callable

import pytest

from services.ingress.gateway.proof import HEADER_BYTES_MAX
from services.ingress.gateway.stripe import StripeVerifier
from services.ingress.machine import THIN_EVENT, Headers, Rejected, Rejection, Verified
from tests.ingress.signing import (
    NEW,
    OLD,
    both,
    seconds,
    stripe_event,
    stripe_headers,
    stripe_signature,
    thin_event,
)

VERIFIER = StripeVerifier([OLD, NEW])


def judge(body: bytes, headers: Headers, verifier: StripeVerifier = VERIFIER) -> Verified | Rejection:
    verdict = verifier.verify(headers, body)
    return verdict.reason if isinstance(verdict, Rejected) else verdict


def signed(body: bytes) -> Verified | Rejection:
    return judge(body, stripe_headers(body))


def under(signature: bytes | str, body: bytes) -> Verified | Rejection:
    return judge(body, [(b"stripe-signature", signature if isinstance(signature, bytes) else signature.encode())])


def test_an_event_is_read_by_its_head() -> None:
    body = stripe_event("evt_42", "invoice.paid")
    verdict = signed(body)
    assert isinstance(verdict, Verified)
    assert (verdict.external_id, verdict.kind) == ("evt_42", "invoice.paid")
    assert (verdict.api_version, verdict.parked_reason) == ("2026-10-28.endive", None)


def test_an_event_of_an_endpoint_without_a_version_is_read() -> None:
    verdict = signed(stripe_event(api_version=None))
    assert isinstance(verdict, Verified)
    assert verdict.api_version is None


@pytest.mark.promise("F88")
def test_a_thin_event_is_believed_and_parked() -> None:
    verdict = signed(thin_event())
    assert isinstance(verdict, Verified)
    assert (verdict.external_id, verdict.kind) == ("evt_thin_1", "v1.invoice.paid")
    assert verdict.parked_reason == THIN_EVENT


BODY = stripe_event()
SIGNATURE_FAULTS: dict[str, tuple[Callable[[], bytes | str], Rejection]] = {
    "empty": (lambda: "", Rejection.SIGNATURE_MISSING),
    "garbage": (lambda: "garbage", Rejection.SIGNATURE_MALFORMED),
    "no fields": (lambda: ",,,", Rejection.SIGNATURE_MALFORMED),
    "not ASCII": (lambda: stripe_signature(BODY).encode() + "é".encode(), Rejection.SIGNATURE_MALFORMED),
    "latin-1": (lambda: f"t={seconds()},v1=".encode() + b"\xe9" * 64, Rejection.SIGNATURE_MALFORMED),
    "no timestamp": (lambda: stripe_signature(BODY).partition(",")[2], Rejection.SIGNATURE_MALFORMED),
    "two timestamps, good first": (lambda: stripe_signature(BODY) + ",t=1", Rejection.SIGNATURE_MALFORMED),
    "two timestamps, bad first": (lambda: "t=1," + stripe_signature(BODY), Rejection.SIGNATURE_MALFORMED),
    "far too long": (lambda: stripe_signature(BODY) + ",v1=0" * HEADER_BYTES_MAX, Rejection.SIGNATURE_MALFORMED),
    "v0 only": (lambda: stripe_signature(BODY).replace("v1=", "v0="), Rejection.SIGNATURE_SCHEME),
    "no signature": (lambda: f"t={seconds()}", Rejection.SIGNATURE_SCHEME),
    "nan": (lambda: "t=nan,v1=aa", Rejection.SIGNATURE_TIMESTAMP),
    "fraction": (lambda: f"t={seconds()}.9,v1=aa", Rejection.SIGNATURE_TIMESTAMP),
    "sign": (lambda: f"t=+{seconds()},v1=aa", Rejection.SIGNATURE_TIMESTAMP),
    "space": (lambda: stripe_signature(BODY).replace("t=", "t= "), Rejection.SIGNATURE_TIMESTAMP),
    "underscore": (lambda: "t=1_700_000_000,v1=aa", Rejection.SIGNATURE_TIMESTAMP),
    "endless": (lambda: "t=" + "9" * 400 + ",v1=aa", Rejection.SIGNATURE_TIMESTAMP),
    "no instant": (lambda: "t=,v1=aa", Rejection.SIGNATURE_TIMESTAMP),
    "wrong": (lambda: f"t={seconds()},v1={'0' * 64}", Rejection.SIGNATURE_MISMATCH),
    "no hex": (lambda: f"t={seconds()},v1=zz", Rejection.SIGNATURE_MISMATCH),
    "unknown secret": (lambda: stripe_signature(BODY, "whsec_unknown"), Rejection.SIGNATURE_MISMATCH),
}


@pytest.mark.promise("F88")
@pytest.mark.parametrize("fault", SIGNATURE_FAULTS)
def test_every_fault_of_a_signature_has_its_reason(fault: str) -> None:
    make, reason = SIGNATURE_FAULTS[fault]
    assert under(make(), BODY) is reason


@pytest.mark.promise("F88")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff\xfe", Rejection.BODY_NOT_UTF8),
        (stripe_event()[:-1] + b"\xe9}", Rejection.BODY_NOT_UTF8),
        (b"", Rejection.BODY_NOT_JSON),
        (b"nope", Rejection.BODY_NOT_JSON),
        (stripe_event() + b"x", Rejection.BODY_NOT_JSON),
        (stripe_event()[:-20], Rejection.BODY_NOT_JSON),
        (b"\xef\xbb\xbf" + stripe_event(), Rejection.BODY_NOT_JSON),
        (b'{"id":"evt_1","object":"event","type":"a","data":NaN}', Rejection.BODY_NOT_JSON),
        (b'{"a":' * 100_000, Rejection.BODY_NOT_JSON),
        (b"[" * 100_000, Rejection.BODY_NOT_OBJECT),
        (b"[]", Rejection.BODY_NOT_OBJECT),
        (b' \n"event"', Rejection.BODY_NOT_OBJECT),
        (b"null", Rejection.BODY_NOT_OBJECT),
        (b"{}", Rejection.EVENT_OBJECT),
        (stripe_event(object="v3.core.event"), Rejection.EVENT_OBJECT),
        (json.dumps({"specversion": "1.0", "data": {"object": "event"}}).encode(), Rejection.EVENT_OBJECT),
        (stripe_event(object=["event"]), Rejection.EVENT_MALFORMED),
        (stripe_event(id=7), Rejection.EVENT_MALFORMED),
        (stripe_event(id=10**400), Rejection.EVENT_MALFORMED),
        (stripe_event(type=None), Rejection.EVENT_MALFORMED),
        (stripe_event(""), Rejection.EVENT_ID),
        (stripe_event("evt.1"), Rejection.EVENT_ID),
        (stripe_event("evt:1"), Rejection.EVENT_ID),
        (stripe_event("evt 1"), Rejection.EVENT_ID),
        (stripe_event("evt_\x00"), Rejection.EVENT_ID),
        (stripe_event("evt_1\n"), Rejection.EVENT_ID),
        (stripe_event("evt_é"), Rejection.EVENT_ID),
        (stripe_event("e" * 256), Rejection.EVENT_ID),
        (stripe_event(kind=""), Rejection.EVENT_KIND),
        (stripe_event(kind="invoice\x00paid"), Rejection.EVENT_KIND),
        (stripe_event(kind="invoice paid"), Rejection.EVENT_KIND),
        (stripe_event(kind="i" * 256), Rejection.EVENT_KIND),
    ],
)
def test_signed_garbage_has_its_reason(body: bytes, reason: Rejection) -> None:
    assert signed(body) is reason


def test_no_header_and_a_header_too_many_have_their_reasons() -> None:
    headers = stripe_headers(BODY)
    assert judge(BODY, []) is Rejection.SIGNATURE_MISSING
    assert judge(BODY, [*headers, *headers]) is Rejection.SIGNATURE_REPEATED


def test_the_bytes_are_signed_not_the_json() -> None:
    headers = stripe_headers(BODY)
    assert isinstance(judge(BODY, headers), Verified)
    for reencoded in (
        json.dumps(json.loads(BODY)).encode(),
        json.dumps(json.loads(BODY), ensure_ascii=False, separators=(",", ":")).encode(),
        BODY.replace("ë".encode(), "e\u0308".encode()),
        BODY + b"\n",
    ):
        assert json.loads(reencoded)["id"] == "evt_1"
        assert judge(reencoded, headers) is Rejection.SIGNATURE_MISMATCH


@pytest.mark.promise("F89")
@pytest.mark.parametrize("tolerance_s", [300, 100_000, 0, -5])
def test_too_old_and_too_far_ahead_are_refused_whatever_the_tolerance(tolerance_s: int) -> None:
    verifier = StripeVerifier([NEW], tolerance_s=tolerance_s)
    assert judge(BODY, stripe_headers(BODY, offset_s=-302), verifier) is Rejection.SIGNATURE_STALE
    assert judge(BODY, stripe_headers(BODY, offset_s=+302), verifier) is Rejection.SIGNATURE_FUTURE
    assert judge(BODY, stripe_headers(BODY, offset_s=86_400), verifier) is Rejection.SIGNATURE_FUTURE


def test_within_the_tolerance_both_ways_is_taken() -> None:
    assert isinstance(judge(BODY, stripe_headers(BODY, offset_s=-290)), Verified)
    assert isinstance(judge(BODY, stripe_headers(BODY, offset_s=+290)), Verified)
    narrow = StripeVerifier([NEW], tolerance_s=60)
    assert judge(BODY, stripe_headers(BODY, offset_s=-62), narrow) is Rejection.SIGNATURE_STALE
    assert judge(BODY, stripe_headers(BODY, offset_s=+62), narrow) is Rejection.SIGNATURE_FUTURE


@pytest.mark.promise("F90")
def test_either_of_two_secrets_is_good_and_is_named_by_place_and_hash() -> None:
    labels = [f"{place}:{hashlib.sha256(s.encode()).hexdigest()[:8]}" for place, s in ((1, OLD), (2, NEW))]
    for signature, label in (
        (stripe_signature(BODY, OLD), labels[0]),
        (stripe_signature(BODY, NEW), labels[1]),
        (both(BODY), labels[0]),
    ):
        verdict = under(signature, BODY)
        assert isinstance(verdict, Verified)
        assert verdict.secret == label
    assert isinstance(judge(BODY, [(b"stripe-signature", both(BODY).encode())], StripeVerifier([NEW])), Verified)
    assert OLD not in repr(VERIFIER._secrets)


@pytest.mark.promise("F90")
@pytest.mark.parametrize("secrets", [[], [""], [" \t"], ["", " "]])
def test_without_a_secret_nothing_is_believed(secrets: list[str]) -> None:
    verifier = StripeVerifier(secrets)
    for key in ("", " \t", NEW):
        assert judge(BODY, stripe_headers(BODY, key), verifier) is Rejection.SIGNATURE_UNCONFIGURED
