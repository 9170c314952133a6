"""Subscribes to one peer's load reports, measures the round trip to it, and turns both into observations on this
gateway's clock.

A peer that gives no sign of life for longer than its link makes likely is lost at once; its subscription stays open for
`silence_max` after the last one, and the next heartbeat on it brings the peer back. A peer whose identity or place
differs from our configuration is treated as lost, whatever load it reports. Heartbeats of one peer take no more
processing time than `heartbeats_time_max` allows, plus one heartbeat.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Never

import grpc
import grpc.aio
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from gateway.core.events import Event
from gateway.core.kernel.events import PeersObserved, TargetLost
from gateway.core.vocabulary import GatewayId, LoadReport, PeerObservation, PeerSpec, Place, peer_target
from gateway.peers import codec
from gateway.peers.link import ChannelClosed, PeerLink, answer_of
from gateway.records.peer_usage import BudgetUse
from mesh.channels import status_in_words
from mesh.clock import Clock
from mesh.control.vocabulary import PeerHeard
from mesh.patience import Patience
from mesh.silence import BEAT_NS, SilenceDetector
from mesh.supervisor import Backoff
from mesh.wire import WireError
from protos.mesh.v1 import peer_pb2 as pb

_SECOND_NS = 1_000_000_000
_UNSEEN_NS = 200_000
"""Estimated processing time of a heartbeat outside this module: gRPC reads the message, and the core takes in the
event. Other work that the core finds to do then is not counted against the peer."""
_TOLD_AGAIN_NS = 60 * _SECOND_NS
"""Interval between warnings about a peer that stays too talkative."""

REFUSED_BY_US = "the certificate shown there is not that of this peer, or not to be believed"
REFUSED_THERE = "the peer does not believe who we are"
NO_ANSWER = "no answer"

_Call = grpc.aio.UnaryStreamCall[pb.SubscribeRequest, pb.SubscribeResponse]


TakeIn = Callable[[], bool]
"""Takes in what a feature has read of a heartbeat. True: something told before it is missing, and a new subscription is
to be opened, on which the peer tells everything anew."""
ReadHeartbeat = Callable[[pb.SubscribeResponse], TakeIn]
"""Reads what a feature adds to a peer's heartbeat, raising WireError, and returns the step that takes it in. The
step is called once the sender is known to be that peer."""
WriteHeartbeat = Callable[[pb.SubscribeResponse, PeerSpec], None]
"""Adds to a heartbeat that is about to be sent to a peer on one subscription."""


class PeerLost(Exception):
    """A subscription is over, for the reason given in words."""


class PeerSilent(PeerLost):
    """A subscription on which nothing comes, and whose connection has not broken."""


class IdentityMismatch(PeerLost):
    """The gateway that answers at a peer's address is not that peer."""


class _Subscription(Struct, frozen=True):
    call: _Call
    connection: int
    """Number of the connection that the call was made on."""


class RoundTrips:
    """Last round trips to a peer: their median and their p99, in nanoseconds."""

    def __init__(self, window: int) -> None:
        self._samples_ns: deque[int] = deque(maxlen=window)

    def add(self, rtt_ns: int) -> None:
        self._samples_ns.append(rtt_ns)

    def median_ns(self) -> int:
        return self._quantile_ns(50)

    def p99_ns(self) -> int:
        return self._quantile_ns(99)

    def _quantile_ns(self, percent: int) -> int:
        """Quantile by nearest rank; 0 before the first sample."""
        if not self._samples_ns:
            return 0
        ordered = sorted(self._samples_ns)
        return ordered[(len(ordered) * percent + 99) // 100 - 1]


class RetryPause:
    """Pause of a loop between two attempts. It can be ended early, even before it begins."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()

    def end(self) -> None:
        self._ended.set()

    async def wait(self, longest_s: float) -> bool:
        """Wait up to `longest_s` seconds. True if the pause was ended early."""
        try:
            async with asyncio.timeout(longest_s):
                await self._ended.wait()
        except TimeoutError:
            return False
        self._ended.clear()
        return True


class HeartbeatTimeBudget:
    """Limit on the processing time of one peer's heartbeats in each second; a second begins with the first heartbeat in
    it."""

    def __init__(self, time_max_ns: int) -> None:
        self._time_max_ns = time_max_ns
        self._began_ns = -_SECOND_NS
        self._spent_ns = 0

    def spend(self, now_ns: int, taken_ns: int) -> int:
        """Charge one heartbeat that took `taken_ns`. Returns the nanoseconds for which to read no other: 0 until the
        limit is reached, then the rest of the second."""
        if now_ns >= self._began_ns + _SECOND_NS:
            self._began_ns, self._spent_ns = now_ns, 0
        self._spent_ns += taken_ns + _UNSEEN_NS
        return 0 if self._spent_ns <= self._time_max_ns else self._began_ns + _SECOND_NS - now_ns


class Heartbeats:
    """Heartbeats of one peer. `listen`, `watch` and `measure` run for as long as the gateway does."""

    def __init__(
        self,
        link: PeerLink,
        gateway_id: GatewayId,
        place: Place,
        *,
        submit: Callable[[Event], None],
        clock: Clock,
        rng: random.Random,
        on_refused: Callable[[], None],
        log: FilteringBoundLogger,
        on_budgets: Callable[[Sequence[BudgetUse]], None] = lambda _: None,
        on_found: Callable[[], None] = lambda: None,
        on_lost: Callable[[], None] = lambda: None,
        readers: Sequence[ReadHeartbeat] = (),
    ) -> None:
        """`on_refused` is called each time a connection fails because the gateway that answers shows a wrong
        certificate, `on_budgets` with the budget uses that the peer reports, `on_found` when the peer is found, and
        `on_lost` when it is lost. `readers` read what features add to heartbeats."""
        self.round_trips = RoundTrips(link.peering.rtt_window)
        self._link = link
        self._request = codec.subscribe_request(gateway_id, place)
        self._submit = submit
        self._clock = clock
        self._rng = rng
        self._backoff = Backoff(link.peering.reconnect_min_ns, link.peering.reconnect_max_ns)
        self._on_refused = on_refused
        self._on_budgets = on_budgets
        self._on_found = on_found
        self._on_lost = on_lost
        self._readers = tuple(readers)
        self._misses_something = False
        """A part of what the open subscription has told is missing."""
        self._measured = asyncio.Event()
        self._listen_pause, self._measure_pause = RetryPause(), RetryPause()
        self._tried_ns: int | None = None
        """Time at which `try_at_once` last ended our back-off; None once a heartbeat arrived."""
        self._heard = False
        self._is_silent = False
        """The peer was heard on the open subscription, and then fell silent."""
        self._heard_ns: int | None = None
        """Time of the last heartbeat or sign of life."""
        self._found_ns = 0
        """Time of the first heartbeat after the last loss."""
        self.silence = SilenceDetector(link.peering.silence_max_ns)
        self._allowance = HeartbeatTimeBudget(link.peering.heartbeats_time_max_ns)
        self._told_ns: int | None = None
        """Time of the last warning that the peer is too talkative."""
        self._log = log.bind(peer=link.peer.spec.gateway_id, address=str(link.peer.address))

    async def listen(self) -> Never:
        """Hold a subscription, and open it again whenever it breaks."""
        await self._measured.wait()
        failures = 0
        while True:
            try:
                await self._subscribe()
            except PeerLost as lost:
                failures = self._backoff.failures_in_a_row(failures, self._heard_for_ns())
                self._lose(lost, failures)
            if await self._listen_pause.wait(self._backoff.pause_s(failures, self._rng)):
                failures = 0

    async def watch(self) -> Never:
        """Report the peer as lost when it falls silent. Its connection is left open: silence may be a slow network."""
        while True:
            wait_ns = self.silence.look(self._clock.now_ns())
            if not wait_ns and self._heard:
                self._fall_silent()
            await asyncio.sleep((wait_ns or BEAT_NS) / _SECOND_NS)

    def try_at_once(self) -> None:
        """End the back-off of both loops: the peer may be reachable again, since it has called or another peer was
        found. While it is not heard, this happens at most once per `reconnect_min`."""
        now_ns = self._clock.now_ns()
        is_soon = self._tried_ns is not None and now_ns < self._tried_ns + self._link.peering.reconnect_min_ns
        if self._heard or is_soon:
            return
        self._tried_ns = now_ns
        self._link.dial_again()
        self._measure_pause.end()
        self._listen_pause.end()

    def what_was_heard(self) -> PeerHeard:
        """Liveness of the peer, whatever its load. `is_broken` means that it was heard and then lost, or that it cannot
        be reached."""
        heard_ns = self._heard_ns
        return PeerHeard(
            self._link.peer.spec.gateway_id,
            None if heard_ns is None else self._clock.now_ns() - heard_ns,
            is_broken=self._link.is_failing or (heard_ns is not None and not self._heard),
            rtt_ns=self.round_trips.median_ns() or None,
        )

    async def measure(self) -> Never:
        """Time a round trip at every interval. A failed ping says nothing about load; `listen` notices silence."""
        failure = ""
        while True:
            try:
                self.round_trips.add(await self._ping_ns())
                self._measured.set()
                failure = ""
            except ChannelClosed:
                continue  # channel replaced by another one, which is asked at once
            except grpc.aio.AioRpcError as error:
                failure = self._ping_failed(error, failure)
            await self._measure_pause.wait(self._link.peering.ping_interval_ns / _SECOND_NS)

    async def _ping_ns(self) -> int:
        started_ns = self._clock.now_ns()
        timeout_s = self._link.peering.ping_timeout_ns / _SECOND_NS
        await answer_of(self._link.stub.Ping(pb.PingRequest(), timeout=timeout_s))
        return self._clock.now_ns() - started_ns

    def _ping_failed(self, error: grpc.aio.AioRpcError, last: str) -> str:
        """Return the failure in words, and log it if it differs from the last one."""
        failure = failure_of_ping(error)
        if failure == REFUSED_BY_US:
            self._on_refused()
        fields = {"code": error.code().name, "reason": error.details()}
        if failure == last:
            self._log.debug("peer_ping_failed_again", failure=failure, **fields)
        elif failure == NO_ANSWER:
            self._log.warning("peer_ping_failed", **fields)
        else:
            self._log.error("peer_certificate_refused", failure=failure, **fields)
        return failure

    async def _subscribe(self) -> Never:
        subscription = self._open()
        try:
            while True:
                rest_ns = self._take_in(await self._next(subscription))
                if rest_ns > 0:
                    subscription = await self._turn_away(subscription, rest_ns)
                elif self._is_old(subscription):
                    subscription = await self._succeed(subscription)
        except TimeoutError as error:
            raise PeerSilent("it fell silent") from error
        except grpc.aio.AioRpcError as error:
            raise PeerLost(status_in_words(error.code(), error.details())) from error
        except ChannelClosed as error:
            raise PeerLost("this gateway closed the connection") from error
        except WireError as error:
            raise PeerLost(f"its heartbeat is malformed: {error}") from error
        finally:
            subscription.call.cancel()

    def _open(self) -> _Subscription:
        self._misses_something = False
        self.silence.begin(self._clock.now_ns())
        call = self._link.stub.Subscribe(self._request)
        return _Subscription(call, self._link.connection)  # the call itself may open a connection

    async def _next(self, subscription: _Subscription) -> pb.SubscribeResponse:
        async with Patience(self._link.peering.silence_max_ns / _SECOND_NS):
            message = await answer_of(subscription.call.read())
        if not isinstance(message, pb.SubscribeResponse):
            raise PeerLost("it closed its heartbeats")
        return message

    def _is_old(self, subscription: _Subscription) -> bool:
        """True if the subscription would keep a connection open that all other calls have left, or if something that
        was told on it is missing."""
        return self._misses_something or subscription.connection != self._link.connection

    async def _succeed(self, old: _Subscription) -> _Subscription:
        """Open a new subscription, take in its first report, then end the old one, so that no report is missed in
        between."""
        new = self._open()
        try:
            self._take_in(await self._next(new))
        except BaseException:
            new.call.cancel()
            raise
        old.call.cancel()
        return new

    async def _turn_away(self, talker: _Subscription, rest_ns: int) -> _Subscription:
        """Stop listening for `rest_ns`, then subscribe anew; reports of the meantime are dropped."""
        talker.call.cancel()
        self._tell_of_talking()
        await asyncio.sleep(rest_ns / _SECOND_NS)
        return self._open()

    def _tell_of_talking(self) -> None:
        now_ns = self._clock.now_ns()
        if self._told_ns is None or now_ns - self._told_ns > _TOLD_AGAIN_NS:
            self._told_ns = now_ns
            self._log.warning("peer_heartbeats_throttled")

    def _take_in(self, message: pb.SubscribeResponse) -> int:
        """Take in one report or sign of life. Returns the nanoseconds for which to read no other."""
        if message.is_sign_of_life:
            return self._take_in_sign_of_life()
        began_ns = self._clock.thread_ns()
        report, age_ns = codec.read_load(message)
        budgets = codec.read_budget_uses(message)
        steps = [read(message) for read in self._readers]
        taken_ns = self._clock.thread_ns() - began_ns
        if fault := identity_fault(report, self._link.peer.spec):
            raise IdentityMismatch(fault)
        self._heard_ns = self._clock.now_ns()
        self.silence.hear(self._heard_ns, is_beat=False)
        if not self._heard:
            self._heard, self._is_silent = True, False
            self._found_ns = self._heard_ns
            self._tried_ns = None
            self._log.info("peer_found", region=report.place.region, rtt_ms=self.round_trips.median_ns() // 1_000_000)
            self._on_found()
        self._submit(PeersObserved((observe(report, age_ns, self.round_trips, self._clock.now_ns()),)))
        began_ns = self._clock.thread_ns()
        if budgets:
            self._on_budgets(budgets)
        for take_in in steps:
            self._misses_something |= take_in()
        return self._allowance.spend(self._clock.now_ns(), taken_ns + self._clock.thread_ns() - began_ns)

    def _take_in_sign_of_life(self) -> int:
        now_ns = self._clock.now_ns()
        self.silence.hear(now_ns, is_beat=True)
        if self._heard:
            self._heard_ns = now_ns
        return self._allowance.spend(now_ns, 0)

    def _heard_for_ns(self) -> int:
        return self._clock.now_ns() - self._found_ns if self._heard else 0

    def _lose(self, lost: PeerLost, failures: int) -> None:
        """Report a loss once and without delay: subscribing anew may take long, and waiting for the report to go stale
        longer."""
        if isinstance(lost, IdentityMismatch):
            self._log.error("peer_identity_mismatch", reason=str(lost))
        elif self._heard or failures == 1:
            if self._heard:
                self._log.warning("peer_lost", reason=str(lost))
            else:
                self._log.warning("peer_unreachable", reason=str(lost))
        if self._heard or isinstance(lost, IdentityMismatch):
            self._report_loss(str(lost), is_silent=isinstance(lost, PeerSilent))
        if self._heard or self._is_silent or isinstance(lost, IdentityMismatch):
            self._on_lost()
        self._heard = self._is_silent = False

    def _fall_silent(self) -> None:
        """Report the peer as lost while its subscription, on which it may be late, stays open: what it has told there
        stays known, since it is not told again."""
        reason = f"it gave no sign of life for {self.silence.timeout_ns / _SECOND_NS:.1f} s"
        self._log.warning("peer_lost", reason=reason)
        self._report_loss(reason, is_silent=True)
        self._heard, self._is_silent = False, True

    def _report_loss(self, reason: str, *, is_silent: bool) -> None:
        self._submit(TargetLost(peer_target(self._link.peer.spec.gateway_id), reason, is_silent))


def observe(report: LoadReport, age_ns: int, round_trips: RoundTrips, now_ns: int) -> PeerObservation:
    """Put a report on this gateway's clock: it was measured `age_ns` before it was sent, and sent half a round trip
    ago."""
    rtt_ns = round_trips.median_ns()
    generated_ns = now_ns - age_ns - rtt_ns // 2
    return PeerObservation(report, generated_ns, heard_ns=now_ns, rtt_ns=rtt_ns, rtt_p99_ns=round_trips.p99_ns())


def failure_of_ping(error: grpc.aio.AioRpcError) -> str:
    """Classify a failed ping. Only the error's text tells a refused certificate from an unreachable peer. A peer that
    refuses our certificate in the handshake closes the connection, which looks like any other lost connection."""
    if error.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
        return REFUSED_THERE
    words = (error.details() or "").lower()
    is_refused = "handshake failed" in words or "verification check failed" in words
    return REFUSED_BY_US if is_refused else NO_ANSWER


def identity_fault(report: LoadReport, spec: PeerSpec) -> str | None:
    """Difference between the peer's reported identity and place and those in our configuration; None if there is
    none."""
    if report.gateway_id != spec.gateway_id:
        return f"it calls itself {report.gateway_id}, we know it as {spec.gateway_id}"
    if report.place != spec.place:
        claimed = f"{report.place.region}/{report.place.jurisdiction}"
        return f"it claims to be in {claimed}, we know it in {spec.place.region}/{spec.place.jurisdiction}"
    return None
