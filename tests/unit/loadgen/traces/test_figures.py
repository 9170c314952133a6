from __future__ import annotations

import json

import pytest

from loadgen.traces.figures import trace_figures
from loadgen.traces.mooncake import parse_mooncake


def test_what_repeats_is_counted_with_and_without_what_everybody_begins_with() -> None:
    ids = [[0, 1], [0, 1, 2], [0, 9], [0, 1, 2, 3]]
    rows = [
        {"timestamp": 700 * n + 1, "input_length": 512 * len(each), "output_length": n, "hash_ids": each}
        for n, each in enumerate(ids)
    ]
    figures = trace_figures(parse_mooncake([*map(json.dumps, rows), "broken"]))
    assert figures["repeated_input_share"] == pytest.approx((2 + 1 + 3) / 11, abs=1e-4)
    assert figures["repeated_input_share_without_common_beginning"] == pytest.approx(1 / 11, abs=1e-4)
    assert (figures["requests"], figures["sessions"], figures["unreadable"]) == (4, 2, 1)
    assert figures["input_tokens"]["max"] == 2048
    assert figures["span_s"] == 2.1
    assert figures["think_s"] is None
