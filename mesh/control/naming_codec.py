"""Codec of the record tree, from which the mesh's name is answered."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from gateway.core.vocabulary import Jurisdiction, RegionName
from mesh.naming.tree import FURTHER_MAX, Area, NameServer, RecordTree
from mesh.wire import WireError, read_address, read_gateway_id, read_id, read_text, require, require_few
from protos.mesh.v1 import control_pb2 as pb

AREAS_MAX = 1024
AREA_ADDRESSES_MAX = 1024
NETWORKS_MAX = 4096
"""Most networks of one area."""
NAME_SERVERS_MAX = 16
TTL_MAX_S = 24 * 3600

_ZONE = re.compile(r"(?=.{1,254}$)(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)+")


def records_to_pb(tree: RecordTree) -> pb.RecordTree:
    return pb.RecordTree(
        version=tree.version,
        ttl_s=tree.ttl_s,
        areas=[
            pb.Area(
                region=each.region,
                jurisdiction=each.jurisdiction,
                gateways=each.gateways,
                addresses=each.addresses,
                why=each.why,
                networks=each.networks,
                is_closed=each.is_closed,
                further=each.further,
            )
            for each in tree.areas
        ],
        anywhere=tree.anywhere,
        zone=tree.zone,
        name_servers=[pb.NameServer(name=each.name, addresses=each.addresses) for each in tree.name_servers],
        port=tree.port,
        plain_http=not tree.tls,
    )


def read_records(message: pb.RecordTree, what: str) -> RecordTree:
    require(message.ttl_s <= TTL_MAX_S, f"{what}.ttl_s is over a day")
    require(0 < message.port <= 65_535, f"{what}.port is not a port")
    require_few(message.areas, f"{what}.areas", AREAS_MAX)
    require_few(message.name_servers, f"{what}.name_servers", NAME_SERVERS_MAX)
    return RecordTree(
        version=message.version,
        ttl_s=message.ttl_s,
        areas=tuple(_area(each, f"{what}.areas[{index}]") for index, each in enumerate(message.areas)),
        anywhere=_addresses(message.anywhere, f"{what}.anywhere"),
        zone=_name(message.zone, f"{what}.zone") if message.zone else "",
        name_servers=tuple(
            NameServer(
                _name(each.name, f"{what}.name_servers[{index}].name"),
                _addresses(each.addresses, f"{what}.name_servers[{index}].addresses"),
            )
            for index, each in enumerate(message.name_servers)
        ),
        port=message.port,
        tls=not message.plain_http,
    )


def _area(message: pb.Area, what: str) -> Area:
    require_few(message.gateways, f"{what}.gateways", AREA_ADDRESSES_MAX)
    require_few(message.networks, f"{what}.networks", NETWORKS_MAX)
    addresses = _addresses(message.addresses, f"{what}.addresses")
    return Area(
        region=RegionName(read_id(message.region, f"{what}.region")),
        jurisdiction=Jurisdiction(read_id(message.jurisdiction, f"{what}.jurisdiction")),
        gateways=tuple(read_gateway_id(each, f"{what}.gateways") for each in message.gateways),
        addresses=addresses,
        why=read_text(message.why, f"{what}.why"),
        networks=tuple(_network(each, f"{what}.networks[{index}]") for index, each in enumerate(message.networks)),
        is_closed=message.is_closed,
        further=_further(message.further, addresses, f"{what}.further"),
    )


def _further(texts: Sequence[str], addresses: tuple[str, ...], what: str) -> tuple[str, ...]:
    """Read the further gateways' addresses: at most FURTHER_MAX of each IP version that the nearest gateways have."""
    further = _addresses(texts, what)
    versions = [ip_address(each).version for each in further]
    nearest = {ip_address(each).version for each in addresses if each not in further}
    require(set(further) <= set(addresses), f"{what} are not among the area's addresses")
    for version in set(versions):
        require(versions.count(version) <= FURTHER_MAX, f"{what} has over {FURTHER_MAX} addresses of one IP version")
    require(nearest.issuperset(versions), f"{what} has an address of a version that the nearest gateways lack")
    return further


def _addresses(texts: Sequence[str], what: str) -> tuple[str, ...]:
    require_few(texts, what, AREA_ADDRESSES_MAX)
    return tuple(read_address(each, f"{what}[{index}]") for index, each in enumerate(texts))


def _network(text: str, what: str) -> str:
    try:
        ip_network(text)
    except ValueError as error:
        raise WireError(f"{what} is not a network such as 192.0.2.0/24") from error
    return text


def _name(text: str, what: str) -> str:
    require(_ZONE.fullmatch(text) is not None, f"{what} is not a name that ends with a dot")
    return text
