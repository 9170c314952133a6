from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.engine.presets import LLAMA_31_8B_L4 as EMULATED_L4
from loadgen.engine.presets import TOKEN_BUDGET_A100
from loadgen.planner.cited import CITED, LLAMA_3_70B_A100, LLAMA_31_8B_L4, QWEN3_235B_MI300X


def test_the_case_study_s_figures_follow_from_its_equations() -> None:
    """§4.7: 23.5 KiB a token, 133.4 GB for the cache, 676 slots of 8K and 169 of 32K."""
    assert QWEN3_235B_MI300X.kv_bytes_per_token == 24_064
    assert QWEN3_235B_MI300X.kv_tokens * 24_064 == pytest.approx(133.4e9, rel=1e-3)
    assert QWEN3_235B_MI300X.slots_at(8_192) == 676
    assert QWEN3_235B_MI300X.slots_at(32_768) == 169
    assert QWEN3_235B_MI300X.overrides((8_192, 32_768)) == []


def test_table_1_s_slots_do_not_and_are_told_as_overrides() -> None:
    profile = LLAMA_3_70B_A100
    assert (profile.slots_at(65_536), profile.slots_at(8_192)) == (16, 128)
    assert profile.slots_computed(65_536) == 0
    told = profile.overrides((8_192, 65_536))
    assert len(told) == 3
    assert told[0].startswith("65,536 KV blocks of 16 tokens (1,048,576 tokens) as the profile says; Eq. 1–2 give 40,")
    assert told[1:] == [
        "128 slots at 8,192 tokens as the profile says; Eq. 1–2 give 4",
        "16 slots at 65,536 tokens as the profile says; Eq. 1–2 give 0",
    ]


def test_slots_of_the_sweep_are_those_of_appendix_a() -> None:
    found = {context: LLAMA_3_70B_A100.slots_at(context) for context in (4_096, 8_192, 16_384, 32_768)}
    assert found == {4_096: 128, 8_192: 128, 16_384: 64, 32_768: 32}


def test_told_slots_go_before_what_the_room_gives() -> None:
    profile = replace(LLAMA_31_8B_L4, slots={4_096: 3})
    assert profile.slots_at(4_096) == 3
    assert profile.slots_at(2_048) == profile.slots_computed(2_048) == 17
    assert len(profile.overrides((4_096, 2_048))) == 1


def test_profiles_agree_with_the_emulated_engines() -> None:
    assert LLAMA_3_70B_A100.cost == TOKEN_BUDGET_A100.cost
    assert LLAMA_3_70B_A100.kv_tokens == TOKEN_BUDGET_A100.kv_tokens
    assert LLAMA_31_8B_L4.cost == EMULATED_L4.cost
    assert LLAMA_31_8B_L4.kv_tokens == pytest.approx(EMULATED_L4.kv_tokens, rel=0.02)
    engine = LLAMA_3_70B_A100.engine(8_192, 128)
    assert replace(engine, context_tokens_max=65_536, report_tokens=True) == TOKEN_BUDGET_A100


def test_all_gpus_of_an_instance_cost_and_what_has_no_price_costs_nothing_known() -> None:
    assert LLAMA_3_70B_A100.yearly_usd(10) == pytest.approx(10 * 2 * 2.21 * 8_760)
    assert QWEN3_235B_MI300X.yearly_usd(197) == pytest.approx(50.6e6, rel=2e-3)
    assert LLAMA_31_8B_L4.yearly_usd(10) is None


def test_every_cited_profile_says_where_it_is_from() -> None:
    for profile in CITED.values():
        assert profile.source
        assert profile.gpu.price is None or (profile.gpu.price.source and profile.gpu.price.date)
