"""Health of one gateway: the controller's own probes weighed against the reports of the gateway's peers. The module
decides nothing else.

A gateway is down only if both agree: several probes in a row fail with no stream open, and no connected peer has heard
from it, as reports say that are newer than the silence. A network fault between the controller and one gateway does not
make that gateway down. A gateway that this controller has not heard from is given time to connect once any other has,
unless most others have heard it and do so no more.

Proof is stronger than silence: the gateway's host refuses connections, and most connected peers that report on the
gateway have lost their connection to it. No fault of the controller's own network looks like that, so that gateways
proven gone do not count towards a freeze, however many there are, and no single peer speaks for one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from controller.core.config import ControllerConfig
from controller.core.vocabulary import Condition, HeardPeer
from gateway.core.vocabulary import GatewayId

_REPORTLESS_NS = 10_000_000_000
"""Time after its last report for which a witness may still hear a gateway: longer than a stream may be silent, so that
a witness that is cut off from the controller is none any more by then."""


class GatewayHealth:
    """Observations of one gateway, and the conclusions drawn from them."""

    __slots__ = (
        "answers_since_ns",
        "condition",
        "connected",
        "detail",
        "falls",
        "has_answered",
        "is_proven_gone",
        "known_since_ns",
        "lost_ns",
        "probe_failures",
        "said_by",
        "up_since_ns",
        "was_gone",
        "was_refused",
    )

    def __init__(self, now_ns: int) -> None:
        self.condition = Condition.UNKNOWN
        self.connected = False
        self.detail = "not heard of yet"
        self.probe_failures = 0
        self.has_answered = False
        """The gateway has answered a probe since it opened its stream, or the last one before."""
        self.was_refused = False
        """The gateway's host refused the last probe."""
        self.is_proven_gone = False
        """The gateway is known to be gone rather than merely silent; cleared when it answers."""
        self.was_gone = False
        """A probe was refused since the gateway was last up and answered one: its process has ended, and another one
        comes back."""
        self.known_since_ns = now_ns
        self.lost_ns: int | None = now_ns
        """Time at which the stream was last lost, at first the time of registration; None while the stream is open."""
        self.answers_since_ns: int | None = None
        """Time since which stream and probes have both been healthy; None while one is not."""
        self.up_since_ns: int | None = None
        self.falls = 0
        """Times the gateway went down without a steady period in between; at most 32."""
        self.said_by: dict[GatewayId, HeardPeer] = {}
        """Last word of each peer on this gateway."""

    def restore_down(self) -> None:
        """Mark the gateway as down since before the controller began, once, and as proven gone: it does not count
        towards a freeze."""
        self.condition = Condition.DOWN
        self.falls = 1
        self.is_proven_gone = self.was_gone = True
        self.detail = "it was down when the controller began"

    # Observations

    def connect(self, now_ns: int) -> None:
        if self.connected:  # another process may have opened it
            self.has_answered = False
        self.connected = True
        self.lost_ns = None
        self.probe_failures = 0  # an open stream outweighs the probes that failed before it
        self.is_proven_gone = False
        self._note_answer(now_ns)

    def disconnect(self, detail: str, now_ns: int) -> None:
        if self.connected:
            self.connected = False
            self.lost_ns = now_ns
        self.detail = detail
        self.has_answered = False  # another process may come back
        self.answers_since_ns = None

    def probe(self, healthy: bool, detail: str, now_ns: int, *, was_refused: bool = False) -> None:
        self.was_refused = was_refused
        self.has_answered = healthy or (self.has_answered and self.connected)
        self.was_gone |= was_refused
        if healthy and self.condition is Condition.UP:
            self.was_gone = False
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

    # Conclusions

    def look_for_proof(self, config: ControllerConfig, witnesses: Collection[GatewayId]) -> None:
        """Set `is_proven_gone` if the gateway is known to be gone and not merely silent. `witnesses` as for
        `silent_at_ns`."""
        if self.is_proven_gone or self.connected or not self.was_refused:
            return
        if self.probe_failures >= config.probe_failures_min:
            said = [self.said_by[witness] for witness in witnesses if witness in self.said_by]
            self.is_proven_gone = 2 * sum(each.is_broken for each in said) > len(said)

    def silent_at_ns(
        self, config: ControllerConfig, witnesses: Mapping[GatewayId, int], others: int, heard_since_ns: int | None
    ) -> int | None:
        """Time from which the gateway is to be called down as things stand; None while its stream is open, too few
        probes have failed, or the controller itself may be cut off. `witnesses` are the gateways whose reports count,
        those connected to the controller, each with the time of its last report; `others` is the number of all gateways
        but this one, and `heard_since_ns` the time since which any has been connected, None while none is."""
        if self.connected or self.probe_failures < config.probe_failures_min:
            return None
        assert self.lost_ns is not None, "without a stream it was lost at some time"
        if self.is_proven_gone:
            return self.lost_ns
        said = [(self.said_by[each], told_ns) for each, told_ns in witnesses.items() if each in self.said_by]
        silent_ns = self.lost_ns
        if self.condition is Condition.UNKNOWN and 2 * sum(each.heard_ns is not None for each, _ in said) <= others:
            if others and heard_since_ns is None:
                return None
            silent_ns = max(self.known_since_ns, heard_since_ns or 0) + config.unknown_for_ns
        for each, told_ns in said:
            if not each.is_broken and each.heard_ns is not None:
                quiet_ns = each.heard_ns + config.silence_ns
                may_still_hear = told_ns < quiet_ns
                silent_ns = max(silent_ns, told_ns + _REPORTLESS_NS if may_still_hear else quiet_ns)
        return silent_ns

    def back_at_ns(self, config: ControllerConfig) -> int | None:
        """Time from which the gateway counts as up again as things stand; None while it does not answer. One that was
        merely silent, for the first time, has most likely served its clients all along: it is up as soon as its stream
        is open and it has answered a probe."""
        if self.answers_since_ns is None:
            return None
        is_first_silence = self.falls == 1 and not self.was_gone
        if self.condition is Condition.UNKNOWN or (is_first_silence and self.has_answered):
            return self.answers_since_ns
        wait_ns = min(config.return_after_ns << max(0, self.falls - 1), config.return_after_max_ns)
        return self.answers_since_ns + wait_ns

    def fall(self, now_ns: int, config: ControllerConfig) -> None:
        """Mark the gateway as down."""
        was_steady = self.up_since_ns is not None and now_ns - self.up_since_ns >= config.steady_after_ns
        self.falls = 1 if was_steady else min(self.falls + 1, 32)
        self.up_since_ns = None
        self.condition = Condition.DOWN

    def rise(self, now_ns: int) -> None:
        """Mark the gateway as up."""
        self.was_gone = False
        self.up_since_ns = now_ns
        self.condition = Condition.UP
