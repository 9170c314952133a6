"""Is a gateway there? What we saw ourselves and what its peers say, held against each other; it decides nothing else.

Down needs both: our own probes fail several times in a row with no stream open, and no peer whom we hear has heard of
it. A network that fails between us and one gateway is not that gateway's death.

Proof is more than silence: its own host says that nobody listens there, and the connection of a peer whom we hear
broke as well. No fault of our own sight looks like that, so whoever is proven gone does not count among those that may
only be out of our sight, however many there are.
"""

from __future__ import annotations

from collections.abc import Collection

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
        "is_proven_gone",
        "known_since_ns",
        "lost_ns",
        "probe_failures",
        "said_by",
        "up_since_ns",
        "was_refused",
    )

    def __init__(self, now_ns: int) -> None:
        self.condition = Condition.UNKNOWN
        self.connected = False
        self.detail = "not heard of yet"
        self.probe_failures = 0
        self.was_refused = False
        """By its own host, when it was last probed."""
        self.is_proven_gone = False
        """Until it is heard of again."""
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

    def restore_down(self) -> None:
        """It was down when the controller began, and is not one of those that we may only have lost sight of."""
        self.condition = Condition.DOWN
        self.is_proven_gone = True
        self.detail = "it was down when the controller began"

    # What is seen

    def connect(self, now_ns: int) -> None:
        self.connected = True
        self.lost_ns = None
        self.probe_failures = 0  # a stream that opens says more than probes that failed before
        self.is_proven_gone = False
        self._note_answer(now_ns)

    def disconnect(self, detail: str, now_ns: int) -> None:
        if self.connected:
            self.connected = False
            self.lost_ns = now_ns
        self.detail = detail
        self.answers_since_ns = None

    def probe(self, healthy: bool, detail: str, now_ns: int, *, was_refused: bool = False) -> None:
        self.was_refused = was_refused
        if healthy:
            self.probe_failures = 0
            self.is_proven_gone = False
            self._note_answer(now_ns)
        else:
            self.probe_failures += 1
            self.detail = detail
            self.answers_since_ns = None

    def _note_answer(self, now_ns: int) -> None:
        if self.connected and not self.probe_failures and self.answers_since_ns is None:
            self.answers_since_ns = now_ns

    # What follows

    def look_for_proof(self, config: ControllerConfig, witnesses: Collection[GatewayId]) -> None:
        """Is it known to be gone, rather than only not heard? `witnesses` as for `silent_at_ns`."""
        if self.is_proven_gone or self.connected or not self.was_refused:
            return
        if self.probe_failures >= config.probe_failures_min:
            said = [self.said_by[witness] for witness in witnesses if witness in self.said_by]
            self.is_proven_gone = bool(said) and all(each.is_broken for each in said)

    def silent_at_ns(self, config: ControllerConfig, witnesses: Collection[GatewayId]) -> int | None:
        """From when on it is to be called down as things are; None while anything speaks for it. `witnesses` are the
        gateways whose word counts: those that we hear ourselves."""
        if self.connected or self.probe_failures < config.probe_failures_min:
            return None
        assert self.lost_ns is not None, "without a stream it was lost at some time"
        is_unknown = self.condition is Condition.UNKNOWN and not self.is_proven_gone
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
