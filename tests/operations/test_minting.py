"""`rowclaim token`: the token and nothing else, from the sandbox of this installation or from nobody."""

import time
from typing import Any

import jwt
import pytest

from services.sandbox.world import Urls, World
from tests.operations.conftest import MakeTerminal, RunCommand


async def claims_of(world: World, token: str) -> dict[str, Any]:
    keys = jwt.PyJWKSet.from_dict(dict(world.issuer.key_set()))
    key = keys[jwt.get_unverified_header(token)["kid"]]
    claims: dict[str, Any] = jwt.decode(token, key, algorithms=["RS256"], issuer=world.issuer.url)
    return claims


@pytest.mark.parametrize(
    ("options", "role", "minutes"),
    [((), None, 60), (("--role", "admin"), "admin", 60), (("--minutes", "5", "--role", "support"), "support", 5)],
)
async def test_a_token_is_printed_alone(
    make_terminal: MakeTerminal,
    run_command: RunCommand,
    world: World,
    urls: Urls,
    options: tuple[str, ...],
    role: str | None,
    minutes: int,
) -> None:
    line = make_terminal(SANDBOX_URL=urls.control)
    ended = await run_command(line, "token", "user_1", *options)
    assert (ended.code, ended.err) == (0, "")
    claims = await claims_of(world, ended.out.removesuffix("\n"))
    assert (claims["sub"], claims.get("role")) == ("user_1", role)
    assert claims["exp"] - claims["iat"] == minutes * 60
    assert claims["exp"] > time.time()


async def test_without_a_sandbox_nobody_makes_tokens(make_terminal: MakeTerminal, run_command: RunCommand) -> None:
    ended = await run_command(make_terminal(), "token", "user_1")
    assert (ended.code, ended.out, ended.err.splitlines()[0]) == (78, "", "rowclaim: sandbox_unconfigured")


async def test_a_sandbox_that_is_gone_is_told_from_none(
    make_terminal: MakeTerminal, run_command: RunCommand, world: World
) -> None:
    async with world.serve() as urls:
        elsewhere = make_terminal(SANDBOX_URL=f"{urls.base}/github")
        other = await run_command(elsewhere, "token", "user_1")
        gone = make_terminal(SANDBOX_URL=urls.control)
    ended = await run_command(gone, "token", "user_1")
    for one in (other, ended):
        assert (one.code, one.out) == (69, "")
        code, _, instance = one.err.partition(": ")[2].partition(": ")
        assert code == "sandbox_unreachable"
        assert instance.startswith(urls.base)


@pytest.mark.parametrize(
    "arguments",
    [(), ("",), (" ",), ("a\nb",), ("a\udcff",), ("user_1", "--minutes", "0"), ("user_1", "--minutes", "525601")],
)
async def test_a_token_is_somebodys_and_for_a_time(
    make_terminal: MakeTerminal, run_command: RunCommand, arguments: tuple[str, ...]
) -> None:
    ended = await run_command(make_terminal(SANDBOX_URL="http://127.0.0.1:1/control"), "token", *arguments)
    assert (ended.code, ended.out) == (2, "")


async def test_a_misspelt_setting_is_refused_here_too(make_terminal: MakeTerminal, run_command: RunCommand) -> None:
    ended = await run_command(make_terminal(SANDBOX_URI="http://127.0.0.1:1"), "token", "user_1")
    assert ended.code == 78
    assert "did you mean ROWCLAIM_SANDBOX_URL?" in ended.err
