"""Messages between a gateway's process, the predecessor, and the successor that takes its place, in this order:

successor                       predecessor
TakeoverHello               →
                            ←   TakeoverOffer, with its listening sockets, or TakeoverRefused
TakeoverReady, once loaded →
                            ←   Released: the predecessor has stopped writing and accepting
Serving                     →
                            ←   UsageMessage, Audited, Left: about the requests that still run at the predecessor
                            ←   Done
"""

from __future__ import annotations

import msgspec

VERSION = 1
"""Version of these messages. A process of another version is refused."""
MESSAGE_BYTES_MAX = 16 << 20


class TakeoverHello(msgspec.Struct, frozen=True, tag="hello"):
    version: int
    gateway: str


class TakeoverRefused(msgspec.Struct, frozen=True, tag="refused"):
    """Refusal; the state of its sender has not changed."""

    reason: str


class Passed(msgspec.Struct, frozen=True):
    """Description of a listening socket that is passed along."""

    role: str
    asked: str
    """The address as the predecessor's region file has it."""


class TakeoverOffer(msgspec.Struct, frozen=True, tag="offer"):
    sockets: list[Passed]
    """Descriptions of the sockets, in the order in which they are passed."""
    peers: tuple[str, str]
    """Address on which the predecessor listens for other gateways: as the region file has it, and with the port that
    the system chose."""


class TakeoverReady(msgspec.Struct, frozen=True, tag="ready"):
    audit: str
    """Folder of the audit chain that the successor would continue; empty where it keeps none. The predecessor continues
    its own chain to its end where that lies in another folder."""


class AccountMessage(msgspec.Struct, frozen=True, array_like=True):
    kind: str
    name: str
    set_aside: int
    """Tokens of a budget that are held by requests still running at the predecessor."""


class Released(msgspec.Struct, frozen=True, tag="released"):
    accounts: list[AccountMessage]


class Serving(msgspec.Struct, frozen=True, tag="serving"):
    pass


class UsageRow(msgspec.Struct, frozen=True, array_like=True):
    day: str
    key: str
    tenant: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class UsageMessage(msgspec.Struct, frozen=True, tag="used"):
    """Usage of requests that ended at the predecessor."""

    rows: list[UsageRow]
    """Usage since the last such message."""
    accounts: list[AccountMessage]
    """Tokens of budgets that are held by all requests still running."""


class Audited(msgspec.Struct, frozen=True, tag="audited"):
    lines: list[str]
    """Lines that are not yet in any audit chain."""


class Left(msgspec.Struct, frozen=True, tag="left"):
    requests: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    pass


FromSuccessor = TakeoverHello | TakeoverReady | Serving
FromPredecessor = TakeoverRefused | TakeoverOffer | Released | UsageMessage | Audited | Left | Done
