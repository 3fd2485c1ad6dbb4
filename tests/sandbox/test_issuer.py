"""Session tokens, verified by PyJWT over the published keys: good ones pass, a bad one fails for its own reason."""

import time
from typing import Any

import httpx
import jwt
import pytest

from services.sandbox import wire
from services.sandbox.control import SandboxControl
from services.sandbox.faults import Act, Fault, Reply
from services.sandbox.issuer import AUTHORIZED_PARTY, Signature
from services.sandbox.log import Vendor
from services.sandbox.world import Urls, World
from tests.sandbox.clients import plain


async def key_set(urls: Urls) -> dict[str, Any]:
    async with plain() as http:
        answer = await http.get(f"{urls.clerk}/.well-known/jwks.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    published: dict[str, Any] = answer.json()
    return published


async def checked(urls: Urls, token: str) -> dict[str, Any]:
    """The claims, if the token is good. Raises PyJWT's errors, KeyError for a key that is not published."""
    keys = jwt.PyJWKSet.from_dict(await key_set(urls))
    key = keys[jwt.get_unverified_header(token)["kid"]]
    claims: dict[str, Any] = jwt.decode(token, key, algorithms=["RS256"], issuer=urls.clerk)
    return claims


async def test_a_good_token_says_who_and_for_how_long(control: SandboxControl, urls: Urls) -> None:
    began = int(time.time())
    token = await control.do(wire.MintToken("user_1", role="admin", expires_in_s=300))
    claims = await checked(urls, token)
    assert (claims["sub"], claims["role"], claims["iss"], claims["azp"]) == (
        "user_1",
        "admin",
        urls.clerk,
        AUTHORIZED_PARTY,
    )
    assert claims["sid"].startswith("sess_")
    assert began <= claims["iat"] <= time.time()
    assert (claims["exp"] - claims["iat"], claims["nbf"] - claims["iat"]) == (300, -10)
    assert "role" not in await checked(urls, await control.do(wire.MintToken("user_1")))
    header = jwt.get_unverified_header(token)
    assert (header["alg"], header["typ"]) == ("RS256", "JWT")
    assert [key["kid"] for key in (await key_set(urls))["keys"]] == [header["kid"]]


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"claims": {"exp": 1}}, jwt.ExpiredSignatureError),
        ({"expires_in_s": -1}, jwt.ExpiredSignatureError),
        ({"claims": {"nbf": 32_503_680_000}}, jwt.ImmatureSignatureError),
        ({"claims": {"iss": "https://elsewhere.example"}}, jwt.InvalidIssuerError),
        ({"claims": {"iss": None}}, jwt.MissingRequiredClaimError),
        ({"signature": Signature.OTHER_KEY}, jwt.InvalidSignatureError),
        ({"signature": Signature.UNKNOWN_KEY}, KeyError),
        ({"signature": Signature.UNSIGNED}, jwt.InvalidAlgorithmError),
        ({"signature": Signature.SHARED_SECRET}, jwt.InvalidAlgorithmError),
        ({"header": {"kid": "ins_other"}}, KeyError),
        ({"header": {"alg": "PS256"}}, jwt.InvalidAlgorithmError),
    ],
)
async def test_a_bad_token_is_bad_in_one_thing(
    control: SandboxControl, urls: Urls, changed: dict[str, Any], error: type[Exception]
) -> None:
    token = await control.do(wire.MintToken("user_1", **changed))
    with pytest.raises(error):
        await checked(urls, token)


async def test_claims_and_header_are_laid_over_the_usual_ones(control: SandboxControl, urls: Urls) -> None:
    token = await control.do(
        wire.MintToken("user_1", claims={"azp": None, "metadata": {"role": "admin"}}, header={"typ": None})
    )
    claims = await checked(urls, token)
    assert "azp" not in claims
    assert claims["metadata"] == {"role": "admin"}
    assert "typ" not in jwt.get_unverified_header(token)
    no_kid = await control.do(wire.MintToken("user_1", header={"kid": None}))
    assert "kid" not in jwt.get_unverified_header(no_kid)


async def test_a_shared_secret_really_is_the_public_key(control: SandboxControl, world: World) -> None:
    """Who let the token choose would take it for good."""
    token = await control.do(wire.MintToken("user_1", signature=Signature.SHARED_SECRET))
    head, claims, proof = token.split(".")
    hs256 = jwt.get_algorithm_by_name("HS256")
    assert hs256.verify(f"{head}.{claims}".encode(), world.issuer.keys[0].pem, jwt.utils.base64url_decode(proof))


@pytest.mark.parametrize("keep_old", [True, False])
async def test_a_rotation_signs_anew_and_may_keep_the_old_key(
    control: SandboxControl, urls: Urls, keep_old: bool
) -> None:
    old = await control.do(wire.MintToken("user_1"))
    kid = await control.do(wire.RotateTokenKey(keep_old))
    new = await control.do(wire.MintToken("user_1"))
    assert jwt.get_unverified_header(new)["kid"] == kid != jwt.get_unverified_header(old)["kid"]
    assert (await checked(urls, new))["sub"] == "user_1"
    if keep_old:
        assert (await checked(urls, old))["sub"] == "user_1"
    else:
        with pytest.raises(KeyError):
            await checked(urls, old)


async def test_the_published_keys_are_logged_and_fail_by_script(urls: Urls, world: World) -> None:
    world.faults.add(Fault(Vendor.CLERK, Act.ANSWER, reply=Reply(503, body="{}")))
    world.faults.add(Fault(Vendor.CLERK, Act.DROP))
    world.faults.add(Fault(Vendor.CLERK, Act.LATE, delay_ms=1))
    async with plain() as http:
        url = f"{urls.clerk}/.well-known/jwks.json"
        assert (await http.get(url)).status_code == 503
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get(url)
        assert (await http.get(url)).json() == world.issuer.key_set()
        assert (await http.get(f"{urls.clerk}/v1/users")).status_code == 404
        assert (await http.post(url)).status_code == 404
    asked = [entry.path for entry in world.log.entries(Vendor.CLERK)]
    assert asked == ["/.well-known/jwks.json"] * 3 + ["/v1/users", "/.well-known/jwks.json"]
