"""Prefix index: remembers which target has seen which prompt prefix (SkyWalker §3.2), within a fixed number of bytes.

It holds hashes and slots, never text, and never more than it was allowed: the earliest refreshed records go first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace

from gateway.core.placement.index_nodes import IndexNode
from gateway.core.placement.index_sizes import (
    EMPTY_BOOKS_BYTES,
    EMPTY_SPARED_BYTES,
    END_BYTES,
    NODE_BYTES,
    SHORT_INT_BITS,
    SUPPORT_BYTES,
    books_bytes,
    common_bytes,
    even_blocks_in,
    mask_bytes,
)
from gateway.core.vocabulary import PREFIX_HASH_BYTES


class Match:
    """Targets that know the longest part of a prompt, and the number of its blocks that they know."""

    __slots__ = ("blocks", "mask")

    def __init__(self, blocks: int, mask: int) -> None:
        self.blocks = blocks
        self.mask = mask


_NO_MATCH = Match(0, 0)
_SPARED_PART = 8
"""Part of a slot's chains that may be spared at once: one in so many."""


@dataclass(slots=True, eq=False)
class _Books:
    """Bookkeeping of one slot: its chains and what supports its records."""

    bit: int
    """Int shared by every node with no other slot: at slot 4,000 an int takes 560 bytes."""
    ends: OrderedDict[IndexNode, int]
    """Nodes at which chains sent to the slot ended, with the time of the last sending; the earliest first."""
    spare_supports: dict[IndexNode, int]
    """Number of supports of a node's record beyond the one that every record has."""
    even_blocks: int = 0
    """Text recorded for the slot, in blocks of equal size: a growing block counts as several."""

    @property
    def earliest_ns(self) -> int:
        return next(iter(self.ends.values()))

    @property
    def latest_ns(self) -> int:
        return next(reversed(self.ends.values()))


class PrefixIndex:
    """Compressed radix tree over packed prefix chains; each node holds the slots of the targets that know its blocks.

    A record is one slot at one node. It stays while something supports it: a chain that ended there, or the same slot's
    record at a child. So a child's slots are always a subset of its parent's, a record is as fresh as the freshest
    chain through it, and neither refreshing a path nor splitting a node has to visit the records concerned.

    Hash i of a chain stands for all blocks up to i, so one table finds the child for any hash. Chains come from other
    gateways too: one in which a hash turns up where it cannot be is indexed up to that point.
    """

    def __init__(self, bytes_max: int, ttl_ns: int) -> None:
        self._bytes_max = bytes_max
        self._ttl_ns = ttl_ns
        self._root = IndexNode(b"", None, 0, 0)
        self._nodes: dict[bytes, IndexNode] = {}
        """Nodes by the first hash of their labels."""
        self._books: dict[int, _Books] = {}
        self._spared: dict[int, OrderedDict[IndexNode, None]] = {}
        """Nodes whose records are kept once when they would be evicted, by the bit of their slot; the earliest spared
        first."""
        self._queue: list[tuple[int, int]] = []
        """Heap with one (time, slot) per book, the time never later than the slot's earliest end."""
        self._bytes = 0
        self._blocks = 0
        self._records = 0
        self._now_ns = 0

    @property
    def size_bytes(self) -> int:
        """Memory in use, estimated by `index_sizes`."""
        return self._bytes

    @property
    def blocks(self) -> int:
        return self._blocks

    @property
    def records(self) -> int:
        return self._records

    @property
    def nodes(self) -> int:
        return len(self._nodes)

    def match(self, chain: bytes, available: int) -> Match:
        """Longest prefix of the chain known for any available slot, and all available slots that know it."""
        nodes = self._nodes
        position, length, mask = 0, len(chain), 0
        while position < length:
            child = nodes.get(chain[position : position + PREFIX_HASH_BYTES])
            if child is None:
                break
            known = child.mask & available
            if not known:
                break
            mask = known
            label = child.label
            if not chain.startswith(label, position):
                position += common_bytes(label, chain, position)
                break
            position += len(label)
        return Match(position // PREFIX_HASH_BYTES, mask) if mask else _NO_MATCH

    def insert(self, chain: bytes, slot: int, now_ns: int) -> None:
        """Record the slot all along the chain, with the present time. A chain that could never fit is not recorded."""
        assert len(chain) % PREFIX_HASH_BYTES == 0, "a chain is whole hashes"
        assert now_ns >= self._now_ns, "time went backwards"
        self._now_ns = now_ns
        room = self._bytes_max - NODE_BYTES - END_BYTES - len(chain)
        if room < EMPTY_BOOKS_BYTES + slot and room < books_bytes(slot):
            return
        node = self._grow(chain)
        if node is not self._root:
            self._mark_end(self._open_books(slot, now_ns), node, now_ns)
            if self._bytes > self._bytes_max:
                self._evict()

    def spare(self, chain: bytes, slot: int) -> None:
        """Keep the slot's records along an inserted chain once when they would be evicted for want of room, as though
        it were sent again then. At most an eighth of the slot's chains, the latest, are spared at once."""
        books, end = self._books.get(slot), self._end_of(chain)
        if books is None or end is None or end not in books.ends:
            return
        spared = self._spared.get(books.bit)
        if spared is None:
            spared = self._spared[books.bit] = OrderedDict()
            self._bytes += EMPTY_SPARED_BYTES
        if end not in spared:
            spared[end] = None
            self._bytes += END_BYTES
        spared.move_to_end(end)
        while len(spared) > max(1, len(books.ends) // _SPARED_PART):
            self._end_sparing(books, next(iter(spared)))
        self._evict()

    def release(self, chain: bytes, slot: int, keep_blocks: int) -> None:
        """Let the slot's records along a chain be evicted before all others of the slot, except those that another
        chain supports and the first blocks. `keep_blocks`: the blocks of the chain that were recorded before it was
        inserted, which others may have sent."""
        if (added := self._added(chain, slot, keep_blocks)) is None:
            return
        books, end = added
        books.ends[end] = books.earliest_ns
        books.ends.move_to_end(end, last=False)
        self._evict()

    def retract(self, chain: bytes, slot: int, keep_blocks: int) -> None:
        """Remove a slot's records from the chain's path and from all below it, beyond the first `keep_blocks`.

        The blocks kept stay as fresh as the freshest chain of the slot.
        """
        books = self._books.get(slot)
        if books is None:
            return
        top = self._first_beyond(chain, keep_blocks * PREFIX_HASH_BYTES, books.bit)
        if top is None:
            return
        parent = top.parent
        if parent is not self._root:
            self._mark_end(books, parent, books.latest_ns)
        self._strip(books, top)
        self._withdraw_support(books, parent)
        self._evict()

    def withdraw(self, chain: bytes, slot: int, keep_blocks: int) -> None:
        """Undo an insertion: remove the slot's records along the chain, except those that another chain supports and
        the first blocks. `keep_blocks`: the blocks of the chain that were recorded before the insertion."""
        if (added := self._added(chain, slot, keep_blocks)) is None:
            return
        books, end = added
        del books.ends[end]
        self._bytes -= END_BYTES
        self._withdraw_support(books, end)
        self._evict()

    def _added(self, chain: bytes, slot: int, keep_blocks: int) -> tuple[_Books, IndexNode] | None:
        """Books of the slot and end of a chain, once the blocks before it have an end of their own; None if it added
        nothing to them."""
        books, end = self._books.get(slot), self._end_of(chain)
        if books is None or end is None or end not in books.ends:
            return None
        if (top := self._first_beyond(chain, keep_blocks * PREFIX_HASH_BYTES, books.bit)) is None:
            return None
        if top.parent is not self._root:
            self._mark_end(books, top.parent, books.latest_ns)
        return books, end

    def remove_target(self, slot: int) -> None:
        """Forget everything about a slot, at a cost in proportion to its own records."""
        books = self._books.get(slot)
        if books is None:
            return
        while books.ends:
            self._drop_earliest(books)
        books.ends.clear()
        books.spare_supports.clear()

    def expire(self, now_ns: int) -> None:
        """Drop the records that no chain refreshed for longer than the time to live."""
        assert now_ns >= self._now_ns, "time went backwards"
        self._now_ns = now_ns
        while (books := self._stalest()) is not None and now_ns - books.earliest_ns > self._ttl_ns:
            self._drop_earliest(books)

    def bound(self, slot: int, even_blocks_max: int) -> None:
        """Forget a slot's earliest chains until at most this much text is recorded for it, in blocks of equal size, but
        never its last chain."""
        books = self._books.get(slot)
        while books is not None and books.even_blocks > even_blocks_max and len(books.ends) > 1:
            self._drop_earliest(books)

    def even_blocks_of(self, slot: int) -> int:
        """Text recorded for a slot, in blocks of equal size."""
        books = self._books.get(slot)
        return 0 if books is None else books.even_blocks

    def earliest_ns(self, slot: int) -> int | None:
        """Time at which the least recently sent of a slot's chains was sent last."""
        books = self._books.get(slot)
        return books.earliest_ns if books is not None and books.ends else None

    def last_sent_ns(self, chain: bytes, slot: int) -> int | None:
        """Time at which the longest beginning of the chain that was sent to the slot by itself was sent last."""
        books = self._books.get(slot)
        if books is None:
            return None
        position, last_ns = 0, None
        while position < len(chain):
            child = self._nodes.get(chain[position : position + PREFIX_HASH_BYTES])
            if child is None or not child.mask & books.bit:
                break
            if not chain.startswith(child.label, position):
                break
            last_ns = books.ends.get(child, last_ns)
            position += len(child.label)
        return last_ns

    def check(self) -> list[str]:
        """Broken invariants, for tests; takes time in proportion to the whole index."""
        return [*self._check_tree(), *self._check_books(), *self._check_sums()]

    # Tree

    def _grow(self, chain: bytes) -> IndexNode:
        """Node at which the chain ends, made by splitting and adding where there is none."""
        node, position = self._root, 0
        while position < len(chain):
            child = self._nodes.get(chain[position : position + PREFIX_HASH_BYTES])
            if child is None:
                return self._add_leaf(node, chain[position:], position)
            if child.parent is not node:
                return node
            if chain.startswith(child.label, position):
                node = child
            else:
                upper = self._split(child, common_bytes(child.label, chain, position))
                if upper is None:
                    return node
                node = upper
            position += len(node.label)
        return node

    def _end_of(self, chain: bytes) -> IndexNode | None:
        """Node at which the chain ends; None where it ends inside a label or outside the tree."""
        node, position = self._root, 0
        while position < len(chain):
            child = self._nodes.get(chain[position : position + PREFIX_HASH_BYTES])
            if child is None or child.parent is not node or not chain.startswith(child.label, position):
                return None
            node, position = child, position + len(child.label)
        return node

    def _add_leaf(self, parent: IndexNode, label: bytes, position: int) -> IndexNode:
        leaf = IndexNode(label, parent, 0, position)
        parent.adopt(leaf)
        self._nodes[label[:PREFIX_HASH_BYTES]] = leaf
        self._bytes += NODE_BYTES + len(label)
        self._blocks += len(label) // PREFIX_HASH_BYTES
        return leaf

    def _split(self, lower: IndexNode, at: int) -> IndexNode | None:
        """Move the first bytes of a label to a new node above; None if the rest begins with a hash known elsewhere.

        The records stay with the lower node, and each supports its new twin above. Other nodes and the books do not
        change.
        """
        label = lower.label
        key = label[at : at + PREFIX_HASH_BYTES]
        if key in self._nodes:
            return None
        parent = lower.parent
        upper = IndexNode(label[:at], parent, lower.mask, lower.position)
        parent.release(lower)
        parent.adopt(upper)
        upper.adopt(lower)
        lower.label = label[at:]
        lower.position += at
        self._nodes[label[:PREFIX_HASH_BYTES]] = upper
        self._nodes[key] = lower
        self._bytes += NODE_BYTES + mask_bytes(upper.mask)
        self._records += upper.mask.bit_count()
        return upper

    def _remove_leaf(self, leaf: IndexNode) -> None:
        leaf.parent.release(leaf)
        del self._nodes[leaf.label[:PREFIX_HASH_BYTES]]
        self._bytes -= NODE_BYTES + len(leaf.label)
        self._blocks -= len(leaf.label) // PREFIX_HASH_BYTES

    def _first_beyond(self, chain: bytes, keep: int, bit: int) -> IndexNode | None:
        """First of the slot's nodes on the chain's path from byte `keep` on; a node across that border is split."""
        node, position = self._root, 0
        while position < len(chain):
            child = self._nodes.get(chain[position : position + PREFIX_HASH_BYTES])
            if child is None or child.parent is not node or not child.mask & bit:
                return None
            if position >= keep:
                return child
            is_whole = chain.startswith(child.label, position)
            position_after = position + (len(child.label) if is_whole else common_bytes(child.label, chain, position))
            if position_after > keep:
                return child if self._split(child, keep - position) else None
            if not is_whole:
                return None
            node, position = child, position_after
        return None

    # Records and their supports

    def _mark_end(self, books: _Books, node: IndexNode, time_ns: int) -> None:
        """Note that a chain ended at this node, at a time no earlier than any other end of the slot."""
        ends = books.ends
        if node in ends:
            ends[node] = time_ns
            ends.move_to_end(node)
        else:
            ends[node] = time_ns
            self._bytes += END_BYTES
            self._support(books, node)

    def _support(self, books: _Books, node: IndexNode) -> None:
        """Support a record at a node; a record that is new supports one at the parent.

        An ancestor's end that meets this newer support is replaced by it: a conversation that went on keeps one end.
        """
        if node.mask & books.bit:
            self._add_spare(books, node)
            return
        while node is not self._root and not node.mask & books.bit:
            self._add_record(books, node)
            node = node.parent
        if books.ends.pop(node, None) is not None:
            self._bytes -= END_BYTES
        elif node is not self._root:
            self._add_spare(books, node)

    def _withdraw_support(self, books: _Books, node: IndexNode, enough_bytes: int = -1) -> IndexNode | None:
        """Take one support from a record; a record left without any is removed, which takes one from its parent's.

        With `enough_bytes` it stops early: at a spared record, which from now on counts as sent again, or when no more
        than that are in use, and then returns the node whose record lacks support.
        """
        while node is not self._root:
            if node in books.spare_supports:
                self._remove_spare(books, node)
                return None
            if self._bytes <= enough_bytes:
                return node
            if enough_bytes >= 0 and self._spared and self._end_sparing(books, node):
                books.ends[node] = max(self._now_ns, books.latest_ns) if books.ends else self._now_ns
                self._bytes += END_BYTES
                return None
            parent = node.parent
            self._remove_record(books, node)
            node = parent
        return None

    def _strip(self, books: _Books, top: IndexNode) -> None:
        """Remove the slot's records from a node and all below it. The caller takes away the support that they gave
        above."""
        found = [top]
        for node in found:
            found.extend(child for child in node.children() if child.mask & books.bit)
        for node in reversed(found):
            if books.ends.pop(node, None) is not None:
                self._bytes -= END_BYTES
            if books.spare_supports.pop(node, None) is not None:
                self._bytes -= SUPPORT_BYTES
            self._remove_record(books, node)

    def _add_record(self, books: _Books, node: IndexNode) -> None:
        books.even_blocks += even_blocks_in(node.position, len(node.label))
        mask = node.mask
        node.mask = mask | books.bit if mask else books.bit
        self._bytes += mask_bytes(node.mask) - mask_bytes(mask)
        self._records += 1

    def _remove_record(self, books: _Books, node: IndexNode) -> None:
        books.even_blocks -= even_blocks_in(node.position, len(node.label))
        self._records -= 1
        if self._spared:
            self._end_sparing(books, node)
        mask = node.mask ^ books.bit
        if not mask:
            self._remove_leaf(node)
            return
        self._bytes += mask_bytes(mask) - mask_bytes(node.mask)
        node.mask = mask if mask & (mask - 1) else self._books[mask.bit_length() - 1].bit

    def _add_spare(self, books: _Books, node: IndexNode) -> None:
        spare = books.spare_supports.get(node, 0)
        books.spare_supports[node] = spare + 1
        if not spare:
            self._bytes += SUPPORT_BYTES

    def _remove_spare(self, books: _Books, node: IndexNode) -> None:
        books.spare_supports[node] -= 1
        if not books.spare_supports[node]:
            del books.spare_supports[node]
            self._bytes -= SUPPORT_BYTES

    def _end_sparing(self, books: _Books, node: IndexNode) -> bool:
        """Spare the slot's record at a node no longer; false if it was not spared."""
        spared = self._spared.get(books.bit)
        if spared is None or node not in spared:
            return False
        del spared[node]
        self._bytes -= END_BYTES
        if not spared:
            del self._spared[books.bit]
            self._bytes -= EMPTY_SPARED_BYTES
        return True

    # Eviction order

    def _open_books(self, slot: int, now_ns: int) -> _Books:
        books = self._books.get(slot)
        if books is None:
            books = self._books[slot] = _Books(1 << slot, OrderedDict(), {})
            heappush(self._queue, (now_ns, slot))
            self._bytes += books_bytes(slot)
        return books

    def _stalest(self) -> _Books | None:
        """Books with the earliest end of all. Drops empty books on the way, and puts refreshed ones in order."""
        queue = self._queue
        while queue:
            time_ns, slot = queue[0]
            books = self._books[slot]
            if not books.ends:
                heappop(queue)
                del self._books[slot]
                self._bytes -= books_bytes(slot)
            elif books.earliest_ns == time_ns:
                return books
            else:
                heapreplace(queue, (books.earliest_ns, slot))
        return None

    def _evict(self) -> None:
        """Remove the earliest refreshed records, the deepest first, until the rest fits."""
        while self._bytes > self._bytes_max and (books := self._stalest()) is not None:
            node, time_ns = books.ends.popitem(last=False)
            self._bytes -= END_BYTES
            left = self._withdraw_support(books, node, self._bytes_max - END_BYTES)
            if left is not None:
                books.ends[left] = time_ns
                books.ends.move_to_end(left, last=False)
                self._bytes += END_BYTES

    def _drop_earliest(self, books: _Books) -> None:
        node, _ = books.ends.popitem(last=False)
        self._bytes -= END_BYTES
        self._withdraw_support(books, node)

    # Invariants

    def _check_tree(self) -> Iterator[str]:
        for key, node in self._nodes.items():
            name = key.hex()
            if not node.label.startswith(key) or len(node.label) % PREFIX_HASH_BYTES:
                yield f"node {name} has label {node.label.hex()}"
            if not any(child is node for child in node.parent.children()):
                yield f"node {name} is not among its parent's children"
            if node.parent is not self._root:
                yield from self._check_parent(name, node.parent, node.mask)
            if not node.mask or node.mask & ~sum(1 << slot for slot in self._books):
                yield f"node {name} has no slot, or one without books"
            for slot, books in self._books.items():
                if node.mask & books.bit:
                    yield from self._check_record(name, node, slot, books)

    def _check_parent(self, name: str, parent: IndexNode, mask: int) -> Iterator[str]:
        if self._nodes.get(parent.label[:PREFIX_HASH_BYTES]) is not parent:
            yield f"node {name} hangs below a node that is gone"
        if mask & ~parent.mask:
            yield f"node {name} has slots that its parent lacks"

    def _check_record(self, name: str, node: IndexNode, slot: int, books: _Books) -> Iterator[str]:
        supports = (node in books.ends) + sum(1 for child in node.children() if child.mask & books.bit)
        if supports != 1 + books.spare_supports.get(node, 0):
            yield f"slot {slot} at node {name} has {supports} supports, and its books say otherwise"
        if slot >= SHORT_INT_BITS and node.mask == books.bit and node.mask is not books.bit:
            yield f"node {name} has an int of its own for slot {slot}"

    def _check_books(self) -> Iterator[str]:
        queued = {slot: time_ns for time_ns, slot in self._queue}
        if len(self._queue) != len(queued) or queued.keys() != self._books.keys():
            yield "not every slot is queued once"
        for slot, books in self._books.items():
            times = list(books.ends.values())
            if times != sorted(times):
                yield f"the ends of slot {slot} are out of order"
            if times and queued[slot] > times[0]:
                yield f"slot {slot} is queued after its earliest end"
            spared = self._spared.get(books.bit, OrderedDict())
            if spared and len(spared) > max(1, len(books.ends)):
                yield f"slot {slot} has more spared chains than chains"
            for node in (*books.ends, *books.spare_supports, *spared):
                if self._nodes.get(node.label[:PREFIX_HASH_BYTES]) is not node or not node.mask & books.bit:
                    yield f"the books of slot {slot} hold a node without its record"

    def _check_sums(self) -> Iterator[str]:
        nodes = self._nodes.values()
        size = sum(NODE_BYTES + len(node.label) + mask_bytes(node.mask) for node in nodes)
        for slot, books in self._books.items():
            size += books_bytes(slot) + END_BYTES * len(books.ends) + SUPPORT_BYTES * len(books.spare_supports)
        size += sum(EMPTY_SPARED_BYTES + END_BYTES * len(spared) for spared in self._spared.values())
        found = (size, sum(len(node.label) for node in nodes), sum(node.mask.bit_count() for node in nodes))
        counted = (self._bytes, self._blocks * PREFIX_HASH_BYTES, self._records)
        if counted != found:
            yield f"bytes, bytes of labels and records counted: {counted}, found: {found}"
        if size > self._bytes_max:
            yield f"{size} bytes in use, {self._bytes_max} allowed"
