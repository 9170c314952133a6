from __future__ import annotations

import pytest

from vllm_expert_counts.model import fingerprint

SETTINGS = {"hidden_size": 64, "num_experts": 32, "rope_theta": 10_000.0, "layer_types": ["full_attention"]}


def test_a_model_has_the_same_name_however_it_was_saved() -> None:
    saved = {**SETTINGS, "_name_or_path": "/models/a", "torch_dtype": "bfloat16", "transformers_version": "5.19"}
    reordered = dict(reversed(SETTINGS.items()))
    names = {fingerprint("Qwen3MoeForCausalLM", each) for each in (SETTINGS, saved, reordered)}
    assert len(names) == 1
    assert names.pop().startswith("Qwen3MoeForCausalLM/")


@pytest.mark.parametrize("other", [{"num_experts": 64}, {"rope_theta": 1_000_000.0}, {"more": object}])
def test_another_model_has_another(other: dict[str, object]) -> None:
    assert fingerprint("A", SETTINGS) != fingerprint("A", {**SETTINGS, **other})


def test_a_name_is_short_and_can_be_printed() -> None:
    name = fingerprint("Ä\n" + "x" * 500, SETTINGS)
    assert len(name) <= 128
    assert name.isascii()
    assert name.isprintable()
