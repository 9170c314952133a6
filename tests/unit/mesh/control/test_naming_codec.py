from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gateway.core.vocabulary import GatewayId
from mesh.control.naming_codec import read_records, records_to_pb
from mesh.naming.tree import Area, NameServer, RecordTree
from mesh.wire import WireError
from protos.mesh.v1 import control_pb2 as pb
from tests.support.core import EU, US

TREE = RecordTree(
    9,
    5,
    (
        Area(EU.region, EU.jurisdiction, (), (), "nobody lives"),
        Area(
            US.region,
            US.jurisdiction,
            (GatewayId("us-1"),),
            ("192.0.2.1", "2001:db8::1", "2001:db8::2"),
            "",
            ("192.0.2.0/24",),
            is_closed=True,
            further=("2001:db8::1",),
        ),
    ),
    ("192.0.2.1",),
    "mesh.example.",
    (NameServer("ns1.mesh.example.", ("192.0.2.53",)),),
    8443,
)


def over_the_wire(tree: RecordTree) -> pb.RecordTree:
    return pb.RecordTree.FromString(records_to_pb(tree).SerializeToString())


@pytest.mark.parametrize("tree", [TREE, replace(TREE, tls=False), RecordTree(0, 0, (), ())])
def test_a_tree_arrives_as_it_was_sent(tree: RecordTree) -> None:
    assert read_records(over_the_wire(tree), "records") == tree


def crowd_the_further(tree: pb.RecordTree) -> None:
    added = [f"2001:db8::f{number}" for number in range(3)]
    tree.areas[1].addresses.extend(added)
    tree.areas[1].further.extend(added)


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda tree: setattr(tree, "ttl_s", 100_000), r"records\.ttl_s"),
        (lambda tree: setattr(tree, "port", 0), r"records\.port"),
        (lambda tree: setattr(tree, "port", 70_000), r"records\.port"),
        (lambda tree: setattr(tree, "zone", "mesh.example"), r"records\.zone"),
        (lambda tree: setattr(tree, "zone", "a" * 64 + "."), r"records\.zone"),
        (lambda tree: setattr(tree, "zone", "a." * 200), r"records\.zone"),
        (lambda tree: tree.anywhere.append("here"), r"records\.anywhere\[1\]"),
        (lambda tree: tree.anywhere.extend(["192.0.2.1"] * 2000), r"too many records\.anywhere"),
        (lambda tree: setattr(tree.areas[0], "region", ""), r"records\.areas\[0\]\.region"),
        (lambda tree: tree.areas[0].gateways.append(""), r"records\.areas\[0\]\.gateways"),
        (lambda tree: tree.areas[0].addresses.append("x"), r"records\.areas\[0\]\.addresses\[0\]"),
        (lambda tree: tree.areas[1].further.append("x"), r"records\.areas\[1\]\.further\[1\]"),
        (lambda tree: tree.areas[1].further.append("192.0.2.9"), r"records\.areas\[1\]\.further are not among"),
        (crowd_the_further, r"further has over 3 addresses of one IP version"),
        (lambda tree: tree.areas[1].further.append("192.0.2.1"), r"further has an address of a version"),
        (lambda tree: tree.areas[1].networks.append("192.0.2.1/24"), r"records\.areas\[1\]\.networks\[1\]"),
        (lambda tree: tree.areas.extend([tree.areas[0]] * 2000), r"too many records\.areas"),
        (lambda tree: setattr(tree.name_servers[0], "name", "ns1"), r"records\.name_servers\[0\]\.name"),
        (lambda tree: tree.name_servers.extend([tree.name_servers[0]] * 20), r"too many records\.name_servers"),
    ],
)
def test_what_no_tree_may_hold_is_named_by_its_field(spoil: Callable[[pb.RecordTree], object], fault: str) -> None:
    message = over_the_wire(TREE)
    spoil(message)
    with pytest.raises(WireError, match=fault):
        read_records(message, "records")
