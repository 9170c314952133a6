from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from gateway.app.commands import cli
from tests.fakes.issuer import FakeIssuer, issuing
from tests.support.region_files import SMALLEST, region_at


class House:
    def __init__(self, folder: Path, issuer: FakeIssuer) -> None:
        self.issuer = issuer
        told = {"name": "corp", "issuer": issuer.url, "audiences": ["nightside"]}
        clients = {**told, "tenant": {"claim": "org"}, "plan": {"value": "gold"}, "process": {"value": "eu"}}
        staff = {**told, "claim": "groups", "roles": {"look": ["viewers"]}}
        oidc = {
            "issuers": [clients],
            "plans": {"gold": {"requests_per_minute": 5, "models": ["llama"]}},
            "rules": {"eu": {"jurisdictions": ["EU"]}},
        }
        more = yaml.safe_dump({"oidc": oidc, "operators": {"issuers": [staff]}})
        self.file = region_at(folder, SMALLEST + more)

    async def run(self, token: str, *options: str) -> Result:
        arguments = ["token", str(self.file), *options]
        return await asyncio.to_thread(CliRunner().invoke, cli, arguments, input=token + "\n")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with issuing() as issuer:
        yield House(tmp_path, issuer)


async def test_it_says_what_a_token_stands_for(house: House) -> None:
    told = json.loads((await house.run(house.issuer.token(org="acme"))).stdout)
    assert told.pop("booked_as").startswith("corp-")
    assert told == {
        "tenant": "acme",
        "requests_per_minute": 5,
        "models": ["llama"],
        "process": {"jurisdictions": ["EU"], "regions": [], "denied_regions": []},
        "may_name_tenant": False,
    }
    operator = await house.run(house.issuer.token(groups=["viewers"]), "--operator")
    assert json.loads(operator.stdout) == {"operator": "corp:alice", "role": "look"}


async def test_it_writes_nothing_where_the_gateway_keeps_its_own(house: House) -> None:
    """The command's user may be one who cannot read the gateway's files."""
    kept = house.file.parent / "state"
    house.file.write_text(f"{house.file.read_text()}\nstate: {{folder: {kept}}}\n")
    assert (await house.run(house.issuer.token(org="acme"))).exit_code == 0
    assert not kept.exists() or not list(kept.iterdir())


async def test_it_says_why_not_and_shows_nothing_of_the_token(house: House) -> None:
    for token, options, why in (
        (house.issuer.token(org="acme", exp=1), (), "corp: the access token has expired (expired)"),
        (house.issuer.token(), (), "its org names no tenant (not_mapped)"),
        (house.issuer.token(groups=[]), ("--operator",), "its groups has no role"),
        ("ns-a-0", (), "this is no signed JSON web token: it would be looked up as a key"),
    ):
        result = await house.run(token, *options)
        assert result.exit_code == 1
        assert why in result.stderr
        assert token.rpartition(".")[2] not in result.output or "." not in token


async def test_it_says_that_an_issuer_cannot_be_asked(house: House) -> None:
    house.issuer.status = 503
    result = await house.run(house.issuer.token(org="acme"))
    assert result.exit_code == 1
    assert "answers with status 503" in result.stderr
    assert "(unavailable)" in result.stderr


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    for file, why in (
        (tmp_path / "none.yaml", "cannot be read"),
        (region_at(tmp_path, SMALLEST), "oidc.issuers is empty"),
    ):
        result = CliRunner().invoke(cli, ["token", str(file)], input="ey.ey.ey")
        assert result.exit_code == 1
        assert why in result.stderr
