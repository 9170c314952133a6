from __future__ import annotations

import json

import numpy as np
import pytest

from tests.support.expert_counts import unpacked
from vllm_expert_counts.wire import KEY, Label, adds_up, calibration_line, handed_over, is_asked_for, label_of


def test_a_hand_over_carries_the_counts_as_they_are() -> None:
    counts = np.array([[1, 0, 65_535], [256, 70_000, 2]], dtype=np.uint32)
    said = json.loads(json.dumps(handed_over(counts, tokens=300, model="Qwen3MoeForCausalLM/0123456789ab")))
    packed = said.pop("counts")
    assert said == {"v": 1, "layers": 2, "experts": 3, "model": "Qwen3MoeForCausalLM/0123456789ab", "tokens": 300}
    assert unpacked(packed, "<u2") == [1, 0, 65_535, 256, 65_535, 2], "what does not fit stops at the ceiling"


def test_the_largest_prompt_of_a_large_model_stays_small() -> None:
    """48 layers of 128 experts take 12 KiB; a hand-off may carry 64."""
    counts = np.random.default_rng(0).integers(0, 65_536, (48, 128)).astype(np.uint32)
    assert len(json.dumps(handed_over(counts, 100_000, "m"))) < 20_000


def test_a_line_of_calibration_is_one_line_of_json() -> None:
    prefill = np.array([[70_000, 1]], dtype=np.uint32)
    decode = np.array([[70_000, 3]], dtype=np.uint32)
    line = calibration_line("cmpl-1", Label("page 7\n"), "m", prefill=prefill, decode=decode, steps=5)
    assert "\n" not in line
    said = json.loads(line)
    assert (unpacked(said.pop("prefill"), "<u2"), unpacked(said.pop("decode"), "<u4")) == ([65_535, 1], [70_000, 3])
    assert said == {
        "v": 1,
        "id": "cmpl-1",
        "document": "page 7\n",
        "model": "m",
        "layers": 1,
        "experts": 2,
        "steps": 5,
    }


@pytest.mark.parametrize(
    ("params", "asked"),
    [
        (None, False),
        ({}, False),
        ("do_remote_decode", False),
        ({"do_remote_decode": False}, False),
        ({"do_remote_prefill": True}, False),
        ({"do_remote_decode": True}, True),
        ({KEY: True}, True),
        ({KEY: "yes"}, False),
    ],
)
def test_counts_are_for_who_hands_over_or_asks(params: object, asked: bool) -> None:
    assert is_asked_for(params) is asked


def test_counts_of_another_prompt_do_not_add_up() -> None:
    counts = np.array([[3, 1], [2, 2]], dtype=np.uint32)
    assert adds_up(counts, tokens=2, top_k=2)
    assert not adds_up(counts, tokens=3, top_k=2)
    assert not adds_up(np.array([[3, 1], [2, 1]], dtype=np.uint32), tokens=2, top_k=2)


def test_a_request_is_labelled_by_whoever_calibrates() -> None:
    assert label_of({"document": "page 7", "domain": "law", "other": 1}) == Label("page 7", "law")
    assert label_of({"document": 7}) == Label("7")
    assert label_of({}) == Label()
    counts = np.ones((1, 2), dtype=np.uint32)
    line = calibration_line("cmpl-1", Label(domain="law"), "m", prefill=counts, decode=counts, steps=1)
    assert (json.loads(line)["document"], json.loads(line)["domain"]) == ("cmpl-1", "law")
