"""Decode policies that go by experts, by their config name."""

from __future__ import annotations

from gateway.core.features.disaggregated.config import DecodePolicyName
from gateway.core.features.disaggregated.policy import DecodePolicies
from gateway.core.features.expert_locality.balance_local import BalanceLocal
from gateway.core.features.expert_locality.eldr import Eldr

BY_EXPERTS: DecodePolicies = {
    DecodePolicyName.ELDR: Eldr,
    DecodePolicyName.BR_H_LOCAL: BalanceLocal,
}
