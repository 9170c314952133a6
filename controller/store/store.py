"""The controller's durable store: named documents that change together or not at all.

One controller at a time may write. A later holder has a higher token, and the store itself refuses a write with an
older one, however late it comes. A store that several machines share is held for a limited time, and a holding has to
be renewed: `controller/store/lease_watch.py` says whose clock counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

NAME_BYTES_MAX = 512
DOCUMENT_BYTES_MAX = 4 << 20
CHANGES_MAX = 20_000
"""Changes in one write: every replica of a large fleet may change its owner at once."""


class StoreError(Exception):
    """Says in words which store has a fault, and which."""


class StoreTaken(StoreError):
    """Another controller holds the store."""


class StoreLost(StoreError):
    """Another controller has taken the store over: every further write of this one is refused."""


class StoreUnusable(StoreError):
    """The data found is no Nightside store, or is damaged: none of it can be trusted."""


class StoreUnavailable(StoreError):
    """The store cannot be read or written at this moment: a full disk, a lost connection. Nothing was changed."""


class StoreUncertain(StoreUnavailable):
    """A write was not answered, so that its result is unknown. It may be written again, alone or with more: a second
    write does no harm."""


class StoreHolding(Struct, frozen=True):
    """Proof that a controller holds the store."""

    token: int
    holder: str
    key: str = ""
    """Unique for all time. A database that lost its last writes may give out a token twice, but never a key."""


class Contents(Struct, frozen=True):
    """All documents of a store at one moment."""

    revision: int
    """Revision of the last write; it rises with each."""
    documents: dict[str, bytes]


class Store(Protocol):
    """One open store. Every method raises StoreError; none waits longer than its deadline."""

    @property
    def lease_ns(self) -> int | None:
        """Time that a holding lasts without renewal; None: as long as its process."""
        ...

    async def acquire(self, holder: str) -> StoreHolding:
        """Take the store. Raises StoreTaken, with the holder's name: where holdings end by themselves, it has to be
        called again and again for the end to be seen. `holder` is for people to read."""
        ...

    async def renew(self, holding: StoreHolding) -> None:
        """Prolong the holding, counted from the time of the call. Raises StoreLost."""
        ...

    async def release(self, holding: StoreHolding) -> None:
        """Give up the holding. No error if it was lost before."""
        ...

    async def rise(self, holding: StoreHolding, above: int) -> StoreHolding:
        """Return the same holding with a token above `above`, on the disk when this returns. Needed where gateways were
        told more than the store knows of, as where it was lost or is an old copy. May be called again with the same
        holding where a call was not answered: the token may have risen by that. Raises StoreLost."""
        ...

    async def read(self) -> Contents:
        """Return all documents. Needs no holding."""
        ...

    async def write(self, holding: StoreHolding, changes: Mapping[str, bytes | None]) -> int:
        """Put documents, and delete those that are None, all together: on the disk when this returns, or not at all.
        Returns the new revision. Raises StoreLost, and StoreUncertain."""
        ...

    async def close(self) -> None:
        """Close files and connections, and give up the store if it is still held."""
        ...


def check_changes(changes: Mapping[str, bytes | None]) -> None:
    """Raise ValueError for changes that no store accepts."""
    if len(changes) > CHANGES_MAX:
        raise ValueError(f"{len(changes)} changes at once, and at most {CHANGES_MAX} are taken")
    for name, document in changes.items():
        if not name or len(name.encode()) > NAME_BYTES_MAX:
            raise ValueError(f"a document's name has 1 to {NAME_BYTES_MAX} bytes, not {len(name.encode())}")
        if document is not None and len(document) > DOCUMENT_BYTES_MAX:
            raise ValueError(f"{name}: {len(document)} bytes, and a document has at most {DOCUMENT_BYTES_MAX}")
