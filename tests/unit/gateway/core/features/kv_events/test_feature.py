"""KV events in one core: what engines' words make of what placement believes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.features.kv_events import engine_cache
from gateway.core.features.kv_events.config import KvEventsConfig
from gateway.core.features.kv_events.engine_cache import GRACE_NS, TieResult
from gateway.core.features.kv_events.events import CacheChange, CacheTier, ChangeKind, UnheardReason
from gateway.core.features.kv_events.feature import kv_events_of
from gateway.core.kernel.effects import StartLeg
from gateway.core.placement.engine_word import ENGINE_BLOCKS
from gateway.core.vocabulary import LegResult, ReplicaId
from tests.support.core import SECOND, Desk, desk, of_kind, profile, replica_spec, words

TELLING = replace(replica_spec("r0"), tells_cache=True)
MUTE = replica_spec("r1")
SIZE = 16
R0 = ReplicaId("r0")
TEXT = words("a")
TOKENS = len(TEXT) // 4
BLOCKS = TOKENS // SIZE
CHAIN_BLOCKS = profile("a", prompt=TEXT).prefix_blocks


def listening(*more: object, config: CoreConfig | None = None) -> Desk:
    one = desk(replicas=[TELLING, *more], config=config)  # type: ignore[list-item]
    tell(one, is_first=True)
    return one


def key(name: str, at: int) -> bytes:
    return f"{name}{at}".encode().rjust(8, b"-")


def tell(one: Desk, *changes: CacheChange, is_first: bool = False) -> None:
    one.tell(events.EngineTold(R0, changes, is_first))


def stored(name: str = "e", blocks: int = BLOCKS, tier: CacheTier = CacheTier.DEVICE) -> CacheChange:
    return CacheChange(ChangeKind.STORED, b"".join(key(name, at) for at in range(blocks)), b"", SIZE, tier)


def removed(first: int, name: str = "e", tier: CacheTier = CacheTier.DEVICE) -> CacheChange:
    return CacheChange(ChangeKind.REMOVED, b"".join(key(name, at) for at in range(first, BLOCKS)), tier=tier)


def serve(one: Desk, name: str = "a", *, result: LegResult = LegResult.COMPLETED, tokens: int | None = TOKENS) -> None:
    """Serve the prompt; its engine tells that it was stored."""
    one.ask(name, prompt=TEXT)
    one.wait(SECOND // 10)
    one.first_token(name)
    tell(one, stored())
    one.finish(name, result, prompt_tokens=tokens, output_tokens=1)
    one.wait(GRACE_NS)


def believed(one: Desk, slot: int = 0) -> int:
    """Blocks of the prompt that placement believes to be there."""
    return one.core.placer.replica_index.match(profile("z", prompt=TEXT).prefix, 1 << slot).blocks


def results(one: Desk) -> dict[TieResult, int]:
    return dict(kv_events_of(one.core).results)


def test_a_removal_shortens_what_is_believed() -> None:
    one = listening()
    serve(one)
    assert results(one) == {TieResult.TIED: 1}
    assert believed(one) == CHAIN_BLOCKS
    tell(one, removed(BLOCKS // 2))
    assert believed(one) == CHAIN_BLOCKS * (BLOCKS // 2 * SIZE) // TOKENS
    tell(one, removed(0))
    assert believed(one) == 0


def test_the_expected_prefill_follows() -> None:
    one = listening()
    serve(one)
    tell(one, removed(0))
    one.ask("b", prompt=TEXT)
    (state,) = one.core.replicas
    assert state.backlog_bytes == len(TEXT)


def test_a_removal_before_the_tie_leaves_the_estimate() -> None:
    one = listening()
    one.ask("a", prompt=TEXT)
    tell(one, stored(), removed(0))
    one.finish("a", prompt_tokens=TOKENS, output_tokens=1)
    one.wait(GRACE_NS)
    assert results(one) == {TieResult.UNHEARD: 1}
    assert believed(one) == CHAIN_BLOCKS


def test_a_prompt_removed_while_it_is_sent_again_is_believed_once_it_is_stored_again() -> None:
    one = listening()
    serve(one)
    one.ask("b", prompt=TEXT)
    tell(one, removed(0))
    assert believed(one) == 0
    tell(one, stored())
    one.finish("b", prompt_tokens=TOKENS, output_tokens=1)
    one.wait(GRACE_NS)
    assert believed(one) == CHAIN_BLOCKS * BLOCKS * SIZE // TOKENS


def test_a_cleared_cache_holds_nothing() -> None:
    one = listening()
    serve(one)
    one.ask("b", prompt=words("b"))
    one.finish("b")
    tell(one, CacheChange(ChangeKind.CLEARED))
    assert one.core.placer.replica_index.records == 0, "neither what was tied nor what was not"
    assert kv_events_of(one.core).hears(R0)


@pytest.mark.parametrize("result", [LegResult.FAILED, LegResult.CLIENT_ERROR])
def test_an_answer_that_was_not_completed_is_not_tied(result: LegResult) -> None:
    one = listening(MUTE)
    serve(one, result=result)
    assert results(one) == {}


def test_an_answer_without_token_counts_is_not_tied() -> None:
    one = listening()
    serve(one, tokens=None)
    assert results(one) == {}


def test_what_a_replica_that_tells_nothing_holds_is_estimated() -> None:
    one = desk(replicas=1)
    assert not kv_events_of(one.core).is_on()
    tell(one, stored(), is_first=True)
    one.ask("a", prompt=TEXT)
    one.finish("a", prompt_tokens=TOKENS, output_tokens=1)
    one.wait(GRACE_NS)
    assert results(one) == {}
    assert believed(one) == CHAIN_BLOCKS


@pytest.mark.parametrize("reason", list(UnheardReason))
def test_an_engine_that_is_not_heard_changes_nothing_until_it_begins_anew(reason: UnheardReason) -> None:
    one = listening()
    serve(one)
    one.tell(events.EngineUnheard(R0, reason))
    assert not kv_events_of(one.core).hears(R0)
    tell(one, removed(0))
    assert believed(one) == CHAIN_BLOCKS
    assert kv_events_of(one.core).unheard == {reason: 1}
    tell(one, is_first=True)
    tell(one, removed(0))
    assert believed(one) == CHAIN_BLOCKS, "what it told before is void"


def test_an_engine_that_tells_too_much_is_not_heard_any_more() -> None:
    one = listening(config=CoreConfig(kv_events=KvEventsConfig(blocks_max=BLOCKS)))
    serve(one)
    assert kv_events_of(one.core).hears(R0)
    tell(one, stored("f", 1))
    assert not kv_events_of(one.core).hears(R0)
    assert kv_events_of(one.core).unheard == {UnheardReason.BLOCKS: 1}
    assert believed(one) == CHAIN_BLOCKS


def test_a_limit_on_blocks_changes_while_an_engine_is_heard() -> None:
    one = listening(config=CoreConfig(kv_events=KvEventsConfig(blocks_max=BLOCKS)))
    serve(one)
    one.tell(events.ConfigApplied(CoreConfig(kv_events=KvEventsConfig(blocks_max=BLOCKS + 1))))
    tell(one, stored("f", 1))
    assert kv_events_of(one.core).hears(R0), "room for one more"
    one.tell(events.ConfigApplied(CoreConfig(kv_events=KvEventsConfig(blocks_max=BLOCKS))))
    assert not kv_events_of(one.core).hears(R0), "one more than are kept"
    assert believed(one) == CHAIN_BLOCKS


def test_a_replica_that_leaves_takes_its_cache_along() -> None:
    one = listening(MUTE)
    serve(one)
    one.tell(events.AssignmentApplied(2, (MUTE,), ()))
    assert not kv_events_of(one.core).hears(R0)
    assert not kv_events_of(one.core).is_on()
    one.tell(events.AssignmentApplied(3, (MUTE, TELLING), ()))
    assert not kv_events_of(one.core).hears(R0), "it has not told anything yet"


def test_the_record_shows_what_the_engine_told() -> None:
    one = listening(MUTE)
    serve(one)
    tell(one, removed(BLOCKS // 2))
    left = believed(one)
    (leg,) = of_kind(StartLeg, one.ask("b", prompt=TEXT))
    (record,) = [each for each in leg.decision.considered if each.target.id == R0]
    assert record.costs is not None
    assert [(each.name, each.amount) for each in record.costs.further] == [(ENGINE_BLOCKS, left)]
    (other,) = [each for each in leg.decision.considered if each.target.id == "r1"]
    assert other.costs is not None
    assert other.costs.further == ()


def test_the_state_says_what_each_engine_tells() -> None:
    one = listening(MUTE)
    serve(one)
    told = kv_events_of(one.core)
    assert told.described(R0) == {"is_heard": True, "blocks": BLOCKS, "tied": BLOCKS, "unplaced": 0}
    assert told.described(ReplicaId("r1")) == {"is_heard": False}


def test_hashes_in_an_event_are_permuted_at_once() -> None:
    changes = (
        CacheChange(ChangeKind.STORED, key("e", 1) + key("e", 2), key("e", 0), SIZE),
        CacheChange(ChangeKind.CLEARED),
        CacheChange(ChangeKind.REMOVED, key("e", 3)),
    )
    calls: list[bytes] = []

    def permuted(hashes: bytes) -> bytes:
        calls.append(hashes)
        return b"".join(hashes[at : at + 8][::-1] for at in range(0, len(hashes), 8))

    hidden = events.EngineTold(R0, changes).with_hashes(permuted)
    assert len(calls) == 1
    assert hidden.changes == (
        CacheChange(ChangeKind.STORED, key("e", 1)[::-1] + key("e", 2)[::-1], key("e", 0)[::-1], SIZE),
        CacheChange(ChangeKind.CLEARED),
        CacheChange(ChangeKind.REMOVED, key("e", 3)[::-1]),
    )


def test_nothing_is_permuted_where_there_are_no_hashes() -> None:
    event = events.EngineTold(R0, (CacheChange(ChangeKind.CLEARED),))
    assert event.with_hashes(lambda hashes: pytest.fail("no hash is there")) is event


def test_an_answer_that_is_left_is_looked_for_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_cache, "_STEPS_MAX", 1)
    one = listening()
    for name in ("a", "b"):
        one.ask(name, prompt=TEXT)
    for name in ("a", "b"):
        one.finish(name, prompt_tokens=TOKENS, output_tokens=1)
    tell(one, stored())
    one.wait(GRACE_NS + SECOND)
    assert results(one) == {TieResult.AMBIGUOUS: 2}
