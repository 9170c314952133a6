from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Mapping
from typing import Any

import pytest

from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from mesh.tokens.config import IssuerConfig
from mesh.tokens.counters import AT_START, TokenCounters
from mesh.tokens.issuer import Issuer, IssuerDependencies
from mesh.tokens.tokens import Tokens
from mesh.tokens.words import TokenFault, TokenRefused
from tests.fakes.issuer import FakeIssuer, ec_key
from tests.support.clock import StillClock

SECOND = 1_000_000_000
NOW_S = 1_800_000_000


class Both(StillClock):
    def wall_ns(self) -> int:
        return self.now


class House:
    """Two issuers and the grants of their tokens: the holders, and how often a grant was computed."""

    def __init__(self, remembered_max: int = 100) -> None:
        self.clock = Both(NOW_S * SECOND)
        self.corp, self.lab = (FakeIssuer(f"https://{name}.example.net", now_s=NOW_S) for name in ("corp", "lab"))
        self.granted: list[str] = []
        self.counters = TokenCounters()
        log = make_logger(LoggingConfig(LogFormat.JSON), "gw", io.StringIO())
        around = IssuerDependencies("gw", None, self.clock, log, self.counters, self.fetch, random.Random(1))
        configs = [
            IssuerConfig(name=name, issuer=f"https://{name}.example.net", audiences=("nightside",))
            for name in ("corp", "lab")
        ]
        self.issuers = around.issuers("clients", configs)
        self.tokens = Tokens(
            "clients",
            self.issuers,
            self.grant,
            clock=self.clock,
            counters=self.counters,
            remembered_max=remembered_max,
        )

    async def fetch(self, config: IssuerConfig) -> bytes:
        return (self.corp if config.name == "corp" else self.lab).key_set()

    def grant(self, config: IssuerConfig, claims: Mapping[str, Any]) -> str:
        if claims["sub"] == "nobody":
            raise TokenRefused(TokenFault.NOT_MAPPED)
        self.granted.append(claims["sub"])
        return f"{config.name}:{claims['sub']}"

    async def known(self) -> House:
        for each in self.issuers:
            await each.fetch(AT_START)
        return self

    def refusal(self, token: str) -> TokenFault:
        with pytest.raises(TokenRefused) as refused:
            self.tokens.check(token)
        return refused.value.reason

    def counted(self) -> dict[tuple[str, str], float]:
        samples = [sample for family in self.counters.verified.collect() for sample in family.samples]
        return {(each.labels["issuer"], each.labels["result"]): each.value for each in samples}


async def test_a_token_is_verified_once_and_remembered() -> None:
    house = await House().known()
    token = house.corp.token()
    assert [house.tokens.check(token) for _ in range(3)] == ["corp:alice"] * 3
    assert house.granted == ["alice"]
    assert house.counted() == {("corp", "valid"): 1, ("corp", "remembered"): 2}


async def test_issuers_are_told_apart_and_one_does_not_sign_for_the_other() -> None:
    house = await House().known()
    assert house.tokens.check(house.lab.token()) == "lab:alice"
    assert house.refusal(house.corp.token(key=house.lab.keys[0])) is TokenFault.SIGNATURE
    assert house.refusal(house.corp.token(iss="https://evil.example.net")) is TokenFault.ISSUER
    assert house.refusal(house.corp.token(iss=["https://corp.example.net"])) is TokenFault.ISSUER
    assert house.refusal(house.corp.token(iss=None)) is TokenFault.ISSUER
    assert set(house.counted()) == {("lab", "valid"), ("corp", "signature"), ("", "issuer")}, "none is named but ours"


async def test_one_that_was_remembered_expires_all_the_same() -> None:
    house = await House().known()
    token = house.corp.token()
    house.tokens.check(token)
    house.clock.now += 630 * SECOND
    assert house.tokens.check(token) == "corp:alice"
    house.clock.now += SECOND
    assert house.refusal(token) is TokenFault.EXPIRED


async def test_a_key_that_is_withdrawn_takes_with_it_what_it_signed() -> None:
    house = await House().known()
    old = house.corp.token()
    house.tokens.check(old)
    house.corp.keys.append(ec_key("key-2"))
    await house.issuers[0].fetch("interval")
    assert house.tokens.check(old) == "corp:alice", "both are good while it turns over"
    assert house.tokens.check(house.corp.token(key=house.corp.keys[1])) == "corp:alice"
    del house.corp.keys[0]
    await house.issuers[0].fetch("interval")
    assert house.refusal(old) is TokenFault.KEY
    assert house.granted == ["alice"] * 3, "verified anew with the new keys, and once more"


async def test_keys_that_are_stale_are_believed_for_nobody() -> None:
    house = await House().known()
    token = house.corp.token(exp=NOW_S + 10**7)
    house.tokens.check(token)
    house.clock.now += house.issuers[0].config.stale_after_ns + 1
    assert house.refusal(token) is TokenFault.UNAVAILABLE


async def test_an_issuer_of_which_nothing_is_known_grants_nothing() -> None:
    house = House()
    assert house.refusal(house.corp.token()) is TokenFault.UNAVAILABLE
    assert house.granted == []


async def test_what_grants_nothing_is_not_remembered() -> None:
    house = await House().known()
    assert house.refusal(house.corp.token(sub="nobody")) is TokenFault.NOT_MAPPED
    assert len(house.tokens) == 0


async def test_what_is_remembered_is_bounded_and_those_in_use_stay() -> None:
    house = await House(remembered_max=3).known()
    mine = house.corp.token(sub="me")
    for number in range(10):
        house.tokens.check(mine)
        house.tokens.check(house.corp.token(sub=f"s{number}"))
    assert len(house.tokens) == 3
    assert house.granted.count("me") == 1


async def test_a_token_by_a_new_key_waits_for_the_keys_and_is_taken() -> None:
    house = House()
    house.corp.keys = [ec_key("key-2")]
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(house.issuers[0].run())
        asked = [tasks.create_task(house.tokens.identify(house.corp.token())) for _ in range(5)]
        assert [await each for each in asked] == ["corp:alice"] * 5
        house.corp.keys.insert(0, ec_key("key-3"))
        house.clock.now += house.issuers[0].config.refetch_interval_ns
        assert await house.tokens.identify(house.corp.token()) == "corp:alice"
        with pytest.raises(TokenRefused):
            await house.tokens.identify(house.corp.token(key=ec_key("key-4")))
        running.cancel()
    fetched = [sample.value for family in house.counters.fetches.collect() for sample in family.samples]
    assert sum(fetched) == 2


async def test_nobody_is_asked_about_what_no_answer_would_change() -> None:
    house = House()
    asked: list[str] = []

    class Asked(Issuer):
        async def refetched(self) -> bool:
            asked.append(self.config.name)
            return False

    for each in house.issuers:
        each.__class__ = Asked
    for token in (house.corp.token(iss="https://evil.example.net"), "ey.ey.ey"):
        with pytest.raises(TokenRefused):
            await house.tokens.identify(token)
    assert asked == []
    with pytest.raises(TokenRefused):
        await house.tokens.identify(house.lab.token())
    assert asked == ["lab"]


async def test_no_token_is_kept() -> None:
    house = await House().known()
    token = house.corp.token()
    house.tokens.check(token)
    assert token not in repr(house.tokens._remembered)
    assert token.rpartition(".")[2] not in repr(house.tokens._remembered)
