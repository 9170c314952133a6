from __future__ import annotations

from msgspec.structs import replace

from gateway.core.config import all_of
from gateway.core.events import ConfigApplied
from gateway.core.features.lengths.config import ThresholdConfig
from gateway.core.features.lengths.feature import pools_by_length
from gateway.core.features.lengths.threshold import Move
from gateway.core.kernel.events import TooLong
from gateway.core.vocabulary import LegResult
from tests.support.core import SECOND, Desk, started
from tests.support.pools import LONG, SHORT, ask, member, pooled

TUNED = ThresholdConfig(tuned=True, requests_min=10, interval_ns=SECOND)


def tuned(config: ThresholdConfig = TUNED) -> Desk:
    core = pooled([member("s0", SHORT), member("l0", LONG)])
    configure(core, config)
    return core


def configure(core: Desk, config: ThresholdConfig) -> None:
    core.tell(ConfigApplied(replace(all_of(core.core.config), threshold=config)))


def refuse_many(core: Desk, count: int = 12) -> None:
    """Let the short pool's engine refuse each of `count` requests for its length."""
    for number in range(count):
        core.now_ns += SECOND // 5
        ask(core, f"r{number}", 100)
        core.finish(f"r{number}", LegResult.TOO_LONG, too_long=TooLong(None, None))
        core.finish(f"r{number}", attempt=2)
        core.probe()


def test_refusals_bring_it_down_and_requests_go_by_it() -> None:
    core = tuned()
    home = pools_by_length(core.core).tuning.thresholds[SHORT].tokens
    assert started(ask(core, "before", home - 100)) == ["s0"]
    refuse_many(core)
    now = pools_by_length(core.core).tuning.thresholds[SHORT].tokens
    assert now < home
    assert pools_by_length(core.core).tuning.thresholds[SHORT].moves[Move.TROUBLE] > 0
    core.probe()
    assert started(ask(core, "after", home - 100)) == ["l0"], "it is meant for the long one now"


def test_it_is_off_unless_asked_for() -> None:
    core = tuned(ThresholdConfig())
    refuse_many(core)
    assert pools_by_length(core.core).tuning.thresholds == {}
    assert started(ask(core, "after", 4000)) == ["s0"]


def test_switched_off_it_is_where_it_was_set() -> None:
    core = tuned()
    refuse_many(core)
    configure(core, replace(TUNED, tuned=False))
    core.probe()
    assert pools_by_length(core.core).tuning.thresholds == {}
    assert started(ask(core, "after", 7800)) == ["s0"]


def test_what_was_not_touched_stands_where_it_stood_after_another_config() -> None:
    core = tuned()
    refuse_many(core)
    now = pools_by_length(core.core).tuning.thresholds[SHORT].tokens
    configure(core, replace(TUNED, patience_ns=SECOND))
    assert pools_by_length(core.core).tuning.thresholds[SHORT].tokens == now


def test_preemptions_that_engines_tell_bring_it_down() -> None:
    """Engines report how many sequences they preempted, not which."""
    core = tuned()
    home = pools_by_length(core.core).tuning.thresholds[SHORT].tokens
    for number in range(12):
        core.now_ns += SECOND // 5
        ask(core, f"a{number}", 100)
        core.first_token(f"a{number}")
        core.core.replicas.preempted[SHORT] = number
        core.finish(f"a{number}")
        core.probe()
    assert pools_by_length(core.core).tuning.thresholds[SHORT].tokens < home
