"""Whose token it is: what each fault is told as, and that nothing in a token chooses how it is judged."""

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kernel import clock
from services.kernel.auth import Caller
from services.kernel.errors import Refusal
from services.operations import tokens
from services.operations.tokens import LEEWAY_S, SUBJECT_CHARACTERS_MAX, TOKEN_CHARACTERS_MAX, Tokens
from tests.fixtures.tokens import ISSUER, KID, PublishedKeys, claims, forged, private_key, token

NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> float:
    """The wall stands still; the token's own library keeps its real clock, which nobody may ask."""
    monkeypatch.setattr(clock, "wall_time", lambda: NOW)
    monkeypatch.setattr(tokens, "wall_time", lambda: NOW)
    monkeypatch.setattr("tests.fixtures.tokens.wall_time", lambda: NOW)
    return NOW


def reader(*, parties: tuple[str, ...] = (), role_claim: str = "role") -> Tokens:
    return Tokens(PublishedKeys(), issuer=ISSUER, parties=parties, role_claim=role_claim)


async def read(*values: str, of: Tokens | None = None) -> Caller:
    return await (of or reader()).caller_of([f"Bearer {value}" for value in values])


async def refused(*values: str, of: Tokens | None = None) -> str:
    with pytest.raises(Refusal) as caught:
        await read(*values, of=of)
    assert caught.value.code.status == 401
    return caught.value.code.name


async def test_a_good_token_is_its_subjects() -> None:
    assert await read(token("user_7")) == Caller("user_7", None)
    assert await reader().caller_of([f"bearer {token('user_7')}"]) == Caller("user_7")


@pytest.mark.parametrize("headers", [[], [""], ["Basic dXNlcjpwYXNz"], ["Token abc"]])
async def test_without_a_bearer_token_it_is_missing(headers: list[str]) -> None:
    with pytest.raises(Refusal, match="token_missing"):
        await reader().caller_of(headers)


async def test_two_tokens_are_none() -> None:
    assert await refused(token(), token()) == "token_malformed"


@pytest.mark.parametrize(
    "value",
    [
        *("", "x", "a.b.c", "....", "é.é.é", "null.null.null", "e30.e30.e30", "A" * (TOKEN_CHARACTERS_MAX + 1)),
        base64.urlsafe_b64encode(b"[" * 6000).decode() + ".e30.AA",
    ],
)
async def test_what_cannot_be_read_is_malformed(value: str) -> None:
    assert await refused(value) in {"token_malformed", "token_algorithm"}


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.one_of(st.text(max_size=40), st.binary(max_size=60)), min_size=0, max_size=4))
async def test_nothing_anybody_writes_is_more_than_refused(parts: list[str | bytes]) -> None:
    told = [p if isinstance(p, str) else base64.urlsafe_b64encode(p).decode().rstrip("=") for p in parts]
    with pytest.raises(Refusal):
        await read(".".join(told))


async def test_only_one_algorithm_is_taken_whatever_the_header_says() -> None:
    unsigned = jwt.encode(claims(), None, algorithm="none", headers={"kid": KID})
    assert await refused(unsigned) == "token_algorithm"
    assert await refused(forged()) == "token_algorithm"
    for algorithm in ("RS512", "PS256"):
        assert await refused(token(algorithm=algorithm)) == "token_algorithm"
    elliptic = ec.generate_private_key(ec.SECP256R1())
    assert await refused(token(key=elliptic, algorithm="ES256")) == "token_algorithm"
    # Told to be RS256, and made with the public key as a shared secret: a signature like any other, and a wrong one.
    assert await refused(forged(alg="RS256")) == "token_signature"
    assert await refused(forged(alg=["RS256"])) == "token_algorithm"


async def test_a_key_that_is_not_published_is_unknown() -> None:
    assert await refused(token(headers={"kid": "another"})) == "token_key_unknown"
    for headers in ({}, {"kid": ""}):
        assert await refused(token(headers=headers)) in {"token_malformed", "token_key_unknown"}


async def test_another_key_under_a_known_id_signs_nothing() -> None:
    assert await refused(token(key=private_key("stranger"))) == "token_signature"


async def test_a_changed_claim_breaks_the_signature() -> None:
    head, body, signature = token("user_1").split(".")
    changed = json.loads(base64.urlsafe_b64decode(body + "==")) | {"sub": "user_2"}
    body = base64.urlsafe_b64encode(json.dumps(changed).encode()).decode().rstrip("=")
    assert await refused(f"{head}.{body}.{signature}") == "token_signature"


@pytest.mark.parametrize("issuer", [None, "", f"{ISSUER}/", ISSUER.upper(), "https://elsewhere.example", [ISSUER], 1])
async def test_the_issuer_is_exact(issuer: Any) -> None:
    assert await refused(raw(iss=issuer)) == "token_issuer"


def raw(**changes: Any) -> str:
    """A token with claims that PyJWT would not write."""
    jws = jwt.PyJWS()
    return jws.encode(json.dumps(claims(**changes)).encode(), private_key(), algorithm="RS256", headers={"kid": KID})


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"exp": NOW - LEEWAY_S}, "token_expired"),
        ({"exp": NOW - LEEWAY_S + 1}, None),
        ({"exp": 0}, "token_expired"),
        ({"nbf": NOW + LEEWAY_S}, None),
        ({"nbf": NOW + LEEWAY_S + 1}, "token_not_yet_valid"),
        ({"iat": NOW + LEEWAY_S}, None),
        ({"iat": NOW + LEEWAY_S + 1}, "token_not_yet_valid"),
        ({"nbf": None}, None),
        ({"exp": None}, "token_malformed"),
        ({"iat": None}, "token_malformed"),
        ({"exp": "9999999999"}, "token_malformed"),
        ({"exp": True}, "token_malformed"),
        ({"exp": float("inf")}, "token_malformed"),
        ({"exp": float("nan")}, "token_malformed"),
        ({"nbf": "soon"}, "token_malformed"),
        ({"iat": []}, "token_malformed"),
    ],
)
async def test_instants_are_judged_by_our_clock_with_a_small_leeway(changes: dict[str, Any], code: str | None) -> None:
    value = raw(**changes)
    if code is None:
        assert (await read(value)).user_id == "user_1"
    else:
        assert await refused(value) == code


@pytest.mark.parametrize(
    ("subject", "good"),
    [
        *(("x" * SUBJECT_CHARACTERS_MAX, True), ("x" * (SUBJECT_CHARACTERS_MAX + 1), False)),
        *(("", False), ("  ", False), ("a\nb", False), ("a\x00b", False), (None, False), (7, False), ([], False)),
    ],
)
async def test_a_subject_is_there_and_of_a_sane_length(subject: Any, good: bool) -> None:
    value = raw(sub=subject)
    if good:
        assert (await read(value)).user_id == subject
    else:
        assert await refused(value) == "token_malformed"


@pytest.mark.parametrize("claim", ["exp", "iat", "nbf"])
@pytest.mark.parametrize("beyond", [10**400, -(10**400)])
async def test_an_instant_beyond_all_numbers_is_malformed(claim: str, beyond: int) -> None:
    assert await refused(raw(**{claim: beyond})) == "token_malformed"


@pytest.mark.parametrize("payload", [b"[]", b'"user_1"', b"\xff", b"", b"{", b"[" * 2000])
async def test_a_signed_payload_that_is_no_claims_is_malformed(payload: bytes) -> None:
    value = jwt.PyJWS().encode(payload, private_key(), algorithm="RS256", headers={"kid": KID})
    assert await refused(value) == "token_malformed"


async def test_a_party_is_judged_where_parties_are_set() -> None:
    ours = reader(parties=("https://app.example", "https://desk.example"))
    assert (await read(token(azp="https://desk.example"), of=ours)).user_id == "user_1"
    for azp in ("https://elsewhere.example", "", None, "https://app.example/", ["https://app.example"], {}):
        assert await refused(raw(azp=azp), of=ours) == "token_party"
    assert (await read(token(azp="https://elsewhere.example"))).user_id == "user_1"


@pytest.mark.parametrize(
    ("claim", "given", "role"),
    [
        ("role", {"role": "admin"}, "admin"),
        ("role", {}, None),
        ("role", {"role": ["admin"]}, None),
        ("role", {"role": {"admin": True}}, None),
        ("public_metadata.role", {"public_metadata": {"role": "admin"}}, "admin"),
        ("public_metadata.role", {"public_metadata": "admin"}, None),
        ("public_metadata.role", {"public_metadata": {}, "role": "admin"}, None),
        ("a.b.c", {"a": {"b": {"c": "member"}}}, "member"),
    ],
)
async def test_the_role_is_where_the_setting_says(claim: str, given: dict[str, Any], role: str | None) -> None:
    assert (await read(token(**given), of=reader(role_claim=claim))).role == role
