from __future__ import annotations

from gateway.core.vocabulary import DEFAULT_POOL, GatewayId, ModelCapacity, ModelName
from gateway.records.model_labels import MODELS_MAX, OTHER, PEERS_MODELS_MAX, ModelLabels
from tests.support.core import EU, MODEL

PEER = GatewayId("eu-1")


def models(prefix: str, count: int) -> list[ModelName]:
    return [ModelName(f"{prefix}-{index}") for index in range(count)]


def served(*names: ModelName) -> tuple[ModelCapacity, ...]:
    return tuple(ModelCapacity(name, DEFAULT_POOL, EU, 1, 1) for name in names)


def test_what_nobody_serves_is_other() -> None:
    labels = ModelLabels()
    labels.assign([MODEL], {PEER})
    assert labels.of(ModelName("made-up")) == OTHER
    assert labels.of(MODEL) == MODEL


def test_a_name_that_has_series_keeps_them() -> None:
    labels = ModelLabels()
    labels.assign([MODEL], {PEER})
    assert labels.of(MODEL) == MODEL
    labels.assign([], {PEER})
    assert labels.of(MODEL) == MODEL


def test_what_a_peer_no_longer_says_is_forgotten() -> None:
    labels = ModelLabels()
    first, second = models("m", 2)
    labels.assign([], {PEER})
    labels.hear(PEER, served(first))
    labels.hear(PEER, served(second))
    assert labels.of(first) == OTHER
    assert labels.of(second) == second


def test_a_peer_that_is_one_no_longer_gives_no_labels() -> None:
    labels = ModelLabels()
    labels.assign([], {PEER})
    labels.hear(PEER, served(MODEL))
    labels.assign([], set())
    assert labels.of(MODEL) == OTHER


def test_there_are_only_so_many_and_peers_models_get_half_of_them() -> None:
    """Holds even where clients request every name that a peer makes up."""
    labels = ModelLabels()
    labels.assign([], {PEER})
    for name in models("theirs", 2 * MODELS_MAX):
        labels.hear(PEER, served(name))
        labels.of(name)
    ours = models("ours", 2 * MODELS_MAX)
    labels.assign(ours, {PEER})
    assert sum(labels.of(name) == name for name in models("theirs", 2 * MODELS_MAX)) == PEERS_MODELS_MAX
    assert sum(labels.of(name) == name for name in ours) == MODELS_MAX - PEERS_MODELS_MAX
