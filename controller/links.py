"""What is known of each gateway's stream: for whoever shows it. It opens and closes nothing by itself."""

from __future__ import annotations

import asyncio
from collections import deque

from gateway.core.vocabulary import ControlVersion, GatewayId
from gateway.ground.control.vocabulary import ForwardsTo, GatewayLoad, Hello, Question, Rejected

ASKED_MAX = 8


class Link:
    """One open stream."""

    def __init__(self, hello: Hello, now_ns: int) -> None:
        self.hello = hello
        """With what it has said since."""
        self.since_ns = now_ns
        self.heard_ns = now_ns
        self.report_ns: int | None = None
        """When it last said whom it hears."""
        self.open_requests = 0
        self.load: GatewayLoad | None = None
        """As it said last; None: it never did."""
        self.forwards: tuple[ForwardsTo, ...] = ()
        self.is_registered = False
        self.pushed: ControlVersion | None = None
        self.taken = hello.taken
        self.rejected: Rejected | None = None
        """The last snapshot, if it was that one that was rejected."""
        self.asked: deque[Question] = deque(maxlen=ASKED_MAX)
        """Questions that are not out yet; of too many, the newest."""
        self.asked_more = asyncio.Event()
        self.writing = asyncio.Lock()
        """A stream takes one message at a time."""
        self.news = asyncio.Event()
        """It says something of itself that is not written down yet."""
        self.news.set()
        self.replaced = asyncio.Event()

    def ask(self, question: Question) -> None:
        self.asked.append(question)
        self.asked_more.set()

    @property
    def gateway_id(self) -> GatewayId:
        return self.hello.gateway_id


class Links:
    """One stream a gateway: whoever comes later is the one."""

    def __init__(self) -> None:
        self._links: dict[GatewayId, Link] = {}

    def __len__(self) -> int:
        return len(self._links)

    def __contains__(self, gateway_id: GatewayId) -> bool:
        return gateway_id in self._links

    def get(self, gateway_id: GatewayId) -> Link | None:
        return self._links.get(gateway_id)

    def all(self) -> list[Link]:
        return list(self._links.values())

    def put(self, link: Link) -> None:
        older = self._links.get(link.gateway_id)
        if older is not None:
            older.replaced.set()
        self._links[link.gateway_id] = link

    def drop(self, link: Link) -> bool:
        """False where a newer one has taken its place."""
        if self._links.get(link.gateway_id) is not link:
            return False
        del self._links[link.gateway_id]
        return True
