from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gateway.core.kernel.residency import LoggingRule, ResidencyPolicy, TenantPolicy, closed_policy
from gateway.core.vocabulary import ControlVersion, GatewayId, PlaceRule, ReplicaId, TenantName
from mesh.control import codec
from mesh.control.vocabulary import (
    NO_GATEWAY,
    Alive,
    Announcement,
    ControlSnapshot,
    ForwardsTo,
    FromController,
    FromGateway,
    GatewayLoad,
    Hello,
    HistoriesWanted,
    LeftOut,
    PeerGrant,
    PeerHeard,
    Question,
    QuestionAnswer,
    ReplicaGrant,
    ReplicaOwner,
    Report,
    SnapshotRejected,
    SnapshotTaken,
    WantedReplicas,
)
from mesh.naming.tree import Area, NameServer, RecordTree
from mesh.totals import Totals
from mesh.wire import WireError
from protos.mesh.v1 import control_pb2 as pb
from tests.support.core import AP, EU, MS, US
from tests.support.histories import history_of

VERSION = ControlVersion(3, 2**40)
RULE = PlaceRule(frozenset({US.jurisdiction}), frozenset({EU.region}), frozenset({AP.region}))
POLICY = ResidencyPolicy(
    US,
    RULE,
    PlaceRule(),
    {TenantName("acme corp"): TenantPolicy(PlaceRule(regions=frozenset({US.region})))},
    LoggingRule(tenant=False, client_address=True, session_key=True),
    "abc",
)
ANNOUNCEMENT = Announcement(
    ("192.0.2.1", "2001:db8::1"),
    "gw.example.net:7070",
    "https://gw.example.net:8080/health",
    -33.9,
    151.2,
    ('{"id": "r1"}',),
    ("connector nixl", "decode_policy br_h"),
)
HELLO = Hello(GatewayId("us-1"), US, VERSION, ANNOUNCEMENT, POLICY)
REPORT = Report(
    (
        PeerHeard(GatewayId("eu-1"), 1500 * MS, is_broken=False, rtt_ns=80 * MS),
        PeerHeard(GatewayId("ap-1"), None, is_broken=True),
    ),
    7,
    GatewayLoad(8, 3, 1, 21, 17, is_draining=True, is_locked_down=True, slots=48, slots_used=41, kv_usage=0.5),
    (ForwardsTo(GatewayId("eu-1"), 120, 4),),
    (WantedReplicas("Qwen/Qwen3-8B", "default", 3, 2, "borrows"),),
    Totals(900, 12, 340, (1, 2, 3), 17),
    (LeftOut(ReplicaId("r2"), "no key"),),
)
RECORDS = RecordTree(
    9,
    5,
    (Area(US.region, US.jurisdiction, (GatewayId("us-1"),), ("192.0.2.1",), "", ("192.0.2.0/24", "2001:db8::/32")),),
    ("192.0.2.1",),
    "mesh.example.",
    (NameServer("ns1.mesh.example.", ("192.0.2.53",)),),
    8443,
)
SNAPSHOT = ControlSnapshot(
    VERSION,
    GatewayId("us-1"),
    (
        ReplicaGrant('{"id": "r1"}', GatewayId("us-1"), US),
        ReplicaGrant('{"id": "r2"}', GatewayId("eu-1"), EU, RULE),
        ReplicaGrant('{"id": "r3"}', GatewayId("ap-1"), AP, PlaceRule()),
    ),
    (ReplicaOwner(ReplicaId("r2@1"), GatewayId("eu-1"), GatewayId("us-1")),),
    (PeerGrant(GatewayId("eu-1"), EU, "[2001:db8::2]:7070"),),
    POLICY,
    '{"queue": {"length_max": 5}}',
    RECORDS,
    (("prices", '{"version": 1}'),),
)


def up(said: FromGateway) -> pb.AttachRequest:
    return pb.AttachRequest.FromString(codec.said_by_gateway(said).SerializeToString())


def down(said: FromController) -> pb.AttachResponse:
    return pb.AttachResponse.FromString(codec.said_by_controller(said).SerializeToString())


@pytest.mark.parametrize(
    "said",
    [
        HELLO,
        Hello(GatewayId("us-1"), US, ControlVersion(), Announcement(), closed_policy(US, "no file")),
        ANNOUNCEMENT,
        Announcement(),
        POLICY,
        REPORT,
        Report(()),
        SnapshotTaken(VERSION),
        SnapshotRejected(VERSION, "it is for another gateway"),
        QuestionAnswer(7, b'{"request": {}}'),
        QuestionAnswer(8, b""),
        history_of(5, 6, by="eu-1"),
    ],
)
def test_what_a_gateway_says_arrives_as_it_was_said(said: FromGateway) -> None:
    assert codec.read_from_gateway(up(said)) == said


@pytest.mark.parametrize(
    "said",
    [
        SNAPSHOT,
        ControlSnapshot(ControlVersion(), GatewayId("us-1")),
        Alive(),
        Question(7, "r-1"),
        HistoriesWanted(US),
        history_of(5),
    ],
)
def test_what_a_controller_says_arrives_as_it_was_said(said: FromController) -> None:
    assert codec.read_from_controller(down(said)) == said


def test_own_replicas_and_those_whose_home_says_nothing_are_told_apart() -> None:
    read = codec.read_from_controller(down(SNAPSHOT))
    assert isinstance(read, ControlSnapshot)
    assert [each.accepts for each in read.replicas] == [None, RULE, PlaceRule()]


def test_a_gateway_of_before_says_nothing_of_its_load() -> None:
    old = pb.AttachRequest(report=pb.Report(open_requests=7))
    assert codec.read_from_gateway(old) == Report((), 7, None, ())


def test_an_answer_has_a_bound() -> None:
    with pytest.raises(WireError, match=r"answer\.document is too long"):
        codec.read_from_gateway(up(QuestionAnswer(1, b"x" * (codec.ANSWER_BYTES_MAX + 1))))


def test_forwards_that_are_told_have_a_bound_and_name_each_gateway_once() -> None:
    named = [ForwardsTo(GatewayId(f"gw-{number}"), 1, 0) for number in range(10_000)]
    with pytest.raises(WireError, match=r"report\.forwards"):
        codec.read_from_gateway(up(Report((), forwards=tuple(named))))
    with pytest.raises(WireError, match=r"report\.forwards"):
        codec.read_from_gateway(up(Report((), forwards=(named[0], named[0]))))


def test_totals_have_a_bounded_number_of_buckets_and_a_share_is_one() -> None:
    with pytest.raises(WireError, match=r"report\.totals\.first_tokens"):
        codec.read_from_gateway(up(Report((), totals=Totals(first_tokens=(1,) * (codec.BUCKETS_MAX + 1)))))
    read = codec.read_from_gateway(up(Report((), load=GatewayLoad(kv_usage=float("nan")))))
    assert isinstance(read, Report)
    assert read.load == GatewayLoad()


def test_a_newer_kind_of_message_is_passed_over() -> None:
    assert codec.read_from_gateway(pb.AttachRequest()) is None
    assert codec.read_from_controller(pb.AttachResponse()) is None


def test_a_reason_is_cut_to_what_the_other_side_takes() -> None:
    read = codec.read_from_gateway(up(SnapshotRejected(VERSION, "x" * 5000)))
    assert isinstance(read, SnapshotRejected)
    assert len(read.reason) == 1024


def test_an_age_is_never_below_zero_nor_too_large_to_be_read() -> None:
    said = Report((PeerHeard(GatewayId("eu-1"), -5, is_broken=False), PeerHeard(GatewayId("ap-1"), 2**62, False)))
    read = codec.read_from_gateway(up(said))
    assert isinstance(read, Report)
    assert next(each.heard_ago_ns for each in read.peers) == 0


def test_what_no_gateway_may_want_is_a_fault() -> None:
    message = up(REPORT)
    message.report.wanted[0].replicas = 2**20
    with pytest.raises(WireError, match="no number of replicas"):
        codec.read_from_gateway(message)
    message.report.wanted[0].replicas = 3
    message.report.wanted.extend([message.report.wanted[0]] * 64)
    with pytest.raises(WireError, match=r"too many report\.wanted"):
        codec.read_from_gateway(message)


def test_the_version_of_what_cannot_be_read_is_known() -> None:
    message = down(replace(SNAPSHOT, gateway_id=GatewayId("not an id")))
    with pytest.raises(WireError):
        codec.read_from_controller(message)
    assert codec.version_of(message) == VERSION


def _spoil_hello(spoil: Callable[[pb.Hello], object]) -> pb.AttachRequest:
    message = up(HELLO)
    spoil(message.hello)
    return message


def _set(field: str, value: object) -> Callable[[object], None]:
    def spoil(message: object) -> None:
        *path, last = field.split(".")
        for name in path:
            message = message[int(name)] if name.isdigit() else getattr(message, name)  # type: ignore[index]
        if last.isdigit():
            message[int(last)] = value  # type: ignore[index]
        else:
            setattr(message, last, value)

    return spoil


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        ("gateway_id", "", r"hello\.gateway_id is not an id"),
        ("place.region", "a b", r"hello\.place is not an id"),
        ("place.region", "elsewhere", r"hello\.policy is of another place"),
        ("announcement.client_addresses.1", "gw.example.net", r"client_addresses\[1\]: 'gw.* is not an IP"),
        ("announcement.client_addresses.1", "0.0.0.0", r"client_addresses\[1\]: '0\.0\.0\.0' is not an address of one"),
        ("announcement.peer_address", "gw.example.net", r"announcement\.peer_address is not HOST:PORT"),
        ("announcement.peer_address", "gw.example.net:0", r"announcement\.peer_address is not HOST:PORT"),
        ("announcement.health_url", "ftp://gw.example.net", r"announcement\.health_url is not a URL"),
        ("announcement.health_url", "http://a\nb", r"announcement\.health_url is not printable"),
        ("announcement.health_url", "http://" + "a" * 3000, r"announcement\.health_url is too long"),
        ("announcement.latitude", 90.1, r"announcement\.latitude is not from -90 to 90"),
        ("announcement.longitude", float("nan"), r"announcement\.longitude is not from -180 to 180"),
        ("announcement.replicas.0", "[]", r"announcement\.replicas\[0\] is not a JSON object"),
        ("announcement.replicas.0", "{" * 70_000, r"announcement\.replicas\[0\] is too long"),
        ("policy.tenants.0.tenant", "", r"policy\.tenants\[0\]\.tenant is empty"),
        ("policy.digest", "x" * 300, r"policy\.digest is too long"),
        ("policy.closed_reason", "x" * 3000, r"policy\.closed_reason is too long"),
    ],
)
def test_what_no_gateway_may_say_is_named_by_its_field(field: str, value: object, fault: str) -> None:
    with pytest.raises(WireError, match=fault):
        codec.read_from_gateway(_spoil_hello(_set(field, value)))


@pytest.mark.parametrize(("told", "taken"), [("no", "no"), ("", ""), ("{" * 70_000, "")])
def test_what_a_replica_is_described_as_is_judged_by_whoever_serves_it(told: str, taken: str) -> None:
    message = down(SNAPSHOT)
    message.snapshot.replicas[1].document = told
    read = codec.read_from_controller(message)
    assert isinstance(read, ControlSnapshot)
    assert read.replicas[1].document == taken
    assert read.replicas[0] == SNAPSHOT.replicas[0]


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda hello: hello.announcement.client_addresses.extend(["192.0.2.1"] * 20), "client_addresses"),
        (lambda hello: hello.announcement.replicas.extend(["{}"] * 20_000), "replicas"),
        (lambda hello: hello.policy.tenants.add(tenant="acme corp"), "acme corp stands there twice"),
        (lambda hello: hello.policy.process.regions.extend(["a"] * 5000), r"too many hello\.policy\.process\.regions"),
        (lambda hello: hello.policy.process.regions.append("a b"), r"hello\.policy\.process\.regions is not an id"),
    ],
)
def test_what_would_grow_without_end_is_a_fault(spoil: Callable[[pb.Hello], object], fault: str) -> None:
    with pytest.raises(WireError, match=fault):
        codec.read_from_gateway(_spoil_hello(spoil))


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        ("peers.0.heard_ago_us", 2**60, r"report\.peers\[0\]\.heard_ago_us"),
        ("peers.0.rtt_us", 2**60, r"report\.peers\[0\]\.rtt_us"),
        ("peers.0.gateway_id", "ap-1", r"report\.peers: ap-1 stands there twice"),
        ("peers.0.gateway_id", "ü", r"report\.peers\[0\]\.gateway_id is not an id"),
    ],
)
def test_a_report_is_bounded(field: str, value: object, fault: str) -> None:
    message = up(REPORT)
    _set(field, value)(message.report)
    with pytest.raises(WireError, match=fault):
        codec.read_from_gateway(message)


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        ("gateway_id", "", r"snapshot\.gateway_id"),
        ("replicas.1.home_gateway_id", "", r"snapshot\.replicas\[1\]\.home_gateway_id"),
        ("replicas.1.home_place.region", "", r"snapshot\.replicas\[1\]\.home_place"),
        ("away.0.replica_id", "r 2", r"snapshot\.away\[0\]\.replica_id is not a replica's id"),
        ("away.0.owner_gateway_id", "eu 1", r"snapshot\.away\[0\]\.owner_gateway_id"),
        ("peers.0.address", "nowhere", r"snapshot\.peers\[0\]\.address"),
        ("peers.0.place.jurisdiction", "", r"snapshot\.peers\[0\]\.place"),
        ("narrowing.place.region", "", r"snapshot\.narrowing\.place"),
        ("parameters", "x" * 70_000, r"snapshot\.parameters is too long"),
    ],
)
def test_what_no_controller_may_say_is_named_by_its_field(field: str, value: object, fault: str) -> None:
    message = down(SNAPSHOT)
    _set(field, value)(message.snapshot)
    with pytest.raises(WireError, match=fault):
        codec.read_from_controller(message)


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda snapshot: snapshot.away.append(snapshot.away[0]), "r2@1 stands there twice"),
        (lambda snapshot: snapshot.peers.append(snapshot.peers[0]), "eu-1 stands there twice"),
        (lambda snapshot: snapshot.documents.update(prices="x" * 300_000), r"snapshot\.documents\.prices is too long"),
        (lambda snapshot: snapshot.documents.update({"a b": "{}"}), r"snapshot\.documents is not an id"),
        (lambda snapshot: snapshot.documents.update({f"f{n}": "" for n in range(65)}), r"too many snapshot\.documents"),
        (lambda snapshot: snapshot.peers.extend([snapshot.peers[0]] * 5000), r"too many snapshot\.peers"),
        (lambda snapshot: snapshot.replicas.extend([pb.ReplicaGrant()] * 20_000), r"too many snapshot\.replicas"),
    ],
)
def test_a_snapshot_is_bounded(spoil: Callable[[pb.Snapshot], object], fault: str) -> None:
    message = down(SNAPSHOT)
    spoil(message.snapshot)
    with pytest.raises(WireError, match=fault):
        codec.read_from_controller(message)


def test_a_replica_that_nobody_is_to_serve_has_no_owner() -> None:
    owned = (ReplicaOwner(ReplicaId("r0"), GatewayId("us-1"), NO_GATEWAY),)
    assert codec.read_owners(codec.owners_to_pb(owned), "away") == owned
