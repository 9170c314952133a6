"""Splits a prefix chain into the names of its blocks."""

from __future__ import annotations

from loadgen.engine.blocks import NAME_BYTES


def names_in(chain: bytes) -> list[bytes]:
    return [chain[start : start + NAME_BYTES] for start in range(0, len(chain), NAME_BYTES)]
