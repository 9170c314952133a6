"""State of each gateway's stream, for display. The module opens and closes no stream."""

from __future__ import annotations

import asyncio
from collections import deque

from controller.core.pool_histories import HistoryId
from gateway.core.vocabulary import ControlVersion, GatewayId
from mesh.control.vocabulary import ForwardsTo, GatewayLoad, Hello, Question, SnapshotRejected, WantedReplicas
from mesh.silence import SilenceDetector
from mesh.totals import Totals

ASKED_MAX = 8


class Link:
    """One open stream."""

    def __init__(self, hello: Hello, now_ns: int, silence: SilenceDetector) -> None:
        self.hello = hello
        """Hello of the gateway, updated by what it has announced since."""
        self.since_ns = now_ns
        self.heard_ns = now_ns
        self.silence = silence
        self.next_report_ns = 0
        """Time at which the next report is due at the fastest mean pace that is taken in."""
        self.open_requests = 0
        self.load: GatewayLoad | None = None
        """Load as last reported; None: never reported."""
        self.forwards: tuple[ForwardsTo, ...] = ()
        self.totals: Totals | None = None
        """Counts since the gateway's process started, as last reported; None: never reported."""
        self.wanted: tuple[WantedReplicas, ...] = ()
        """Replicas wanted in its region, as last reported."""
        self.is_registered = False
        self.follows_registered = False
        """True if it replaced a stream, whose end is not told, of a gateway that was registered."""
        self.pushed: ControlVersion | None = None
        self.taken = hello.taken
        self.rejected: SnapshotRejected | None = None
        """Rejection of the last snapshot, if that one was rejected."""
        self.asked: deque[Question] = deque(maxlen=ASKED_MAX)
        """Questions that are not sent yet; of too many, the newest."""
        self.asked_more = asyncio.Event()
        self.writing = asyncio.Lock()
        """Lock of the stream, which takes one message at a time."""
        self.histories: set[HistoryId] = set()
        """Histories of pools that this stream has brought or taken."""
        self.histories_since_ns = now_ns
        """Time from which `histories_heard` counts."""
        self.histories_heard = 0
        self.news = asyncio.Event()
        """Set while the gateway has announced something that is not stored yet."""
        self.news.set()
        self.replaced = asyncio.Event()

    def ask(self, question: Question) -> None:
        self.asked.append(question)
        self.asked_more.set()

    @property
    def gateway_id(self) -> GatewayId:
        return self.hello.gateway_id


class Links:
    """Open streams, one a gateway: a newer stream replaces the older one."""

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
            link.follows_registered = older.is_registered or older.follows_registered
        self._links[link.gateway_id] = link

    def drop(self, link: Link) -> bool:
        """Remove a stream; False where a newer one has replaced it."""
        if self._links.get(link.gateway_id) is not link:
            return False
        del self._links[link.gateway_id]
        return True
