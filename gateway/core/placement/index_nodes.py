"""Nodes of the prefix index's tree, with their children in a linked list."""

from __future__ import annotations

from collections.abc import Iterator


class IndexNode:
    """Run of blocks without a branch. The root's label is empty, and it is its own parent."""

    __slots__ = ("first_child", "label", "mask", "next_sibling", "parent", "position", "previous_sibling")

    def __init__(self, label: bytes, parent: IndexNode | None, mask: int, position: int) -> None:
        self.label = label
        self.position = position
        """Bytes of hashes on the path above the label."""
        self.parent: IndexNode = parent or self
        self.mask = mask
        self.first_child: IndexNode | None = None
        self.next_sibling: IndexNode | None = None
        self.previous_sibling: IndexNode | None = None

    def children(self) -> Iterator[IndexNode]:
        child = self.first_child
        while child is not None:
            yield child
            child = child.next_sibling

    def adopt(self, child: IndexNode) -> None:
        child.parent = self
        child.previous_sibling = None
        child.next_sibling = self.first_child
        if self.first_child is not None:
            self.first_child.previous_sibling = child
        self.first_child = child

    def release(self, child: IndexNode) -> None:
        if child.previous_sibling is not None:
            child.previous_sibling.next_sibling = child.next_sibling
        else:
            self.first_child = child.next_sibling
        if child.next_sibling is not None:
            child.next_sibling.previous_sibling = child.previous_sibling
