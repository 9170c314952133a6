"""A zone with three regions, and short forms of DNS queries for it."""

from __future__ import annotations

import dns.edns
import dns.message
import dns.name
import dns.rdatatype
from msgspec.structs import replace

from gateway.core.vocabulary import GatewayId, Jurisdiction, RegionName
from mesh.naming.tree import Area, NameServer, RecordTree

ZONE = dns.name.from_text("mesh.example.")
NS1, NS2 = "ns1.mesh.example.", "ns2.elsewhere.example."
NAME_SERVERS = (NameServer(NS1, ("192.0.2.53", "2001:db8::53")), NameServer(NS2))
US, EU, AP = RegionName("us-east-1"), RegionName("eu-west-1"), RegionName("ap-northeast-1")
NETWORKS = {
    US: ("127.0.1.0/24", "198.51.100.0/24"),
    EU: ("127.0.2.0/24", "203.0.113.0/24", "2001:db8:e::/48"),
    AP: (),
}
US_ADDRESS, EU_ADDRESSES = "192.0.2.1", ("192.0.2.2", "2001:db8::2")
EVERYBODY = (US_ADDRESS, *EU_ADDRESSES)


def area(region: RegionName, *addresses: str, is_closed: bool = False) -> Area:
    gateways = (GatewayId(f"gw-{region}"),) if addresses else ()
    jurisdiction = Jurisdiction(region[:2].upper())
    why = "" if addresses else f"no gateway lives that clients in {jurisdiction} may be sent to"
    return Area(region, jurisdiction, gateways, addresses, why, NETWORKS[region], is_closed)


def tree(version: int = 1, /, *, closed: frozenset[RegionName] = frozenset(), **more: tuple[str, ...]) -> RecordTree:
    """Records of the regions `us`, `eu` and `ap` with these addresses. Each region in `closed` is in a closed
    jurisdiction."""
    areas = {"us": (US_ADDRESS,), "eu": EU_ADDRESSES, "ap": (), **more}
    regions = {"us": US, "eu": EU, "ap": AP}
    told = tuple(
        area(regions[name], *addresses, is_closed=regions[name] in closed) for name, addresses in sorted(areas.items())
    )
    return RecordTree(version, 5, told, EVERYBODY, "mesh.example.", NAME_SERVERS)


def with_further(before: RecordTree, region: RegionName, *further: str) -> RecordTree:
    """The same tree with these addresses of a gateway in a further region, beside those of one region's own."""
    areas = tuple(
        replace(each, addresses=(*each.addresses, *further), further=further) if each.region == region else each
        for each in before.areas
    )
    return replace(before, areas=areas)


def with_networks(before: RecordTree, region: RegionName, *networks: str) -> RecordTree:
    """The same tree with other client networks for one region."""
    areas = tuple(replace(each, networks=networks) if each.region == region else each for each in before.areas)
    return replace(before, areas=areas)


def query(
    name: str | dns.name.Name = ZONE, kind: str = "A", *, subnet: str = "", payload: int = 1232
) -> dns.message.Message:
    """DNS query. `subnet`: client subnet for ECS, such as `203.0.113.0/24`."""
    options: list[dns.edns.Option] = []
    if subnet:
        address, _, length = subnet.partition("/")
        options = [dns.edns.ECSOption(address, int(length))]
    return dns.message.make_query(name, kind, use_edns=0, payload=payload, options=options)


def addresses(response: dns.message.Message, kind: str = "A") -> list[str]:
    wanted = dns.rdatatype.from_text(kind)
    return sorted(item.to_text() for each in response.answer if each.rdtype == wanted for item in each)
