from __future__ import annotations

import pytest

from vllm_expert_counts import plugin


@pytest.mark.parametrize(
    ("found", "served"),
    [
        ("0.32.0", True),
        ("0.32.0+cpu", True),
        ("0.32.1rc1", True),
        ("0.30.0+cpu", False),
        ("0.33.0", False),
        ("1.32.0", False),
        ("0.320.0", False),
        ("unknown", False),
    ],
)
def test_one_line_of_vllm_is_served(found: str, served: bool) -> None:
    assert plugin.is_served(found) is served


def test_without_the_right_vllm_it_says_so_and_lets_go(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "_installed", False)
    plugin.register()
    assert "expert counts are made for vLLM 0.32 and are off in vLLM unknown" in caplog.text
    caplog.clear()
    plugin.register()
    assert caplog.text == "", "it is told once"
