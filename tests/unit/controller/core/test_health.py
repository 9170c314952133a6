from __future__ import annotations

from typing import ClassVar

from controller.core.config import ControllerConfig
from controller.core.health import GatewayHealth
from controller.core.vocabulary import HeardPeer
from gateway.core.vocabulary import GatewayId
from tests.support.controller import SECOND

CONFIG = ControllerConfig()
SELF, PEER = GatewayId("self"), GatewayId("peer")


def lost(at_ns: int = 0, *, was_refused: bool = False) -> GatewayHealth:
    """Health of a gateway that was up, whose stream broke, and whose probes have all failed since."""
    health = GatewayHealth(0)
    health.connect(0)
    health.rise(0)
    health.disconnect("reset", at_ns)
    for _ in range(CONFIG.probe_failures_min):
        health.probe(False, "no answer", at_ns, was_refused=was_refused)
    return health


class TestSilence:
    def test_at_once_with_nobody_to_speak_for_it(self) -> None:
        assert lost(5).silent_at_ns(CONFIG, {}, 2, 0) == 5

    def test_not_before_its_last_heartbeat_is_stale_by_a_report_that_is_newer(self) -> None:
        health, stale_ns = lost(5 * SECOND), 6 * SECOND + CONFIG.silence_ns
        health.said_by[PEER] = HeardPeer(SELF, 6 * SECOND, is_broken=False)
        assert health.silent_at_ns(CONFIG, {PEER: stale_ns}, 2, 0) == stale_ns
        assert health.silent_at_ns(CONFIG, {}, 2, 0) == 5 * SECOND

    def test_a_witness_that_reports_no_more_may_still_hear_it_for_ten_seconds(self) -> None:
        health, told_ns = lost(5 * SECOND), 6 * SECOND + CONFIG.silence_ns - 1
        health.said_by[PEER] = HeardPeer(SELF, 6 * SECOND, is_broken=False)
        assert health.silent_at_ns(CONFIG, {PEER: told_ns}, 2, 0) == told_ns + 10 * SECOND

    def test_a_broken_connection_is_silence_whatever_was_heard_before(self) -> None:
        health = lost(5 * SECOND)
        health.said_by[PEER] = HeardPeer(SELF, 6 * SECOND, is_broken=True)
        assert health.silent_at_ns(CONFIG, {PEER: 6 * SECOND}, 2, 0) == 5 * SECOND

    def test_a_probe_that_answers_speaks_for_it(self) -> None:
        health = lost()
        health.probe(True, "", 1)
        assert health.silent_at_ns(CONFIG, {}, 2, 0) is None


class TestProof:
    """Word of one peer against that of the others, on a gateway whose host refuses probes."""

    PEERS = tuple(map(GatewayId, ("b", "c", "d")))
    STILL_HEARD_NS = 19 * SECOND

    def silent_at_ns(self, *are_broken: bool, was_refused: bool = True) -> int | None:
        health = lost(5 * SECOND, was_refused=was_refused)
        for peer, is_broken in zip(self.PEERS, are_broken, strict=False):
            health.said_by[peer] = HeardPeer(SELF, 9 * SECOND, is_broken=is_broken)
        health.look_for_proof(CONFIG, self.PEERS)
        return health.silent_at_ns(CONFIG, dict.fromkeys(self.PEERS, 9 * SECOND), 3, 0)

    def test_most_peers_that_have_lost_it_outweigh_one_that_says_it_hears_it(self) -> None:
        assert self.silent_at_ns(True, True, False) == 5 * SECOND

    def test_half_of_them_do_not(self) -> None:
        assert self.silent_at_ns(True, False) == self.STILL_HEARD_NS

    def test_nor_do_most_where_the_host_refuses_nothing(self) -> None:
        assert self.silent_at_ns(True, True, False, was_refused=False) == self.STILL_HEARD_NS


class TestUnknown:
    """A gateway that this controller has not heard from, as after another one led."""

    UNTIL = CONFIG.unknown_for_ns
    WITNESSES: ClassVar = {PEER: UNTIL, GatewayId("other"): UNTIL}

    def health(self, *said: HeardPeer) -> GatewayHealth:
        health = GatewayHealth(0)
        for _ in range(CONFIG.probe_failures_min):
            health.probe(False, "no answer", 1)
        health.said_by = dict(zip(self.WITNESSES, said, strict=False))
        return health

    def test_most_others_that_have_lost_it_cut_its_time_short(self) -> None:
        lost, silent = HeardPeer(SELF, 1, is_broken=True), HeardPeer(SELF, 2 * SECOND, is_broken=False)
        assert self.health(lost, silent).silent_at_ns(CONFIG, self.WITNESSES, 3, 0) == 2 * SECOND + CONFIG.silence_ns
        assert self.health(lost, lost).silent_at_ns(CONFIG, self.WITNESSES, 3, 0) == 0

    def test_half_of_the_others_do_not_nor_those_that_never_heard_it_or_are_not_connected(self) -> None:
        lost, never = HeardPeer(SELF, 1, is_broken=True), HeardPeer(SELF, None, is_broken=True)
        assert self.health(lost, lost).silent_at_ns(CONFIG, self.WITNESSES, 4, 0) == self.UNTIL
        assert self.health(lost, never).silent_at_ns(CONFIG, self.WITNESSES, 2, 0) == self.UNTIL
        assert self.health(lost, lost).silent_at_ns(CONFIG, {PEER: self.UNTIL}, 2, 0) == self.UNTIL

    def test_failed_probes_are_needed(self) -> None:
        health = self.health(*[HeardPeer(SELF, 1, is_broken=True)] * 2)
        health.probe_failures = 0
        assert health.silent_at_ns(CONFIG, self.WITNESSES, 2, 0) is None

    def test_its_time_begins_with_the_first_gateway_that_is_heard(self) -> None:
        assert self.health().silent_at_ns(CONFIG, {}, 2, None) is None, "the controller itself may be cut off"
        assert self.health().silent_at_ns(CONFIG, {}, 2, 7 * SECOND) == 7 * SECOND + self.UNTIL
        assert self.health().silent_at_ns(CONFIG, {}, 0, None) == self.UNTIL, "there is none but this one"


class TestReturn:
    def test_at_once_where_it_was_silent_for_the_first_time(self) -> None:
        health = lost()
        health.fall(1, CONFIG)
        health.probe(True, "", 2)
        assert health.back_at_ns(CONFIG) is None
        health.connect(3)
        assert health.back_at_ns(CONFIG) == 3
        health.rise(3)
        health.disconnect("reset", 4)
        health.fall(5, CONFIG)
        health.probe(True, "", 6)
        health.connect(6)
        assert health.back_at_ns(CONFIG) == 6 + 2 * CONFIG.return_after_ns

    def test_not_at_once_before_it_has_answered_a_probe(self) -> None:
        health = lost()
        health.fall(1, CONFIG)
        health.connect(2)
        assert health.back_at_ns(CONFIG) == 2 + CONFIG.return_after_ns
        health.probe(False, "no answer", 3)
        assert health.back_at_ns(CONFIG) is None
        health.probe(True, "", 4)
        assert health.back_at_ns(CONFIG) == 4

    def test_not_at_once_where_it_refused_a_probe_after_its_fall(self) -> None:
        health = lost()
        health.fall(1, CONFIG)
        health.probe(False, "refused", 2, was_refused=True)
        health.probe(True, "", 3)
        health.connect(3)
        assert health.back_at_ns(CONFIG) == 3 + CONFIG.return_after_ns

    def test_at_once_where_it_refused_a_probe_and_answered_one_while_it_was_still_up(self) -> None:
        health = lost()
        health.probe(False, "refused", 1, was_refused=True)
        health.probe(True, "", 2)
        health.fall(3, CONFIG)
        health.connect(4)
        health.probe(True, "", 5)
        assert health.back_at_ns(CONFIG) == 4

    def test_not_at_once_where_it_was_down_when_the_controller_began_which_is_a_fall_as_well(self) -> None:
        health = GatewayHealth(0)
        health.restore_down()
        health.probe(True, "", 1)
        health.connect(1)
        assert health.back_at_ns(CONFIG) == 1 + CONFIG.return_after_ns
        health.rise(2)
        health.disconnect("reset", 3)
        health.fall(4, CONFIG)
        health.connect(5)
        health.probe(True, "", 5)
        assert health.back_at_ns(CONFIG) == 5 + 2 * CONFIG.return_after_ns

    def test_not_without_stream_and_probes_both(self) -> None:
        health = lost(was_refused=True)
        health.fall(1, CONFIG)
        health.probe(True, "", 2)
        assert health.back_at_ns(CONFIG) is None
        health.connect(3)
        assert health.back_at_ns(CONFIG) == 3 + CONFIG.return_after_ns
        health.probe(False, "refused", 4)
        assert health.back_at_ns(CONFIG) is None
        health.probe(True, "", 5)
        assert health.back_at_ns(CONFIG) == 5 + CONFIG.return_after_ns

    def test_a_thousand_falls_do_not_overflow(self) -> None:
        health = lost()
        for number in range(1_000):
            health.rise(number)
            health.fall(number, CONFIG)
        health.connect(1_000)
        assert health.back_at_ns(CONFIG) == 1_000 + CONFIG.return_after_max_ns
