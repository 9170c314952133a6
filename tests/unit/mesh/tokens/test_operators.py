from __future__ import annotations

import io
from typing import Any

import pytest

from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from mesh.operators import NotAnOperator, Operator
from mesh.operators_config import OperatorIssuerConfig, OperatorsConfig, Role
from mesh.tokens.config import IssuerConfig
from mesh.tokens.counters import AT_START
from mesh.tokens.issuer import IssuerDependencies
from mesh.tokens.operators import make_operators, operator_of
from mesh.tokens.words import TokenFault, TokenRefused
from tests.fakes.issuer import FakeIssuer
from tests.support.clock import StillClock

ISSUER = FakeIssuer("https://login.example.net", now_s=0)
CONFIG = OperatorIssuerConfig(
    name="staff",
    issuer=ISSUER.url,
    audiences=("nightside",),
    claim="realm.groups",
    roles={Role.LOOK: ("viewers", "all"), Role.CHANGE: ("platform",)},
)


def of(*groups: str, sub: str = "alice") -> dict[str, Any]:
    return {"sub": sub, "realm": {"groups": list(groups)}}


def test_the_most_that_any_of_its_roles_allows() -> None:
    assert operator_of(CONFIG, of("x", "all")) == Operator("staff:alice", Role.LOOK)
    assert operator_of(CONFIG, of("platform", "viewers")) == Operator("staff:alice", Role.CHANGE)


def test_whoever_has_none_is_none() -> None:
    for groups in ((), ("x",), ("viewer",)):
        with pytest.raises(TokenRefused) as refused:
            operator_of(CONFIG, of(*groups))
        assert refused.value.reason is TokenFault.NOT_MAPPED
        assert refused.value.words.endswith("its realm.groups has no role")


def test_a_name_is_one_line_of_a_log() -> None:
    assert operator_of(CONFIG, of("all", sub="a\n\x1b[31mb")).name == "staff:a??[31mb"
    assert len(operator_of(CONFIG, of("all", sub="x" * 255)).name) < 140


async def test_a_token_of_an_issuer_beside_one_of_a_file() -> None:
    class Wall(StillClock):
        def wall_ns(self) -> int:
            return self.now

    async def fetch(_: IssuerConfig) -> bytes:
        return ISSUER.key_set()

    log = make_logger(LoggingConfig(LogFormat.JSON), "gw", io.StringIO())
    operators, (issuer,) = make_operators(
        "s3cret", OperatorsConfig(issuers=(CONFIG,)), IssuerDependencies("gw", None, Wall(), log, fetch=fetch)
    )
    token = ISSUER.token(realm={"groups": ["viewers"]})
    assert (await operators.identify("s3cret")).role is Role.CHANGE, "without the issuer"
    await issuer.fetch(AT_START)
    assert await operators.identify(token) == Operator("staff:alice", Role.LOOK)
    for wrong, why in ((token[:-3] + "AAA", "signature"), ("nonsense", "show an operator's token"), ("", "show")):
        with pytest.raises(NotAnOperator, match=why):
            await operators.identify(wrong)
