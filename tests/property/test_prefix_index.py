from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from gateway.core.placement.prefix_chain import prefix_chain
from gateway.core.placement.prefix_index import PrefixIndex
from tests.support.nightly import examples

ROOMY_BYTES = 2**30
TTL_NS = 20
SLOTS = (0, 1, 2, 29, 30, 64, 4000)

Text = tuple[int, ...]
texts = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)
slots = st.sampled_from(SLOTS)


def chain_of(text: Text) -> bytes:
    """Chain with one block per letter."""
    return prefix_chain(b"", [bytes(text)], block_bytes=1, blocks_max=1000)[0]


@dataclass
class PlainIndex:
    """Reference model of the index: when each prefix was last sent to each slot, without tree, sharing or bound."""

    seen_ns: dict[tuple[Text, int], int] = field(default_factory=dict)

    def insert(self, text: Text, slot: int, now_ns: int) -> None:
        for length in range(1, len(text) + 1):
            self.seen_ns[text[:length], slot] = now_ns

    def retract(self, text: Text, slot: int, keep: int) -> None:
        if (text[: keep + 1], slot) not in self.seen_ns or keep >= len(text):
            return
        latest_ns = max(time_ns for (_, other), time_ns in self.seen_ns.items() if other == slot)
        self.forget({known for known in self.seen_ns if known[1] == slot and known[0][: keep + 1] == text[: keep + 1]})
        self.insert(text[:keep], slot, latest_ns)

    def remove_target(self, slot: int) -> None:
        self.forget({known for known in self.seen_ns if known[1] == slot})

    def expire(self, now_ns: int) -> None:
        self.forget({known for known, time_ns in self.seen_ns.items() if now_ns - time_ns > TTL_NS})

    def forget(self, known: set[tuple[Text, int]]) -> None:
        self.seen_ns = {one: time_ns for one, time_ns in self.seen_ns.items() if one not in known}

    def of_slot(self, slot: int) -> dict[Text, int]:
        return {text: time_ns for (text, other), time_ns in self.seen_ns.items() if other == slot}

    def depth(self, text: Text, slot: int) -> int:
        return next((length for length in range(len(text), 0, -1) if (text[:length], slot) in self.seen_ns), 0)

    def match(self, text: Text, available: tuple[int, ...]) -> tuple[int, int]:
        blocks = max((self.depth(text, slot) for slot in available), default=0)
        return blocks, sum(1 << slot for slot in available if blocks and self.depth(text, slot) == blocks)


class IndexMachine(RuleBasedStateMachine):
    """Any order of changes: the index answers as the reference model does, except for evicted prefixes.

    Evicted prefixes are older than all that are kept. Each insertion has a time of its own, so that their order is
    exact.
    """

    sent = Bundle("sent")

    @initialize(bytes_max=st.sampled_from([ROOMY_BYTES, 6000, 3000]))
    def open(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.index = PrefixIndex(bytes_max, TTL_NS)
        self.plain = PlainIndex()
        self.now_ns = 0
        self.sent_at: dict[int, tuple[Text, int]] = {}
        """Text and slot sent at each time; after a retraction, the rest of the text."""

    @rule(target=sent, text=texts, slot=slots)
    def insert(self, text: Text, slot: int) -> Text:
        return self.send(text, slot)

    @rule(target=sent, text=sent, more=texts, slot=slots)
    def insert_longer(self, text: Text, more: Text, slot: int) -> Text:
        return self.send((text + more)[:12], slot)

    def send(self, text: Text, slot: int) -> Text:
        self.now_ns += 1
        self.index.insert(chain_of(text), slot, self.now_ns)
        self.plain.insert(text, slot, self.now_ns)
        self.take_note_of_evictions()
        assert self.index.match(chain_of(text), 1 << slot).blocks == len(text), "the newest chain fits, so it stays"
        assert self.index.last_sent_ns(chain_of(text), slot) == self.now_ns
        self.sent_at[self.now_ns] = text, slot
        return text

    @rule(text=sent | texts, slot=slots, keep=st.integers(0, 12))
    def retract(self, text: Text, slot: int, keep: int) -> None:
        self.index.retract(chain_of(text), slot, keep)
        self.plain.retract(text, slot, keep)
        self.take_note_of_evictions()
        kept = self.plain.seen_ns.get((text[:keep], slot))
        if kept is not None and self.index.last_sent_ns(chain_of(text[:keep]), slot) == kept:
            self.sent_at[kept] = text[:keep], slot

    @rule(slot=slots)
    def remove_target(self, slot: int) -> None:
        self.index.remove_target(slot)
        self.plain.remove_target(slot)

    @rule(passed_ns=st.integers(0, 2 * TTL_NS))
    def expire(self, passed_ns: int) -> None:
        self.now_ns += passed_ns
        self.index.expire(self.now_ns)
        self.plain.expire(self.now_ns)

    @rule(slot=slots, blocks_max=st.integers(0, 12))
    def bound(self, slot: int, blocks_max: int) -> None:
        """Bound a slot: it forgets the prefixes sent earliest, and no more than necessary."""
        before = self.plain.of_slot(slot)
        self.index.bound(slot, blocks_max)
        kept = {text for text in before if self.index.match(chain_of(text), 1 << slot).blocks == len(text)}
        forgotten = before.keys() - kept
        if before:
            assert max(before, key=lambda text: (before[text], len(text))) in kept, "the last chain stays"
        if forgotten:
            assert len(before) > blocks_max
            assert max(before[text] for text in forgotten) <= min(before[text] for text in kept)
        ends = {before[text] for text in kept}
        assert len(kept) <= blocks_max or len(ends) == 1, "there was more than one chain to forget"
        self.plain.forget({(text, slot) for text in forgotten})

    @rule(text=sent | texts, slot=slots)
    def last_sent(self, text: Text, slot: int) -> None:
        """Time at which a prefix of the text was last sent to the slot."""
        last_ns = self.index.last_sent_ns(chain_of(text), slot)
        if last_ns is not None and self.bytes_max == ROOMY_BYTES:
            sent, where = self.sent_at[last_ns]
            assert (text[: len(sent)], slot) == (sent, where)

    @rule(text=sent | texts, available=st.lists(slots, unique=True).map(tuple))
    def match(self, text: Text, available: tuple[int, ...]) -> None:
        mask = sum(1 << slot for slot in available)
        match = self.index.match(chain_of(text), mask)
        assert (match.blocks, match.mask) == self.plain.match(text, available)

    def take_note_of_evictions(self) -> None:
        seen_ns = self.plain.seen_ns
        evicted = {
            (text, slot) for text, slot in seen_ns if self.index.match(chain_of(text), 1 << slot).blocks < len(text)
        }
        if self.bytes_max == ROOMY_BYTES:
            assert evicted == set()
        if evicted:
            kept = [time_ns for known, time_ns in seen_ns.items() if known not in evicted]
            assert max(seen_ns[known] for known in evicted) <= min(kept, default=self.now_ns)
        self.plain.forget(evicted)

    @invariant()
    def nothing_is_out_of_order(self) -> None:
        if hasattr(self, "index"):
            assert self.index.check() == []
            assert self.index.size_bytes <= self.bytes_max

    @invariant()
    def each_slot_s_books_tell_its_blocks_and_its_earliest_chain(self) -> None:
        for slot in SLOTS if hasattr(self, "index") else ():
            known = self.plain.of_slot(slot)
            assert self.index.even_blocks_of(slot) == len(known)
            earliest_ns = self.index.earliest_ns(slot)
            assert (earliest_ns is None) == (not known)
            assert earliest_ns is None or earliest_ns <= min(known.values())


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=examples(few=40, night=400), stateful_step_count=40)

hashes = st.integers(0, 3).map(lambda number: bytes([number]) * 8)
strange_chains = st.lists(hashes, max_size=6).map(b"".join)


@given(st.lists(st.tuples(texts, slots), max_size=8), texts, st.lists(st.tuples(texts, slots), max_size=4), slots)
def test_what_is_withdrawn_takes_nothing_from_what_was_sent_before_or_since(
    before: list[tuple[Text, int]], text: Text, since: list[tuple[Text, int]], slot: int
) -> None:
    """Withdrawing a text removes all of it but the prefix that it shares with other texts."""
    index, plain, now_ns = PrefixIndex(ROOMY_BYTES, 10**9), PlainIndex(), 0
    for sent, other in before:
        index.insert(chain_of(sent), other, now_ns := now_ns + 1)
        plain.insert(sent, other, now_ns)
    keep = index.match(chain_of(text), 1 << slot).blocks
    index.insert(chain_of(text), slot, now_ns := now_ns + 1)
    for sent, other in since:
        index.insert(chain_of(sent), other, now_ns := now_ns + 1)
        plain.insert(sent, other, now_ns)
    index.withdraw(chain_of(text), slot, keep)
    assert index.check() == []
    for sent, other in [*before, *since]:
        if (sent, other) != (text, slot):
            assert index.match(chain_of(sent), 1 << other).blocks == len(sent)
    for other in SLOTS:
        if all(sent != text for sent, at in since if at == other):
            assert index.match(chain_of(text), 1 << other).blocks == plain.depth(text, other)


changes = st.tuples(
    st.sampled_from(["insert", "insert", "spare", "release", "retract", "withdraw", "expire", "match"]),
    strange_chains,
    st.integers(0, 3),
)


@given(st.lists(changes, max_size=40))
def test_chains_that_no_prompt_can_have_do_no_harm(steps: list[tuple[str, bytes, int]]) -> None:
    """Hashes that repeat, or that follow different prefixes: chains sent by a peer must not crash a gateway."""
    index = PrefixIndex(3000, TTL_NS)
    for now_ns, (what, chain, slot) in enumerate(steps):
        match what:
            case "insert":
                index.insert(chain, slot, now_ns)
            case "spare":
                index.spare(chain, slot)
            case "release":
                index.release(chain, slot, slot)
            case "expire":
                index.expire(now_ns)
            case "retract":
                index.retract(chain, slot, slot)
            case "withdraw":
                index.withdraw(chain, slot, slot)
            case _:
                assert index.match(chain, 1 << slot).mask in (0, 1 << slot)
        assert index.check() == []


hinted_changes = st.tuples(
    st.sampled_from(
        ["insert", "insert", "insert", "spare", "spare", "release", "retract", "bound", "expire", "remove"]
    ),
    texts,
    st.sampled_from(SLOTS),
)


@given(st.lists(hinted_changes, max_size=60), st.sampled_from([1500, 3000, 6000]))
def test_no_hint_breaks_the_books_or_the_bound(steps: list[tuple[str, Text, int]], bytes_max: int) -> None:
    index = PrefixIndex(bytes_max, TTL_NS)
    for now_ns, (what, text, slot) in enumerate(steps):
        chain = chain_of(text)
        match what:
            case "insert":
                index.insert(chain, slot, now_ns)
            case "spare":
                index.insert(chain, slot, now_ns)
                index.spare(chain, slot)
            case "release":
                index.release(chain, slot, len(text) // 3)
            case "retract":
                index.retract(chain, slot, len(text) // 2)
            case "bound":
                index.bound(slot, len(text))
            case "expire":
                index.expire(now_ns)
            case _:
                index.remove_target(slot)
        assert index.check() == []
        assert index.size_bytes <= bytes_max
