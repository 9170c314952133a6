"""The compared systems: Nightside with its defaults, and others by the names of their packages."""

from __future__ import annotations

from pathlib import Path

from loadgen.bench.relay.rivals import router_arguments
from loadgen.studies.placement.live.systems import NIGHTSIDE, systems


def test_ours_comes_first_and_the_others_are_other_projects() -> None:
    ours, *others = systems(Path("rivals"))
    assert (ours.name, ours.relay) == (NIGHTSIDE, None)
    assert [each.name for each in others] == ["smg", "vllm-router", "sglang-router"]
    assert all(each.relay is not None and each.relay.package == each.name for each in others)


def test_all_are_asked_for_their_cache_aware_policy() -> None:
    for name in ("smg", "vllm-router", "sglang-router"):
        arguments = router_arguments(f"bin/{name}", ["http://a", "http://b"], port=1, prometheus=2)
        assert arguments[0] == f"bin/{name}"
        assert ("launch" in arguments) == (name != "vllm-router")
        assert arguments[arguments.index("--policy") + 1] == "cache_aware"
        assert arguments[-3:] == ["--worker-urls", "http://a", "http://b"]
