"""Codec between the messages of `control.proto` and their plain values, both ways, for gateways and controllers.

Each message from the wire is checked: one that breaks a bound raises WireError, which names the field. A reader may be
older than the writer: a message of an unknown kind is read as None, and is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar, assert_never

from gateway.core.kernel.residency import LoggingRule, ResidencyPolicy, TenantPolicy
from gateway.core.vocabulary import ControlVersion, TenantName
from mesh.control.naming_codec import read_records, records_to_pb
from mesh.control.pool_history import PoolHistory
from mesh.control.vocabulary import (
    ABILITIES_MAX,
    FEATURE_DOCUMENT_LENGTH_MAX,
    FEATURES_MAX,
    LEFT_OUT_MAX,
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
from mesh.totals import Totals
from mesh.values import URL_LENGTH_MAX, parse_address
from mesh.wire import (
    KEY_LENGTH_MAX,
    LIST_LENGTH_MAX,
    MICROSECOND_NS,
    TEXT_LENGTH_MAX,
    WireError,
    place_to_pb,
    read_address,
    read_gateway_id,
    read_id,
    read_key,
    read_place,
    read_pool_name,
    read_replica_id,
    read_rule,
    read_text,
    require,
    require_few,
    require_once,
    rule_to_pb,
)
from protos.mesh.v1 import control_pb2 as pb
from protos.mesh.v1 import peer_pb2

ADDRESSES_MAX = 16
"""Most addresses of one gateway."""
REPLICAS_MAX = 16_384
"""Most replicas of one gateway, and most replicas in the whole mesh that are served away from home."""
DOCUMENT_LENGTH_MAX = 64 * 1024
"""Most characters of the description of one replica, and of the parameters."""
TENANTS_MAX = 4096
ANSWER_BYTES_MAX = 256 * 1024
"""Most bytes of an answer to one question."""
BUCKETS_MAX = 64
"""Most buckets of a histogram in a report."""
WANTED_MAX = 64
"""Most pools for which a gateway reports how many replicas are wanted."""

_AGE_MAX_US = 366 * 24 * 3600 * 1_000_000

_Read = TypeVar("_Read")


# Messages of gateways


def said_by_gateway(said: FromGateway) -> pb.AttachRequest:
    match said:
        case Hello():
            return pb.AttachRequest(hello=_hello_to_pb(said))
        case Announcement():
            return pb.AttachRequest(announcement=_announcement_to_pb(said))
        case ResidencyPolicy():
            return pb.AttachRequest(policy=policy_to_pb(said))
        case Report():
            return pb.AttachRequest(report=_report_to_pb(said))
        case SnapshotTaken():
            return pb.AttachRequest(taken=version_to_pb(said.version))
        case SnapshotRejected():
            reason = said.reason[:TEXT_LENGTH_MAX]
            return pb.AttachRequest(rejected=pb.Rejection(version=version_to_pb(said.version), reason=reason))
        case QuestionAnswer():
            return pb.AttachRequest(answer=pb.Answer(number=said.number, document=said.document))
        case PoolHistory():
            return pb.AttachRequest(pool_history=_pool_history_to_pb(said))
        case Alive():
            return pb.AttachRequest(alive=pb.Alive())
        case _:
            assert_never(said)


def read_from_gateway(message: pb.AttachRequest) -> FromGateway | None:
    match message.WhichOneof("kind"):
        case "hello":
            return _hello(message.hello)
        case "announcement":
            return _announcement(message.announcement, "announcement")
        case "policy":
            return read_policy(message.policy, "policy")
        case "report":
            return _report(message.report)
        case "taken":
            return SnapshotTaken(read_version(message.taken))
        case "rejected":
            reason = read_text(message.rejected.reason, "rejected.reason")
            return SnapshotRejected(read_version(message.rejected.version), reason)
        case "answer":
            require(len(message.answer.document) <= ANSWER_BYTES_MAX, "answer.document is too long")
            return QuestionAnswer(message.answer.number, message.answer.document)
        case "pool_history":
            return _pool_history(message.pool_history)
        case "alive":
            return Alive()
        case None:
            return None


def _hello_to_pb(hello: Hello) -> pb.Hello:
    return pb.Hello(
        gateway_id=hello.gateway_id,
        place=place_to_pb(hello.place),
        taken=version_to_pb(hello.taken),
        announcement=_announcement_to_pb(hello.announcement),
        policy=policy_to_pb(hello.policy),
    )


def _hello(message: pb.Hello) -> Hello:
    hello = Hello(
        gateway_id=read_gateway_id(message.gateway_id, "hello.gateway_id"),
        place=read_place(message.place, "hello.place"),
        taken=read_version(message.taken),
        announcement=_announcement(message.announcement, "hello.announcement"),
        policy=read_policy(message.policy, "hello.policy"),
    )
    require(hello.policy.place == hello.place, "hello.policy is of another place")
    return hello


def _announcement_to_pb(announcement: Announcement) -> pb.Announcement:
    return pb.Announcement(
        client_addresses=announcement.client_addresses,
        peer_address=announcement.peer_address,
        health_url=announcement.health_url,
        latitude=announcement.latitude,
        longitude=announcement.longitude,
        replicas=announcement.replicas,
        abilities=announcement.abilities,
    )


def _announcement(message: pb.Announcement, what: str) -> Announcement:
    require_few(message.client_addresses, f"{what}.client_addresses", ADDRESSES_MAX)
    require_few(message.replicas, f"{what}.replicas", REPLICAS_MAX)
    require_few(message.abilities, f"{what}.abilities", ABILITIES_MAX)
    return Announcement(
        client_addresses=tuple(
            read_address(each, f"{what}.client_addresses[{index}]")
            for index, each in enumerate(message.client_addresses)
        ),
        peer_address=_dialled(message.peer_address, f"{what}.peer_address") if message.peer_address else "",
        health_url=_url(message.health_url, f"{what}.health_url"),
        latitude=_degrees(message.latitude, f"{what}.latitude", 90) if message.HasField("latitude") else None,
        longitude=_degrees(message.longitude, f"{what}.longitude", 180) if message.HasField("longitude") else None,
        replicas=tuple(_document(each, f"{what}.replicas[{index}]") for index, each in enumerate(message.replicas)),
        abilities=tuple(read_text(each, f"{what}.abilities", KEY_LENGTH_MAX) for each in message.abilities),
    )


def policy_to_pb(policy: ResidencyPolicy) -> pb.LocalPolicy:
    return pb.LocalPolicy(
        place=place_to_pb(policy.place),
        process=rule_to_pb(policy.process),
        accept=rule_to_pb(policy.accept),
        tenants=[
            pb.TenantRule(tenant=name, process=rule_to_pb(tenant.process)) for name, tenant in policy.tenants.items()
        ],
        log_tenant=policy.logging.tenant,
        log_client_address=policy.logging.client_address,
        log_session_key=policy.logging.session_key,
        digest=policy.digest,
        closed_reason=policy.closed_reason[:TEXT_LENGTH_MAX],
    )


def read_policy(message: pb.LocalPolicy, what: str) -> ResidencyPolicy:
    require_few(message.tenants, f"{what}.tenants", TENANTS_MAX)
    require_once((each.tenant for each in message.tenants), f"{what}.tenants:")
    return ResidencyPolicy(
        place=read_place(message.place, f"{what}.place"),
        process=read_rule(message.process, f"{what}.process"),
        accept=read_rule(message.accept, f"{what}.accept"),
        tenants={
            TenantName(read_key(each.tenant, f"{what}.tenants[{index}].tenant")): TenantPolicy(
                read_rule(each.process, f"{what}.tenants[{index}].process")
            )
            for index, each in enumerate(message.tenants)
        },
        logging=LoggingRule(message.log_tenant, message.log_client_address, message.log_session_key),
        digest=read_text(message.digest, f"{what}.digest", KEY_LENGTH_MAX),
        closed_reason=read_text(message.closed_reason, f"{what}.closed_reason"),
    )


def _report_to_pb(report: Report) -> pb.Report:
    return pb.Report(
        peers=[
            pb.PeerHeard(
                gateway_id=each.gateway_id,
                heard_ago_us=_to_us(each.heard_ago_ns),
                is_broken=each.is_broken,
                rtt_us=_to_us(each.rtt_ns),
            )
            for each in report.peers
        ],
        open_requests=report.open_requests,
        load=None if report.load is None else _load_to_pb(report.load),
        forwards=[
            pb.ForwardsTo(gateway_id=each.gateway_id, per_minute=each.per_minute, running=each.running)
            for each in report.forwards
        ],
        wanted=[
            pb.Wanted(model=each.model, pool=each.pool, replicas=each.replicas, ready=each.ready, reason=each.reason)
            for each in report.wanted[:WANTED_MAX]
        ],
        totals=None if report.totals is None else _totals_to_pb(report.totals),
        left_out=[
            pb.LeftOut(replica_id=each.replica_id, reason=each.reason) for each in report.left_out[:LEFT_OUT_MAX]
        ],
    )


def _totals_to_pb(totals: Totals) -> pb.Totals:
    return pb.Totals(
        requests=totals.requests,
        errors=totals.errors,
        forwards=totals.forwards,
        first_tokens=totals.first_tokens,
    )


def _totals(message: pb.Report) -> Totals:
    counts = message.totals
    require(len(counts.first_tokens) <= BUCKETS_MAX, "report.totals.first_tokens are too many")
    return Totals(counts.requests, counts.errors, counts.forwards, tuple(counts.first_tokens), message.load.waiting)


def _load_to_pb(load: GatewayLoad) -> pb.GatewayLoad:
    return pb.GatewayLoad(
        replicas=load.replicas,
        available=load.available,
        down=load.down,
        running=load.running,
        waiting=load.waiting,
        is_draining=load.is_draining,
        is_locked_down=load.is_locked_down,
        slots=load.slots,
        slots_used=load.slots_used,
        kv_usage=load.kv_usage,
    )


def _load(message: pb.GatewayLoad) -> GatewayLoad:
    return GatewayLoad(
        message.replicas,
        message.available,
        message.down,
        message.running,
        message.waiting,
        message.is_draining,
        message.is_locked_down,
        message.slots,
        message.slots_used,
        message.kv_usage if message.HasField("kv_usage") and 0 <= message.kv_usage <= 1 else None,
    )


def _forwards(message: pb.ForwardsTo, what: str) -> ForwardsTo:
    return ForwardsTo(read_gateway_id(message.gateway_id, f"{what}.gateway_id"), message.per_minute, message.running)


def _report(message: pb.Report) -> Report:
    require_few(message.peers, "report.peers")
    require_once((each.gateway_id for each in message.peers), "report.peers:")
    require_few(message.forwards, "report.forwards")
    require_once((each.gateway_id for each in message.forwards), "report.forwards:")
    require_few(message.wanted, "report.wanted", WANTED_MAX)
    require_few(message.left_out, "report.left_out", LEFT_OUT_MAX)
    return Report(
        tuple(
            PeerHeard(
                gateway_id=read_gateway_id(each.gateway_id, f"report.peers[{index}].gateway_id"),
                heard_ago_ns=each.heard_ago_us * MICROSECOND_NS if each.HasField("heard_ago_us") else None,
                is_broken=each.is_broken,
                rtt_ns=each.rtt_us * MICROSECOND_NS if each.HasField("rtt_us") else None,
            )
            for index, each in enumerate(message.peers)
            if _is_bounded(each, f"report.peers[{index}]")
        ),
        message.open_requests,
        _load(message.load) if message.HasField("load") else None,
        tuple(_forwards(each, f"report.forwards[{index}]") for index, each in enumerate(message.forwards)),
        tuple(_wanted(each) for each in message.wanted),
        _totals(message) if message.HasField("totals") else None,
        tuple(_left_out(each) for each in message.left_out),
    )


def _wanted(message: pb.Wanted) -> WantedReplicas:
    require(max(message.replicas, message.ready) <= REPLICAS_MAX, "report.wanted is no number of replicas")
    return WantedReplicas(
        read_key(message.model, "report.wanted.model"),
        read_pool_name(message.pool, "report.wanted.pool"),
        message.replicas,
        message.ready,
        read_id(message.reason, "report.wanted.reason"),
    )


def _left_out(message: pb.LeftOut) -> LeftOut:
    replica_id = read_replica_id(message.replica_id, "report.left_out.replica_id")
    return LeftOut(replica_id, read_text(message.reason, "report.left_out.reason"))


def _is_bounded(heard: pb.PeerHeard, what: str) -> bool:
    require(heard.heard_ago_us <= _AGE_MAX_US, f"{what}.heard_ago_us is over a year")
    require(heard.rtt_us <= _AGE_MAX_US, f"{what}.rtt_us is over a year")
    return True


def _pool_history_to_pb(history: PoolHistory) -> pb.PoolHistory:
    return pb.PoolHistory(
        home_gateway_id=history.home,
        pool=history.pool,
        recorded_by=history.recorded_by,
        added=history.added,
        prompt_tokens=history.prompt_tokens,
        output_tokens=history.output_tokens,
        ended_meanwhile=history.ended_meanwhile,
    )


def _pool_history(message: pb.PoolHistory) -> PoolHistory:
    """Read a history. Its columns are checked by `history_fault`: a bad history does not end the stream."""
    return PoolHistory(
        home=read_gateway_id(message.home_gateway_id, "pool_history.home_gateway_id"),
        pool=read_id(message.pool, "pool_history.pool"),
        recorded_by=read_gateway_id(message.recorded_by, "pool_history.recorded_by"),
        added=message.added,
        prompt_tokens=message.prompt_tokens,
        output_tokens=message.output_tokens,
        ended_meanwhile=message.ended_meanwhile,
    )


# Messages of controllers


def said_by_controller(said: FromController) -> pb.AttachResponse:
    match said:
        case ControlSnapshot():
            return pb.AttachResponse(snapshot=_snapshot_to_pb(said))
        case Alive():
            return pb.AttachResponse(alive=pb.Alive())
        case Question():
            return pb.AttachResponse(question=pb.Question(number=said.number, wanted=said.wanted[:TEXT_LENGTH_MAX]))
        case HistoriesWanted():
            return pb.AttachResponse(histories_wanted=pb.HistoriesWanted(place=place_to_pb(said.place)))
        case PoolHistory():
            return pb.AttachResponse(pool_history=_pool_history_to_pb(said))
        case _:
            assert_never(said)


def read_from_controller(message: pb.AttachResponse) -> FromController | None:
    match message.WhichOneof("kind"):
        case "snapshot":
            return _snapshot(message.snapshot)
        case "alive":
            return Alive()
        case "question":
            return Question(message.question.number, read_text(message.question.wanted, "question.wanted"))
        case "histories_wanted":
            return HistoriesWanted(read_place(message.histories_wanted.place, "histories_wanted.place"))
        case "pool_history":
            return _pool_history(message.pool_history)
        case None:
            return None


def version_of(message: pb.AttachResponse) -> ControlVersion:
    """Version of a snapshot, which may be malformed, for its rejection."""
    return read_version(message.snapshot.version)


def _snapshot_to_pb(snapshot: ControlSnapshot) -> pb.Snapshot:
    return pb.Snapshot(
        version=version_to_pb(snapshot.version),
        gateway_id=snapshot.gateway_id,
        replicas=[
            pb.ReplicaGrant(
                document=each.document,
                home_gateway_id=each.home,
                home_place=place_to_pb(each.home_place),
                accepts=None if each.accepts is None else rule_to_pb(each.accepts),
            )
            for each in snapshot.replicas
        ],
        away=owners_to_pb(snapshot.away),
        peers=[
            pb.PeerGrant(gateway_id=each.gateway_id, place=place_to_pb(each.place), address=each.address)
            for each in snapshot.peers
        ],
        narrowing=None if snapshot.narrowing is None else policy_to_pb(snapshot.narrowing),
        parameters=snapshot.parameters,
        records=None if snapshot.records is None else records_to_pb(snapshot.records),
        documents=dict(snapshot.documents),
        is_drained=snapshot.is_drained,
    )


def _snapshot(message: pb.Snapshot) -> ControlSnapshot:
    require_few(message.replicas, "snapshot.replicas", REPLICAS_MAX)
    require_few(message.peers, "snapshot.peers", LIST_LENGTH_MAX)
    require_once((each.gateway_id for each in message.peers), "snapshot.peers:")
    return ControlSnapshot(
        version=read_version(message.version),
        gateway_id=read_gateway_id(message.gateway_id, "snapshot.gateway_id"),
        replicas=_each(_grant, message.replicas, "snapshot.replicas"),
        away=read_owners(message.away, "snapshot.away"),
        peers=_each(_peer_grant, message.peers, "snapshot.peers"),
        narrowing=read_policy(message.narrowing, "snapshot.narrowing") if message.HasField("narrowing") else None,
        parameters=read_text(message.parameters, "snapshot.parameters", DOCUMENT_LENGTH_MAX),
        records=read_records(message.records, "snapshot.records") if message.HasField("records") else None,
        documents=_documents(message.documents),
        is_drained=message.is_drained,
    )


def _documents(message: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    require_few(message, "snapshot.documents", FEATURES_MAX)
    return tuple(
        (
            read_id(name, "snapshot.documents"),
            read_text(text, f"snapshot.documents.{name}", FEATURE_DOCUMENT_LENGTH_MAX),
        )
        for name, text in sorted(message.items())
    )


def _grant(message: pb.ReplicaGrant, what: str) -> ReplicaGrant:
    """Grant of a replica. A description that is too long becomes empty; the gateway that is to serve the replica checks
    its content, so that one bad description fails alone."""
    return ReplicaGrant(
        document=message.document if len(message.document) <= DOCUMENT_LENGTH_MAX else "",
        home=read_gateway_id(message.home_gateway_id, f"{what}.home_gateway_id"),
        home_place=read_place(message.home_place, f"{what}.home_place"),
        accepts=read_rule(message.accepts, f"{what}.accepts") if message.HasField("accepts") else None,
    )


def _peer_grant(message: pb.PeerGrant, what: str) -> PeerGrant:
    return PeerGrant(
        read_gateway_id(message.gateway_id, f"{what}.gateway_id"),
        read_place(message.place, f"{what}.place"),
        _dialled(message.address, f"{what}.address"),
    )


# Parts, some of which gateways also exchange with each other


def version_to_pb(version: ControlVersion) -> pb.ControlVersion:
    return pb.ControlVersion(term=version.term, version=version.version)


def read_version(message: pb.ControlVersion) -> ControlVersion:
    return ControlVersion(message.term, message.version)


def owners_to_pb(owners: Iterable[ReplicaOwner]) -> list[peer_pb2.ReplicaOwner]:
    return [
        peer_pb2.ReplicaOwner(replica_id=each.replica_id, home_gateway_id=each.home, owner_gateway_id=each.owner)
        for each in owners
    ]


def read_owners(messages: Sequence[peer_pb2.ReplicaOwner], what: str) -> tuple[ReplicaOwner, ...]:
    require_few(messages, what, REPLICAS_MAX)
    require_once((each.replica_id for each in messages), f"{what}:")
    return _each(_owner, messages, what)


def _owner(message: peer_pb2.ReplicaOwner, what: str) -> ReplicaOwner:
    return ReplicaOwner(
        read_replica_id(message.replica_id, f"{what}.replica_id"),
        read_gateway_id(message.home_gateway_id, f"{what}.home_gateway_id"),
        read_gateway_id(message.owner_gateway_id, f"{what}.owner_gateway_id")
        if message.owner_gateway_id
        else NO_GATEWAY,
    )


_Message = TypeVar("_Message")


def _each(read: Callable[[_Message, str], _Read], messages: Sequence[_Message], what: str) -> tuple[_Read, ...]:
    return tuple(read(message, f"{what}[{index}]") for index, message in enumerate(messages))


def _document(text: str, what: str) -> str:
    """Text of a JSON object, whose keys are checked by the reader that knows them."""
    require(text.startswith("{"), f"{what} is not a JSON object")
    return read_text(text, what, DOCUMENT_LENGTH_MAX)


def _dialled(text: str, what: str) -> str:
    try:
        port = parse_address(text).port
    except ValueError as error:
        raise WireError(f"{what} is not HOST:PORT") from error
    require(port > 0 and len(text) <= KEY_LENGTH_MAX, f"{what} is not HOST:PORT")
    return text


def _url(text: str, what: str) -> str:
    require(not text or text.startswith(("http://", "https://")), f"{what} is not a URL of http or https")
    require(text.isprintable(), f"{what} is not printable")
    return read_text(text, what, URL_LENGTH_MAX)


def _degrees(number: float, what: str, limit: int) -> float:
    require(math.isfinite(number) and -limit <= number <= limit, f"{what} is not from -{limit} to {limit}")
    return number


def _to_us(duration_ns: int | None) -> int | None:
    return None if duration_ns is None else min(max(duration_ns, 0) // MICROSECOND_NS, _AGE_MAX_US)
