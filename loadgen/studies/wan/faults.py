"""Faults between hosts, each as changes of the links between them and of the hosts themselves, with what is expected of
the mesh. Pure values; they are played elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations, permutations

from gateway.core.vocabulary import RegionName
from loadgen.hosts.shapes import (
    Direction,
    LinkChange,
    LinkShape,
    LinkTable,
    Site,
    both_ways,
    from_each,
    slowed,
    unchanged,
    with_shape,
)
from loadgen.round_trips import RoundTripTable

US, EU, AP = REGIONS = tuple(RegionName(name) for name in ("us-east-1", "eu-west-1", "ap-northeast-1"))
DATABASE: Site = "database"
"""Site of the controllers' PostgreSQL server, in the region of the controller that stands by."""
STANDBY = EU
_NEAR_MS = 2.0
"""Delay between sites of one region."""
JITTER_MS = 1.0
"""Jitter of sound links."""
SILENCE_S = 2.0
"""Aim: silence of a host behind a sound link is noticed within this time."""
DEAF_S = 9.0
"""Expected time in which the end of a one-way line that still hears notices by itself: nothing that it sends is
acknowledged, so TCP or gRPC gives the connection up after `keepalive_interval` + `keepalive_timeout`, 7 s, and silence
follows."""


def clients_of(region: RegionName) -> Site:
    """Site of the region's clients."""
    return f"{region}-clients"


def sites() -> dict[Site, int]:
    """Every site with its number: the regions' hosts, their clients, and the database."""
    hosts = {str(region): number for number, region in enumerate(REGIONS, 1)}
    return hosts | {clients_of(region): 100 + number for number, region in enumerate(REGIONS, 1)} | {DATABASE: 200}


def in_region(region: RegionName) -> tuple[Site, ...]:
    return str(region), clients_of(region), *([DATABASE] if region == STANDBY else [])


def region_of(site: Site) -> RegionName:
    return next(region for region in REGIONS if site in in_region(region))


def base_links(table: RoundTripTable) -> dict[Direction, LinkShape]:
    """Sound links between all sites that talk to each other: half of the round trip each way, and jitter."""
    links: dict[Direction, LinkShape] = {}
    for one, other in permutations(sites(), 2):
        if one not in REGIONS and other not in REGIONS:
            continue  # clients do not talk to each other, nor to the database
        delay_ms = 500 * table.round_trip_s(region_of(one), region_of(other))
        delay_ms += _NEAR_MS * ((one not in REGIONS) + (other not in REGIONS))
        links[one, other] = LinkShape(delay_ms=delay_ms, jitter_ms=min(JITTER_MS, delay_ms / 4))
    return links


def round_trips_ms(table: RoundTripTable) -> list[float]:
    """Round trips between the regions, the shortest first."""
    return sorted(1000 * table.round_trip_s(one, other) for one, other in combinations(REGIONS, 2))


def _talking(ways: Iterable[Direction]) -> tuple[Direction, ...]:
    """Directions that have a link: clients do not talk to each other, nor to the database."""
    return tuple(way for way in ways if not {*way}.isdisjoint(REGIONS))


def uplink_of(region: RegionName) -> tuple[Direction, ...]:
    """All directions between a region, its clients included, and the others."""
    return _talking(both_ways(in_region(region), _elsewhere(region)))


def _elsewhere(region: RegionName) -> list[Site]:
    return [site for site in sites() if region_of(site) != region]


ACROSS = tuple(dict.fromkeys(way for region in REGIONS for way in uplink_of(region)))
"""All directions between regions."""
Loss = tuple[RegionName, RegionName]
"""Observer, and the peer that it loses."""


def _mutual(region: RegionName, within_s: float) -> dict[Loss, float]:
    others = [each for each in REGIONS if each != region]
    return {pair: within_s for each in others for pair in ((each, region), (region, each))}


def _seen_by_others(region: RegionName, within_s: float) -> dict[Loss, float]:
    return {(each, region): within_s for each in REGIONS if each != region}


class NamesFault(StrEnum):
    """Fault of a region's name server, which its gateway and its clients ask."""

    SILENT = "silent"
    """No answers."""
    LYING = "lying"
    """Answers that lead clients to an unused address, and gateways to the gateway of another region."""


@dataclass(frozen=True, slots=True)
class WanFault:
    """A fault, and what is expected while it lasts."""

    name: str
    begins: str
    """Beginning in words."""
    heals: str
    expected: str
    """Expectation in words."""
    links: LinkChange = unchanged
    """Change of the sound links while it lasts."""
    forgets: tuple[Direction, ...] = ()
    """Links whose middleboxes forget all connections at its beginning."""
    frozen: Site | None = None
    """Host that is stopped while it lasts."""
    clock_s: float = 0.0
    """Seconds that the clock of the last region's host is ahead while it lasts."""
    names: NamesFault | None = None
    """Fault of the last region's name server while it lasts."""
    kills: bool = False
    """The last region's gateway is killed at its beginning; its service manager starts it again."""
    moves: bool = False
    """The last region's gateway ends at its beginning, and starts at another address of its host."""
    leads_elsewhere: bool = False
    """Another controller is to lead while it lasts."""
    loses: Mapping[Loss, float] = field(default_factory=dict)
    """Peers that are to be lost, each with the seconds within which; no other peer is to be lost."""
    leads_away: bool = False
    """Other regions are to answer clients of the region struck."""
    may_lose: bool = False
    """Other losses are expected as well."""
    seconds: float = 20.0

    @property
    def struck(self) -> RegionName:
        """Region at which it strikes; the last one where all links change."""
        return region_of(self.frozen) if self.frozen is not None else REGIONS[-1]

    @property
    def stops_gateway(self) -> bool:
        """True if the last region's gateway stops while its host goes on."""
        return self.kills or self.moves

    @property
    def cuts_answers(self) -> bool:
        """True if the gateway of the region struck stops at once, and with it the answers on their way through it. One
        that ends in order has given them before."""
        return self.kills or self.frozen in REGIONS

    @property
    def keeps_owners(self) -> bool:
        """True if no replica may change its gateway while it lasts."""
        return self.frozen == DATABASE

    @property
    def restarts_controllers(self) -> bool:
        """True if a controller may end because it has lost its lease."""
        return self.leads_elsewhere or self.frozen == DATABASE

    @property
    def changes_links(self) -> bool:
        """True if the network between the hosts loses, delays or forgets something because of it."""
        return self.links is not unchanged or bool(self.forgets) or self.frozen is not None

    def shaped(self, sound: LinkTable) -> LinkTable:
        """Links while the fault lasts."""
        table = self.links(sound)
        if self.frozen is not None:
            table = with_shape(_ways_of(self.frozen, table), is_cut=True)(table)
        return table


def _ways_of(site: Site, table: LinkTable) -> list[Direction]:
    return [way for way in table if site in way]


_BACK = "as before"
_HOME = "no request fails in the region that is cut off, which serves its own clients; the others lose it"

FAULTS = (
    WanFault(
        "partition",
        f"{AP} is cut off from the other regions",
        _BACK,
        _HOME,
        links=with_shape(uplink_of(AP), is_cut=True),
        loses=_mutual(AP, SILENCE_S),
    ),
    WanFault(
        "one-way partition, out",
        f"packets from {AP} to other regions are lost; those to it arrive",
        _BACK,
        "as a partition; what still hears notices later",
        links=with_shape(_talking(from_each(in_region(AP), _elsewhere(AP))), is_cut=True),
        loses={pair: SILENCE_S if pair[1] == AP else DEAF_S for pair in _mutual(AP, SILENCE_S)},
    ),
    WanFault(
        "one-way partition, in",
        f"packets from other regions to {AP} are lost; those from it arrive",
        _BACK,
        "as a partition; what still hears notices later",
        links=with_shape(_talking(from_each(_elsewhere(AP), in_region(AP))), is_cut=True),
        loses={pair: SILENCE_S if pair[0] == AP else DEAF_S for pair in _mutual(AP, SILENCE_S)},
    ),
    WanFault(
        "partial partition",
        f"{AP} and {US}, where the controller runs, are cut off from each other; {EU} reaches both",
        _BACK,
        "the two lose each other, and no gateway is taken for down, since one peer hears it",
        links=with_shape(_talking(both_ways(in_region(AP), in_region(US))), is_cut=True),
        loses={(AP, US): SILENCE_S, (US, AP): SILENCE_S},
    ),
    WanFault(
        "5 % loss",
        "links between regions lose 5 % of their packets",
        _BACK,
        "no request fails",
        links=with_shape(ACROSS, loss=0.05),
    ),
    WanFault(
        "20 % loss",
        "links between regions lose 20 % of their packets",
        _BACK,
        "peers may be lost and found again; no request fails, since home serves",
        links=with_shape(ACROSS, loss=0.2),
        may_lose=True,
    ),
    WanFault(
        "reordering",
        "links between regions have 60 ms of jitter, by which packets overtake each other",
        _BACK,
        "no peer is lost, no request fails",
        links=with_shape(ACROSS, jitter_ms=60.0, reorders=True),
    ),
    WanFault(
        "10 × latency",
        "links between regions delay ten times as long",
        _BACK,
        "no peer is lost, no request fails",
        links=slowed(ACROSS, 10.0),
    ),
    WanFault(
        "bandwidth collapse",
        "links between regions carry 64 kbit/s, with half a second of queue",
        _BACK,
        "peers may be lost and found again; no request fails, since home serves",
        links=with_shape(ACROSS, rate_kbit_s=64.0),
        may_lose=True,
    ),
    WanFault(
        "MTU black hole",
        f"packets of more than 600 bytes between {AP} and other regions vanish",
        _BACK,
        "peers may be lost; no request fails, since home serves",
        links=with_shape(uplink_of(AP), packet_max_bytes=600),
        may_lose=True,
    ),
    WanFault(
        "connections forgotten",
        f"middleboxes between {AP} and other regions forget all connections, and tell no end of it",
        "nothing: connections are made anew",
        "peers are lost, and found again over new connections while it lasts",
        forgets=uplink_of(AP),
        loses=_mutual(AP, SILENCE_S),
    ),
    WanFault(
        "frozen host",
        f"all processes on the host of {AP} are stopped, and no packet leaves or reaches it",
        "processes and links go on, after all leases of the host have ended",
        "others lose it, and serve its clients once the name leads them there",
        frozen=AP,
        leads_away=True,
        loses=_seen_by_others(AP, SILENCE_S),
    ),
    WanFault(
        "frozen host of the controller",
        f"the same for {US}, where the controller that leads runs",
        "processes and links go on",
        f"the controller of {STANDBY} leads once the lease has ended, and others serve the clients of {US}",
        frozen=US,
        leads_away=True,
        leads_elsewhere=True,
        loses=_seen_by_others(US, SILENCE_S),
        seconds=40.0,
    ),
    WanFault(
        "frozen host of the database",
        "the same for the host of PostgreSQL, on which both controllers keep their state",
        "processes and links go on",
        "no replica changes its gateway; no peer is lost, no request fails",
        frozen=DATABASE,
    ),
    WanFault(
        "killed gateway",
        f"the gateway of {AP} is killed; its host's service manager starts it again after a second",
        "nothing: it starts again while it lasts",
        "others lose it and find it again; no request fails but those whose answer was on its way",
        kills=True,
        may_lose=True,
    ),
    WanFault(
        "address that moves",
        f"the gateway of {AP} ends in order, and starts at another address of its host, which its DNS name leads to",
        "nothing: it stays there",
        "others find it by its DNS name, and clients by the mesh's; no request fails",
        moves=True,
        may_lose=True,
    ),
    WanFault(
        "clock ahead",
        f"the clock of the host of {AP} goes ten minutes ahead",
        "the clock goes back",
        "no peer is lost, no request fails",
        clock_s=600.0,
    ),
    WanFault(
        "clock behind",
        f"the clock of the host of {AP} goes ten minutes back",
        "the clock is right again",
        "no peer is lost, no request fails",
        clock_s=-600.0,
    ),
    WanFault(
        "name server silent",
        f"the name server that the gateway and the clients of {AP} ask does not answer",
        "it answers",
        f"no peer is lost; requests of clients of {AP} wait or fail where they need a name",
        names=NamesFault.SILENT,
    ),
    WanFault(
        "name server that lies",
        f"the name server of {AP} leads its clients to an unused address, and its gateway to the wrong"
        " gateways; middleboxes forget all connections",
        "it tells the truth",
        f"no gateway is taken for another; requests of clients of {AP} wait or fail where they need a name",
        forgets=uplink_of(AP),
        names=NamesFault.LYING,
        may_lose=True,
    ),
)
