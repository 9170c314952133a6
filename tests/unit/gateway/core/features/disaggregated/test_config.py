from __future__ import annotations

import pytest

from gateway.core.features.disaggregated.catalogue import BUILT_IN
from gateway.core.features.disaggregated.config import (
    LATE_POLICIES,
    LOCAL_POLICIES,
    BalanceConfig,
    DecodeConfig,
    DecodePolicyName,
    PolicySource,
    check_decode,
    decode_of,
    policy_source,
)
from gateway.core.features.expert_locality.catalogue import BY_EXPERTS
from gateway.core.vocabulary import Connector, PoolKind, PoolName, PoolSpec

LATE = DecodeConfig(DecodePolicyName.BR_H)


@pytest.mark.parametrize("connector", list(Connector))
@pytest.mark.parametrize("policy", sorted(set(DecodePolicyName) - LATE_POLICIES - LOCAL_POLICIES))
def test_whatever_needs_no_pool_goes_with_every_connector_and_with_bypass(
    policy: DecodePolicyName, connector: Connector
) -> None:
    check_decode(DecodeConfig(policy), connector)
    check_decode(DecodeConfig(policy, bypass=True), connector)


def test_what_looks_ahead_needs_requests_that_wait() -> None:
    for connector in Connector:
        if connector.is_sequential:
            check_decode(LATE, connector)
        else:
            with pytest.raises(ValueError, match=f"policy br_h .* connector {connector} .* take br_0 or a baseline"):
                check_decode(LATE, connector)
    with pytest.raises(ValueError, match=r"policy br_h .* with bypass none of them does"):
        check_decode(DecodeConfig(DecodePolicyName.BR_H, bypass=True), Connector.NIXL)


def test_what_goes_by_a_prompts_experts_needs_prompts_that_were_read() -> None:
    for policy in LOCAL_POLICIES:
        check_decode(DecodeConfig(policy), Connector.NIXL)
        for connector in (Connector.MOONCAKE, Connector.SGLANG):
            with pytest.raises(
                ValueError, match=f"policy {policy} .* connector {connector} .* take br_0 or a baseline"
            ):
                check_decode(DecodeConfig(policy), connector)
    assert DecodeConfig(DecodePolicyName.ELDR).sends_at_once


def spec(connector: Connector = Connector.NIXL, **sections: str) -> PoolSpec:
    return PoolSpec(PoolName("chat"), PoolKind.DISAGGREGATED, connector, 8, features=tuple(sections.items()))


@pytest.mark.parametrize(
    ("pool", "foresees", "policy", "source"),
    [
        (spec(), False, DecodePolicyName.BR_0, PolicySource.DEFAULT),
        (spec(), True, DecodePolicyName.BR_H, PolicySource.PREDICTOR),
        (spec(Connector.MOONCAKE), True, DecodePolicyName.BR_0, PolicySource.DEFAULT),
        (spec(decode='{"bypass":true}'), True, DecodePolicyName.BR_0, PolicySource.DEFAULT),
        (spec(decode='{"balance":{"horizon_steps":8}}'), True, DecodePolicyName.BR_0, PolicySource.DEFAULT),
        (spec(expert_locality="{}"), True, DecodePolicyName.ELDR, PolicySource.ARTIFACT),
        (spec(decode='{"policy":"random"}', expert_locality="{}"), True, "random", PolicySource.DESCRIPTION),
    ],
    ids=["silent", "foreseen", "concurrent", "bypass", "short horizon", "artifact", "named"],
)
def test_a_pool_that_names_no_policy_has_the_one_that_suits_it(
    pool: PoolSpec, foresees: bool, policy: DecodePolicyName, source: PolicySource
) -> None:
    config = decode_of(pool, foresees=foresees)
    assert (config.policy, policy_source(pool, config)) == (policy, source)


def test_predictions_are_made_anew_within_their_horizon() -> None:
    config = DecodeConfig(DecodePolicyName.BR_H, balance=BalanceConfig(horizon_steps=24, refresh_tokens=24))
    with pytest.raises(ValueError, match=r"balance.refresh_tokens 24: .* 24 steps"):
        check_decode(config, Connector.NIXL)


@pytest.mark.parametrize(
    "wrong, fault",
    [
        (DecodeConfig(admissions_max=0), r"^admissions_max 0: it is 1 to 100,000$"),
        (DecodeConfig(in_flight_margin=-1), "^in_flight_margin -1"),
        (DecodeConfig(balance=BalanceConfig(horizon_steps=100_000)), "^balance.horizon_steps 100000: it is 1 to 1,000"),
        (DecodeConfig(balance=BalanceConfig(window=0)), "^balance.window 0"),
        (DecodeConfig(balance=BalanceConfig(block_tokens=0)), "^balance.block_tokens 0"),
        (DecodeConfig(balance=BalanceConfig(discount=float("nan"))), "^balance.discount nan"),
        (DecodeConfig(balance=BalanceConfig(discount=1.1)), r"^balance.discount 1\.1"),
        (DecodeConfig(balance=BalanceConfig(penalty_weight=0)), "^balance.penalty_weight 0"),
        (DecodeConfig(band=1.5), r"^band 1\.5: it is 0 to 1"),
        (DecodeConfig(band=float("nan")), "^band nan"),
    ],
)
def test_what_no_tick_could_go_by_is_refused_by_its_key(wrong: DecodeConfig, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        check_decode(wrong, Connector.NIXL)


def test_every_policy_that_has_a_name_is_there() -> None:
    assert set(BUILT_IN | BY_EXPERTS) == set(DecodePolicyName)
