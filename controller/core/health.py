"""Is a gateway there? What we saw ourselves and what its peers say, held against each other; it decides nothing else.

Down needs both: our own probes fail several times in a row with no stream open, and no peer whom we hear has heard of
it. A network that fails between us and one gateway is not that gateway's death.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.core.config import ControllerConfig
from controller.core.vocabulary import Condition, HeardPeer
from gateway.core.vocabulary import GatewayId


class GatewayHealth:
    """What is known of one gateway, and what follows from it."""

    __slots__ = (
        "answers_since_ns",
        "condition",
        "connected",
        "detail",
        "falls",
        "known_since_ns",
        "lost_ns",
        "probe_failures",
        "said_by",
        "up_since_ns",
    )

    def __init__(self, now_ns: int) -> None:
        self.condition = Condition.UNKNOWN
        self.connected = False
        self.detail = "not heard of yet"
        self.probe_failures = 0
        self.known_since_ns = now_ns
        self.lost_ns: int | None = now_ns
        """When its stream was last lost; None while it is open."""
        self.answers_since_ns: int | None = None
        """Since when stream and probes both have been well."""
        self.up_since_ns: int | None = None
        self.falls = 0
        """How often it went down without having been steady in between."""
        self.said_by: dict[GatewayId, HeardPeer] = {}
        """Of each peer, what it last said of this one."""

    # What is seen

    def connect(self, now_ns: int) -> None:
        self.connected = True
        self.lost_ns = None
        self.probe_failures = 0  # a stream that opens says more than probes that failed before
        self._note_answer(now_ns)

    def disconnect(self, detail: str, now_ns: int) -> None:
        if self.connected:
            self.connected = False
            self.lost_ns = now_ns
        self.detail = detail
        self.answers_since_ns = None

    def probe(self, healthy: bool, detail: str, now_ns: int) -> None:
        if healthy:
            self.probe_failures = 0
            self._note_answer(now_ns)
        else:
            self.probe_failures += 1
            self.detail = detail
            self.answers_since_ns = None

    def _note_answer(self, now_ns: int) -> None:
        if self.connected and not self.probe_failures and self.answers_since_ns is None:
            self.answers_since_ns = now_ns

    # What follows

    def silent_at_ns(self, config: ControllerConfig, witnesses: Iterable[GatewayId]) -> int | None:
        """From when on it is to be called down as things are; None while anything speaks for it. `witnesses` are the
        gateways whose word counts: those that we hear ourselves."""
        if self.connected or self.probe_failures < config.probe_failures_min:
            return None
        assert self.lost_ns is not None, "without a stream it was lost at some time"
        is_unknown = self.condition is Condition.UNKNOWN
        silent_ns = self.known_since_ns + config.unknown_for_ns if is_unknown else self.lost_ns
        for witness in witnesses:
            said = self.said_by.get(witness)
            if said is not None and not said.is_broken and said.heard_ns is not None:
                silent_ns = max(silent_ns, said.heard_ns + config.silence_ns)
        return silent_ns

    def back_at_ns(self, config: ControllerConfig) -> int | None:
        """From when on it counts as up again, as things are."""
        if self.answers_since_ns is None:
            return None
        if self.condition is Condition.UNKNOWN:
            return self.answers_since_ns
        wait_ns = min(config.return_after_ns << max(0, self.falls - 1), config.return_after_max_ns)
        return self.answers_since_ns + wait_ns

    def fall(self, now_ns: int, config: ControllerConfig) -> None:
        """It is down from now on."""
        was_steady = self.up_since_ns is not None and now_ns - self.up_since_ns >= config.steady_after_ns
        self.falls = 1 if was_steady else min(self.falls + 1, 32)
        self.up_since_ns = None
        self.condition = Condition.DOWN

    def rise(self, now_ns: int) -> None:
        """It is up from now on."""
        self.up_since_ns = now_ns
        self.condition = Condition.UP
