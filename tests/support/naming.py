"""A zone with three regions, and short ways to ask it."""

from __future__ import annotations

import dns.edns
import dns.message
import dns.name
import dns.rdatatype

from gateway.core.vocabulary import GatewayId, Jurisdiction, RegionName
from gateway.ground.naming.answers import ZoneSettings
from gateway.ground.naming.geography import Networks
from gateway.ground.naming.tree import Area, RecordTree

ZONE = dns.name.from_text("mesh.example.")
NS1, NS2 = dns.name.from_text("ns1.mesh.example."), dns.name.from_text("ns2.elsewhere.example.")
SETTINGS = ZoneSettings(
    ZONE, (NS1, NS2), {NS1: ("192.0.2.53", "2001:db8::53")}, dns.name.from_text("hostmaster.mesh.example.")
)
US, EU, AP = RegionName("us-east-1"), RegionName("eu-west-1"), RegionName("ap-northeast-1")
NETWORKS = Networks(
    {US: ["127.0.1.0/24", "198.51.100.0/24"], EU: ["127.0.2.0/24", "203.0.113.0/24", "2001:db8:e::/48"], AP: []}
)
US_ADDRESS, EU_ADDRESSES = "192.0.2.1", ("192.0.2.2", "2001:db8::2")


def area(region: RegionName, *addresses: str) -> Area:
    gateways = (GatewayId(f"gw-{region}"),) if addresses else ()
    return Area(region, Jurisdiction(region[:2].upper()), gateways, addresses)


def tree(version: int = 1, /, **more: tuple[str, ...]) -> RecordTree:
    areas = {"us": (US_ADDRESS,), "eu": EU_ADDRESSES, "ap": (), **more}
    regions = {"us": US, "eu": EU, "ap": AP}
    told = tuple(area(regions[name], *addresses) for name, addresses in sorted(areas.items()))
    return RecordTree(version, 5, told, (US_ADDRESS, *EU_ADDRESSES))


def query(
    name: str | dns.name.Name = ZONE, kind: str = "A", *, subnet: str = "", payload: int = 1232
) -> dns.message.Message:
    """`subnet`: with ECS, as `203.0.113.0/24`."""
    options: list[dns.edns.Option] = []
    if subnet:
        address, _, length = subnet.partition("/")
        options = [dns.edns.ECSOption(address, int(length))]
    return dns.message.make_query(name, kind, use_edns=0, payload=payload, options=options)


def addresses(response: dns.message.Message, kind: str = "A") -> list[str]:
    wanted = dns.rdatatype.from_text(kind)
    return sorted(item.to_text() for each in response.answer if each.rdtype == wanted for item in each)
