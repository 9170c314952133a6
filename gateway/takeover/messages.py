"""What a gateway's process and the one that takes its place say to each other, and in which order.

successor                     predecessor
Hello                     →
                          ←   Offer, with its listening sockets, or Refused
Ready, once all is loaded →
                          ←   Released: nothing is written and nothing accepted there any more
Serving                   →
                          ←   Used, Audited, Left: what the requests that still run there come to
                          ←   Done
"""

from __future__ import annotations

import msgspec

VERSION = 1
"""Of these messages. A process of another version is refused."""
MESSAGE_BYTES_MAX = 16 << 20


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    version: int
    gateway: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Nothing has changed for whoever says so."""

    reason: str


class Passed(msgspec.Struct, frozen=True):
    """A listening socket that comes along."""

    role: str
    asked: str
    """The address as the predecessor's region file has it."""


class Offer(msgspec.Struct, frozen=True, tag="offer"):
    sockets: list[Passed]
    """In the order in which they come along."""
    peers: tuple[str, str]
    """Where other gateways are listened to: as the region file has it, and with the port that the system chose."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    audit: str
    """The folder of the chain that the successor would continue; empty where it keeps none. With another one than its
    own, the predecessor keeps its chain to its end."""


class Account(msgspec.Struct, frozen=True, array_like=True):
    kind: str
    name: str
    set_aside: int
    """Tokens of a budget that requests hold which still run at the predecessor."""


class Released(msgspec.Struct, frozen=True, tag="released"):
    accounts: list[Account]


class Serving(msgspec.Struct, frozen=True, tag="serving"):
    pass


class Row(msgspec.Struct, frozen=True, array_like=True):
    day: str
    key: str
    tenant: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Used(msgspec.Struct, frozen=True, tag="used"):
    """Requests ended at the predecessor."""

    rows: list[Row]
    """What they used since it was last said."""
    accounts: list[Account]
    """All that those hold which still run."""


class Audited(msgspec.Struct, frozen=True, tag="audited"):
    lines: list[str]
    """Not yet in any chain."""


class Left(msgspec.Struct, frozen=True, tag="left"):
    requests: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    pass


FromSuccessor = Hello | Ready | Serving
FromPredecessor = Refused | Offer | Released | Used | Audited | Left | Done
