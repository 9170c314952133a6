"""Lines keep order and lose nothing; cuts stall them, then break them at both ends; datagrams are swallowed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.core.vocabulary import RegionName
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.network import Network, NetworkConfig, NetworkLine
from loadgen.simulator.process import Process

US, EU = RegionName("us-east-1"), RegionName("eu-west-1")
MS = 1_000_000


@dataclass
class Cable:
    """One line from the US to the EU, and a log of arrivals at each end."""

    config: NetworkConfig = field(default_factory=lambda: NetworkConfig(connection_timeout_ns=1000 * MS))
    log: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agenda = Agenda()
        ways = {(US, EU): 80 * MS, (EU, US): 80 * MS}
        self.network = Network(self.agenda, ways, self.config, random.Random(1))
        self.line: NetworkLine = self.network.connect(US, EU, self.heard("near broke"), self.heard("far broke"))

    def heard(self, what: str) -> Callable[..., None]:
        return lambda *details: self.log.append((self.agenda.now_ns // MS, " ".join((what, *details))))

    def out(self, text: str) -> None:
        self.line.to_far(self.heard(text))

    def back(self, text: str) -> None:
        self.line.to_near(self.heard(text))


def test_each_way_takes_half_a_round_trip() -> None:
    cable = Cable()
    cable.line.to_far(lambda: cable.back("answer"))
    cable.agenda.run_until(1000 * MS)
    assert cable.log == [(80, "answer")]


def test_nothing_overtakes_on_a_line_however_it_jitters() -> None:
    cable = Cable(NetworkConfig(jitter_share=5.0, loss_share=0.3))
    for number in range(50):
        cable.out(str(number))
    cable.agenda.run_until(10**12)
    assert [text for _, text in cable.log] == [str(number) for number in range(50)]
    assert cable.log[-1][0] > 200, "what was lost is sent again"


def test_a_cut_holds_back_and_healing_releases() -> None:
    cable = Cable()
    cable.network.cut(US, EU)
    cable.out("held")
    cable.back("free")
    cable.agenda.run_until(500 * MS)
    assert cable.log == [(40, "free")]
    cable.network.heal(US, EU)
    cable.agenda.run_until(2000 * MS)
    assert cable.log[1:] == [(540, "held")]


def test_a_line_across_a_cut_breaks_at_both_ends() -> None:
    cable = Cable()
    cable.network.cut(EU, US)
    cable.agenda.run_until(2000 * MS)
    assert cable.log == [(1000, "near broke the network fell silent"), (1000, "far broke the network fell silent")]


def test_a_line_that_is_opened_across_a_cut_breaks_too() -> None:
    cable = Cable()
    cable.network.cut(US, EU)
    cable.agenda.run_until(1500 * MS)
    cable.log.clear()
    cable.line = cable.network.connect(US, EU, cable.heard("near broke"), cable.heard("far broke"))
    cable.agenda.run_until(4000 * MS)
    assert [at_ms for at_ms, _ in cable.log] == [2500, 2500]


def test_leaving_across_a_cut_is_noticed_in_the_end() -> None:
    cable = Cable()
    cable.network.cut(US, EU)
    cable.line.close_near("left")
    cable.agenda.run_until(2000 * MS)
    assert cable.log == [(1000, "far broke the network fell silent")]


def test_a_close_comes_behind_what_was_sent() -> None:
    cable = Cable()
    cable.out("last words")
    cable.line.close_near("left")
    cable.back("too late")
    cable.agenda.run_until(1000 * MS)
    assert cable.log == [(40, "last words"), (40, "far broke left")]


def test_overlapping_cuts_heal_one_by_one() -> None:
    cable = Cable()
    cable.network.cut(US, EU)
    cable.network.cut(US, EU)
    cable.network.heal(US, EU)
    assert cable.network.is_cut(US, EU)
    cable.network.heal(US, EU)
    assert not cable.network.is_cut(US, EU)


def test_a_slow_link_is_slow_and_recovers() -> None:
    cable = Cable()
    cable.network.slow(US, EU, 3.0)
    cable.out("slow")
    cable.agenda.run_until(200 * MS)
    cable.network.slow(US, EU, 1.0)
    cable.out("fast")
    cable.agenda.run_until(1000 * MS)
    assert cable.log == [(120, "slow"), (240, "fast")]


def test_a_cut_swallows_datagrams() -> None:
    cable = Cable()
    cable.network.cut(US, EU)
    cable.network.datagram(US, EU, cable.heard("lost"))
    cable.network.heal(US, EU)
    cable.network.datagram(US, EU, cable.heard("heard"))
    cable.agenda.run_until(1000 * MS)
    assert cable.log == [(40, "heard")]


def test_a_lossy_way_delays_lines_and_swallows_datagrams_until_it_is_whole_again() -> None:
    cable = Cable()
    cable.network.lose(US, EU, 0.5)
    for number in range(40):
        cable.network.datagram(US, EU, cable.heard(f"datagram {number}"))
        cable.out(str(number))
    cable.agenda.run_until(10**12)
    datagrams = [text for _, text in cable.log if text.startswith("datagram")]
    assert 0 < len(datagrams) < 40
    assert [text for _, text in cable.log if text not in datagrams] == [str(number) for number in range(40)]
    assert cable.log[-1][0] > 200, "lost packets are sent again"
    cable.network.lose(US, EU, 0.0)
    cable.log.clear()
    for _ in range(40):
        cable.network.datagram(US, EU, cable.heard("datagram"))
    cable.agenda.run_until(2 * 10**12)
    assert len(cable.log) == 40


def test_an_unsteady_way_extends_delays_by_up_to_its_share() -> None:
    cable = Cable()
    cable.network.shake(US, EU, 3.0)
    delays = [cable.network.datagram_delay_ns(US, EU) or 0 for _ in range(200)]
    assert 40 * MS <= min(delays) < 60 * MS
    assert 140 * MS < max(delays) <= 160 * MS
    assert {cable.network.datagram_delay_ns(EU, US) for _ in range(20)} == {40 * MS}


def test_what_reaches_a_stalled_end_waits_and_so_does_a_break() -> None:
    cable = Cable()
    cable.line.far_process = process = Process()
    process.stall()
    cable.out("request")
    cable.agenda.run_until(500 * MS)
    cable.line.break_both("no keep-alive was answered")
    assert cable.log == [(500, "near broke no keep-alive was answered")]
    process.go_on()
    assert cable.log[1:] == [(500, "request"), (500, "far broke no keep-alive was answered")]
