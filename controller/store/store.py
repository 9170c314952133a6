"""Where the controller keeps what it must not forget: named documents that change together or not at all.

One controller at a time may write. Whoever acquired the store later has a higher token, and a write with an older one
is refused by the store itself, however late it comes. A store that several machines share is held for a time, and a
holding has to be renewed: see `controller/store/held.py` for whose clock counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gateway.core.value import value

NAME_BYTES_MAX = 512
DOCUMENT_BYTES_MAX = 4 << 20
CHANGES_MAX = 20_000
"""In one write: every replica of a large fleet may change hands at once."""


class StoreError(Exception):
    """Says in words what is wrong with the store, and where it is."""


class StoreTaken(StoreError):
    """Another controller has it."""


class StoreLost(StoreError):
    """It was ours, and is another controller's now: whatever we still write is refused."""


class StoreUnusable(StoreError):
    """What is there is not a store of ours, or is damaged: nothing in it can be trusted."""


class StoreUnavailable(StoreError):
    """It cannot be read or written at this moment: a full disk, a lost connection. Nothing was changed."""


class StoreUncertain(StoreUnavailable):
    """A write was not answered: nobody knows whether it was done. It may be written again, alone or with more: it is
    done once, or it was done before."""


@value
class Holding:
    """That a store is ours."""

    token: int
    holder: str
    key: str = ""
    """Nobody else's, ever. A database that lost its last writes may give a token twice; never this."""


@value
class Contents:
    """Everything in a store at one moment."""

    revision: int
    """Of the last write; it rises with each."""
    documents: dict[str, bytes]


class Store(Protocol):
    """One store, open. Every method raises StoreError; none waits longer than its deadline."""

    @property
    def lease_ns(self) -> int | None:
        """How long a holding lasts that is not renewed; None: as long as the process that has it."""
        ...

    async def acquire(self, holder: str) -> Holding:
        """Make it ours. Raises StoreTaken, with the name of whoever has it: where holdings end by themselves, it has to
        be asked again and again for that to be seen. `holder` is for people to read."""
        ...

    async def renew(self, holding: Holding) -> None:
        """It lasts anew from when this was called. Raises StoreLost."""
        ...

    async def release(self, holding: Holding) -> None:
        """Let it go. No error if it was lost before."""
        ...

    async def rise(self, holding: Holding, above: int) -> Holding:
        """The same holding with a token above that one, on the disk when this returns: somebody was told more than this
        store knows of, as happens where it was lost or is an old copy. Raises StoreLost."""
        ...

    async def read(self) -> Contents:
        """All of it. Anybody may."""
        ...

    async def write(self, holding: Holding, changes: Mapping[str, bytes | None]) -> int:
        """Put documents, and delete those that are None, all together: on the disk when this returns, or not at all.
        Gives the new revision. Raises StoreLost, and StoreUncertain."""
        ...

    async def close(self) -> None:
        """Let go of files and connections, and of the store if it is still ours."""
        ...


def check_changes(changes: Mapping[str, bytes | None]) -> None:
    """What no store takes. Raises ValueError."""
    if len(changes) > CHANGES_MAX:
        raise ValueError(f"{len(changes)} changes at once, and at most {CHANGES_MAX} are taken")
    for name, document in changes.items():
        if not name or len(name.encode()) > NAME_BYTES_MAX:
            raise ValueError(f"a document's name has 1 to {NAME_BYTES_MAX} bytes, not {len(name.encode())}")
        if document is not None and len(document) > DOCUMENT_BYTES_MAX:
            raise ValueError(f"{name}: {len(document)} bytes, and a document has at most {DOCUMENT_BYTES_MAX}")
