"""Network between regions: delay, jitter, loss as retransmission, slow connections, and cuts in one or both directions.

A line is one connection. It keeps order and loses nothing while it exists; across a cut it stalls, and breaks at both
ends after a time-out. The content is opaque here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.core.vocabulary import RegionName
from loadgen.simulator.agenda import Action, Agenda
from loadgen.simulator.process import Process

_MILLISECOND_NS = 1_000_000
_RETRANSMIT_MIN_NS = 200 * _MILLISECOND_NS
"""Minimum time that TCP waits for an acknowledgement before it retransmits, as in Linux (RFC 6298 permits less than its
1 s)."""
RETRANSMITS_MAX = 6

OnBreak = Callable[[str], None]
Way = tuple[RegionName, RegionName]


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Settings common to all connections."""

    in_region_ns: int = 500_000
    """Round trip inside a region."""
    jitter_share: float = 0.0
    """Maximum extension of each delay by jitter, as a share of it."""
    loss_share: float = 0.0
    """Share of packets lost; the content of a lost one arrives later, after TCP's retransmission."""
    connection_timeout_ns: int = 20_000 * _MILLISECOND_NS
    """Time after which a line that crosses a cut breaks (the gateways' keep-alive interval and its time-out)."""


def retransmission_ns(losses: int, round_trip_ns: int) -> int:
    """Delay that TCP adds to a segment lost that many times in a row: its time-out doubles with each loss."""
    return ((1 << losses) - 1) * max(_RETRANSMIT_MIN_NS, 3 * round_trip_ns // 2)


class NetworkLine:
    """One connection from a near end that opened it to a far end that serves it."""

    __slots__ = (
        "_far_open",
        "_held",
        "_last_ns",
        "_near_open",
        "_network",
        "_on_far_break",
        "_on_near_break",
        "far",
        "far_process",
        "near",
        "near_process",
    )

    def __init__(
        self, network: Network, near: RegionName, far: RegionName, on_near_break: OnBreak, on_far_break: OnBreak
    ) -> None:
        self._network = network
        self.near = near
        self.far = far
        self._on_near_break = on_near_break
        self._on_far_break = on_far_break
        self._near_open = True
        self._far_open = True
        self.near_process: Process | None = None
        """Process at the near end, where it may stall: what reaches it then waits."""
        self.far_process: Process | None = None
        """Process at the far end, likewise."""
        self._last_ns = [0, 0]
        self._held: list[tuple[bool, Action, tuple[Any, ...]]] = []

    def to_far(self, action: Action, *details: Any) -> None:
        self._network.carry(self, True, self._deliver_far, (action, details))

    def to_near(self, action: Action, *details: Any) -> None:
        self._network.carry(self, False, self._deliver_near, (action, details))

    def finish(self) -> None:
        """Close the line at both ends, as all messages have been exchanged."""
        self._near_open = self._far_open = False
        self._forget_if_over()

    def close_near(self, detail: str) -> None:
        """Close the near end; the far end is told, after the messages sent before."""
        if self._near_open:
            self._near_open = False
            self._network.carry(self, True, self._break_far, (detail,))

    def close_far(self, detail: str) -> None:
        """Close the far end, or refuse the connection; the near end is told, after the messages sent before."""
        if self._far_open:
            self._far_open = False
            self._network.carry(self, False, self._break_near, (detail,))

    def break_both(self, detail: str) -> None:
        """Break each end that is still open, as it notices the other's silence."""
        self._break_near(detail)
        self._break_far(detail)

    # Calls of the network

    def hold(self, outward: bool, action: Action, details: tuple[Any, ...]) -> None:
        self._held.append((outward, action, details))

    def release(self) -> None:
        """Send the held messages again after a cut has healed; those in a direction still cut are held again."""
        held, self._held = self._held, []
        for outward, action, details in held:
            self._network.carry(self, outward, action, details)

    def in_order(self, outward: bool, at_ns: int) -> int:
        """Delivery time that keeps the order: not before that of the previous message in this direction."""
        self._last_ns[outward] = max(at_ns, self._last_ns[outward])
        return self._last_ns[outward]

    def _deliver_far(self, action: Action, details: tuple[Any, ...]) -> None:
        if self._far_open:
            if self.far_process is not None and self.far_process.is_stalled:
                self.far_process.run(self._deliver_far, action, details)
            else:
                action(*details)

    def _deliver_near(self, action: Action, details: tuple[Any, ...]) -> None:
        if self._near_open:
            if self.near_process is not None and self.near_process.is_stalled:
                self.near_process.run(self._deliver_near, action, details)
            else:
                action(*details)

    def _break_near(self, detail: str) -> None:
        if self._near_open and self.near_process is not None and self.near_process.is_stalled:
            self.near_process.run(self._break_near, detail)
            return
        if self._near_open:
            self._near_open = False
            self._on_near_break(detail)
        self._forget_if_over()

    def _break_far(self, detail: str) -> None:
        if self._far_open and self.far_process is not None and self.far_process.is_stalled:
            self.far_process.run(self._break_far, detail)
            return
        if self._far_open:
            self._far_open = False
            self._on_far_break(detail)
        self._forget_if_over()

    def _forget_if_over(self) -> None:
        """Drop the callbacks of a closed line at once, rather than by a garbage collection."""
        if not self._near_open and not self._far_open:
            self._network.forget(self)
            self._on_near_break = self._on_far_break = _ignore_break


def _ignore_break(_: str) -> None:
    """Callback of a closed end; does nothing."""


class Network:
    """All connections between all regions, and the lines that cross them."""

    def __init__(
        self, agenda: Agenda, round_trips_ns: Mapping[Way, int], config: NetworkConfig, rng: random.Random
    ) -> None:
        self._agenda = agenda
        self._config = config
        self._rng = rng
        self._round_trips_ns = dict(round_trips_ns)
        self._slowness: dict[Way, float] = {}
        self._losses: dict[Way, float] = {}
        """Share of packets that each lossy way loses."""
        self._jitters: dict[Way, float] = {}
        """Maximum extension of each delay on an unsteady way, as a share of it."""
        self._cuts: dict[Way, int] = {}
        self._cut_since_ns: dict[Way, int] = {}
        self._lines: dict[Way, dict[NetworkLine, None]] = {}

    def round_trip_ns(self, one: RegionName, other: RegionName) -> int:
        """Round trip without faults, jitter or loss."""
        if one == other:
            return self._config.in_region_ns
        return self._round_trips_ns[one, other]

    def connect(self, near: RegionName, far: RegionName, on_near_break: OnBreak, on_far_break: OnBreak) -> NetworkLine:
        line = NetworkLine(self, near, far, on_near_break, on_far_break)
        if near != far:
            self._lines.setdefault((near, far), {})[line] = None
            if self._is_cut(line):
                self._doom(line)
        return line

    def datagram(self, sender: RegionName, receiver: RegionName, action: Action, *details: Any) -> None:
        """Send a message that is not retransmitted: it is lost by a cut or by packet loss."""
        delay_ns = self.datagram_delay_ns(sender, receiver)
        if delay_ns is not None:
            self._agenda.after(delay_ns, action, *details)

    def datagram_delay_ns(self, sender: RegionName, receiver: RegionName) -> int | None:
        """Delay of a datagram that is sent at present; None if it is lost."""
        if self.is_cut(sender, receiver) or self._chance(self._loss_share(sender, receiver)):
            return None
        return self._delay_ns(sender, receiver)

    # Effects of faults

    def cut(self, sender: RegionName, receiver: RegionName) -> None:
        """Cut the connection in one direction; cuts add up and heal one by one."""
        way = sender, receiver
        self._cuts[way] = self._cuts.get(way, 0) + 1
        self._cut_since_ns.setdefault(way, self._agenda.now_ns)
        for line in self._crossing(way):
            self._doom(line)

    def heal(self, sender: RegionName, receiver: RegionName) -> None:
        way = sender, receiver
        self._cuts[way] -= 1
        if self._cuts[way]:
            return
        del self._cuts[way], self._cut_since_ns[way]
        for line in self._crossing(way):
            line.release()

    def slow(self, sender: RegionName, receiver: RegionName, factor: float) -> None:
        self._slowness[sender, receiver] = factor

    def lose(self, sender: RegionName, receiver: RegionName, share: float) -> None:
        """Lose this share of the packets on a way, where it is more than every way loses. 0: no longer."""
        self._losses[sender, receiver] = share

    def shake(self, sender: RegionName, receiver: RegionName, share: float) -> None:
        """Extend delays on a way at random, by up to this share, where it is more than on every way. 0: no longer."""
        self._jitters[sender, receiver] = share

    def is_cut(self, sender: RegionName, receiver: RegionName) -> bool:
        return bool(self._cuts) and (sender, receiver) in self._cuts

    def cut_for_ns(self, sender: RegionName, receiver: RegionName) -> int:
        """Nanoseconds for which the way has been cut; 0: it is not."""
        since_ns = self._cut_since_ns.get((sender, receiver))
        return 0 if since_ns is None else self._agenda.now_ns - since_ns

    @property
    def connection_timeout_ns(self) -> int:
        return self._config.connection_timeout_ns

    # Calls of lines

    def carry(self, line: NetworkLine, outward: bool, action: Action, details: tuple[Any, ...]) -> None:
        sender, receiver = (line.near, line.far) if outward else (line.far, line.near)
        if self.is_cut(sender, receiver):
            line.hold(outward, action, details)
            return
        delay_ns = self._delay_ns(sender, receiver) + self._retransmission_ns(sender, receiver)
        self._agenda.at(line.in_order(outward, self._agenda.now_ns + delay_ns), action, *details)

    def fall_silent(self, line: NetworkLine) -> None:
        """Break a line after the time-out, because one end is gone without closing it; messages it sent before are not
        lost."""
        self._agenda.after(self._config.connection_timeout_ns, line.break_both, "the network fell silent")

    def forget(self, line: NetworkLine) -> None:
        lines = self._lines.get((line.near, line.far))
        if lines is not None:
            lines.pop(line, None)

    # Internals

    def _crossing(self, way: Way) -> list[NetworkLine]:
        return [*self._lines.get(way, ()), *self._lines.get((way[1], way[0]), ())]

    def _is_cut(self, line: NetworkLine) -> bool:
        return self.is_cut(line.near, line.far) or self.is_cut(line.far, line.near)

    def _doom(self, line: NetworkLine) -> None:
        """Break a line after the time-out if it is still cut: a cut in either direction stops acknowledgements, so both
        ends give up."""
        self._agenda.after(self._config.connection_timeout_ns, self._break_if_cut, line)

    def _break_if_cut(self, line: NetworkLine) -> None:
        if self._is_cut(line):
            line.break_both("the network fell silent")

    def _delay_ns(self, sender: RegionName, receiver: RegionName) -> int:
        delay_ns = self.round_trip_ns(sender, receiver) // 2
        if self._slowness:
            delay_ns = round(delay_ns * self._slowness.get((sender, receiver), 1.0))
        jitter_share = self._config.jitter_share
        if self._jitters:
            jitter_share = max(jitter_share, self._jitters.get((sender, receiver), 0.0))
        if jitter_share:
            delay_ns += int(delay_ns * jitter_share * self._rng.random())
        return delay_ns

    def _loss_share(self, sender: RegionName, receiver: RegionName) -> float:
        share = self._config.loss_share
        return max(share, self._losses.get((sender, receiver), 0.0)) if self._losses else share

    def _retransmission_ns(self, sender: RegionName, receiver: RegionName) -> int:
        losses, share = 0, self._loss_share(sender, receiver)
        while losses < RETRANSMITS_MAX and self._chance(share):
            losses += 1
        return retransmission_ns(losses, self.round_trip_ns(sender, receiver)) if losses else 0

    def _chance(self, share: float) -> bool:
        return share > 0 and self._rng.random() < share
