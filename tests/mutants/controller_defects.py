"""Defects of the controller's core, and of how gateways apply its messages: each is a function that replaces one of the
product's and is wrong in one way.

Nothing runs them here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from controller.core.assignment import Assigner
from controller.core.config import ControllerConfig
from controller.core.controller_core import ControllerCore
from controller.core.effects import Effect, PublishRecords, TellCondition
from controller.core.events import Event
from controller.core.health import GatewayHealth
from controller.core.records import addresses_of
from controller.core.vocabulary import Condition
from controller.dns.route53.changes import Action, RecordChange
from gateway.core.features.disaggregated.config import DecodePolicyName
from gateway.core.kernel.residency import Verdict
from gateway.core.vocabulary import ControlVersion, GatewayId, Outcome, PoolSpec, ReplicaId
from gateway.features.disaggregated.handing_over import travelling, with_arrived
from loadgen.simulator.attachments import SimAttachment, served
from loadgen.simulator.chaos import ChaosKind
from mesh.control.vocabulary import ControlSnapshot
from tests.mutants.seams import Mutant, Original

MUTANTS: dict[str, Mutant] = {}
_TESTS = "tests/unit/controller/core"


def mutant(
    what: str, seam: str, *, hunter: str = "", kind: ChaosKind = ChaosKind.CONTROLLER
) -> Callable[[Original], Original]:
    """Register a function to replace the one at a seam, as a mutant named after the function."""

    def register(mutated: Original) -> Original:
        assert mutated.__name__ not in MUTANTS, f"two mutants are called {mutated.__name__}"
        MUTANTS[mutated.__name__] = Mutant(what, seam, mutated, hunter, kind)
        return mutated

    return register


# Pools


@mutant("a pool's workers are assigned one by one", "controller.core.assignment:_units", kind=ChaosKind.MOVING_POOLS)
def tears_pools_apart(original: Original, replicas: Any) -> Iterator[tuple[tuple[ReplicaId, ...], Any]]:
    for each in replicas.values():
        yield (each.replica_id,), each


@mutant(
    "a pool that moves is decoded by the default policy",
    "gateway.core.features.disaggregated.config:decode_of",
    kind=ChaosKind.MOVING_POOLS,
)
def moves_without_its_policy(original: Original, spec: PoolSpec, *, foresees: bool = False) -> Any:
    return original(replace(spec, features=()), foresees=foresees)


@mutant(
    "a pool that moves looks ahead no more",
    "gateway.core.features.disaggregated.config:decode_of",
    kind=ChaosKind.MOVING_POOLS,
)
def moves_without_looking_ahead(original: Original, spec: PoolSpec, *, foresees: bool = False) -> Any:
    found = original(spec, foresees=foresees)
    return replace(found, policy=DecodePolicyName.BR_0) if found.policy is DecodePolicyName.BR_H else found


@mutant(
    "a decode worker that comes back counts as empty of the requests from before",
    "gateway.core.features.disaggregated.tier:DecodeTier.join",
    kind=ChaosKind.MOVING_POOLS,
)
def forgets_earlier_requests(original: Original, *worker: Any, **more: Any) -> None:
    original(*worker, **{**more, "earlier": 0})


@mutant(
    "what a gateway left out is moved while the mesh is frozen",
    "controller.core.assignment:_Search.may_keep",
    kind=ChaosKind.MOVING_POOLS,
)
def moves_what_was_refused_while_frozen(original: Original, self: Any, owner: GatewayId, required: Any) -> bool:
    return original(self, owner, required) and not required.is_refused_by(owner)


@mutant(
    "what a gateway left out is offered to it again at once",
    "controller.core.controller_core:ControllerCore._grants_left_out",
    kind=ChaosKind.MOVING_POOLS,
)
def forgets_what_was_refused(original: Original, self: Any, event: Any, now_ns: int) -> None:
    original(self, event, now_ns)
    self.refusals.clear()


# Histories of pools


@mutant(
    "the history of a pool goes to every gateway",
    "controller.core.pool_histories:PoolHistories.due",
    kind=ChaosKind.MOVING_POOLS,
)
def hands_histories_to_all(original: Original, self: Any, gateway_id: GatewayId, held: Any, mesh: Any) -> Iterator[Any]:
    yield from original(self, gateway_id, held, replace(mesh, owners=dict.fromkeys(mesh.owners, gateway_id)))


@mutant(
    "the history of a pool goes where policies do not let it be",
    "controller.core.pool_histories:_why_not_at",
    kind=ChaosKind.MOVING_POOLS,
)
def hands_histories_anywhere(original: Original, place: Any, history: Any, mesh: Any) -> str:
    return ""


@mutant(
    "tenants with stricter rules do not count where a history may be",
    "gateway.core.kernel.residency:may_hold_records",
    hunter=f"{_TESTS}/test_pool_histories.py",
)
def forgets_strict_tenants(original: Original, policy: Any, place: Any) -> Any:
    return original(replace(policy, tenants={}), place)


@mutant(
    "any gateway may send the history of a pool",
    "controller.core.pool_histories:PoolHistories._fault_of_sender",
    hunter=f"{_TESTS}/test_pool_histories.py",
)
def takes_histories_of_all(original: Original, self: Any, sender: GatewayId, history: Any, mesh: Any) -> str:
    return ""


@mutant(
    "the columns of a history are not checked",
    "mesh.control.pool_history:_fault",
    hunter="tests/unit/mesh/control/test_pool_history.py",
)
def believes_every_history(original: Original, history: Any) -> str:
    return ""


@mutant(
    "a gateway sends on what another one recorded",
    "gateway.features.disaggregated.predictors:Predictors._travelling",
    hunter="tests/unit/gateway/features/disaggregated/test_predictors.py",
)
def sends_on_what_it_was_sent(original: Original, self: Any, history: Any, name: Any) -> Any:
    sent = original(self, history, name)
    known = with_arrived(history.snapshot(), self._arrived_of(name), 4_000)
    return travelling(known, sent.recorded_by, sent.home, sent.pool)


@mutant(
    "an older history replaces a newer one of the same gateway",
    "gateway.features.disaggregated.handing_over:ArrivedHistories.take",
    hunter="tests/unit/gateway/features/disaggregated/test_handing_over.py",
)
def takes_older_histories(original: Original, self: Any, history: Any, now_ns: int) -> bool:
    self._arrived.pop(history.recorded_by, None)
    return bool(original(self, history, now_ns))


@mutant(
    "histories stay at a controller where they may not be any more",
    "controller.core.pool_histories:PoolHistories.look_again",
    hunter=f"{_TESTS}/test_pool_histories.py",
)
def keeps_forbidden_histories(original: Original, self: Any, mesh: Any) -> None:
    return None


@mutant(
    "peers refuse the heartbeats of a gateway that serves an adopted pool",
    "mesh.wire:read_pool_name",
    hunter="tests/unit/gateway/peers/test_codec.py",
)
def knows_no_adopted_pool(original: Original, text: str, what: str) -> Any:
    return original(text.replace("@", " "), what)


# Adopters


@mutant(
    "a pool is given to a gateway that lacks its connector or refused it",
    "controller.core.adoption:_unable",
    hunter=f"{_TESTS}/test_assignment.py::TestPools",
)
def able_to_do_anything(original: Original, gateways: Any, demand: Any) -> dict[GatewayId, str]:
    return {}


@mutant(
    "what a gateway leaves out is offered to no other",
    "controller.core.controller_core:ControllerCore._grants_left_out",
    hunter=f"{_TESTS}/test_controller_core.py::TestLeftOut",
)
def deaf_to_refusals(original: Original, core: ControllerCore, event: Event, now_ns: int) -> None:
    return


# Trust in observations


@mutant(
    "a controller that loses most gateways at once believes it",
    "controller.core.controller_core:ControllerCore._freeze",
)
def never_freezes(original: Original, core: ControllerCore, reason: str, now_ns: int) -> None:
    return


@mutant("replicas move while the controller is frozen", "controller.core.assignment:Assigner.wanted")
def moves_while_frozen(original: Original, assigner: Assigner, owners: Any, now_ns: int) -> Any:
    mesh = assigner._mesh
    frozen, mesh.frozen = mesh.frozen, ""
    wanted = original(assigner, owners, now_ns)
    mesh.frozen = frozen
    return wanted


@mutant(
    "one witness is proof that a gateway is gone",
    "controller.core.health:GatewayHealth.look_for_proof",
    hunter=f"{_TESTS}/test_controller_core.py::TestFrozen",
)
def one_witness_is_enough(
    original: Original, health: GatewayHealth, config: ControllerConfig, witnesses: Collection[GatewayId]
) -> None:
    health.is_proven_gone = health.was_refused and not health.connected


_Witnesses = Mapping[GatewayId, int]
_SILENT_AT = "controller.core.health:GatewayHealth.silent_at_ns"
_UNKNOWN = f"{_TESTS}/test_health.py::TestUnknown"


@mutant("a gateway that a peer hears is called down", _SILENT_AT)
def hears_no_witness(
    original: Original, health: GatewayHealth, config: ControllerConfig, _: _Witnesses, others: int, since: int | None
) -> Any:
    return original(health, config, {}, others, since)


@mutant("a new controller believes no witness of a gateway that it has not heard", _SILENT_AT, hunter=_UNKNOWN)
def believes_no_witness_yet(
    original: Original, health: GatewayHealth, config: ControllerConfig, said: _Witnesses, _: int, since: int | None
) -> Any:
    return original(health, config, said, 2 * len(health.said_by), since)


@mutant("one witness is most of the others", _SILENT_AT, hunter=_UNKNOWN)
def one_witness_is_most(
    original: Original, health: GatewayHealth, config: ControllerConfig, said: _Witnesses, _: int, since: int | None
) -> Any:
    return original(health, config, said, 1, since)


@mutant("a new controller that hears no gateway calls others down", _SILENT_AT, hunter=_UNKNOWN)
def never_doubts_itself(
    original: Original, health: GatewayHealth, config: ControllerConfig, said: _Witnesses, others: int, _: int | None
) -> Any:
    return original(health, config, said, others, 0)


@mutant("a witness that has long said nothing is believed", _SILENT_AT, hunter=f"{_TESTS}/test_health.py::TestSilence")
def believes_old_words(
    original: Original, health: GatewayHealth, config: ControllerConfig, said: _Witnesses, *more: object
) -> Any:
    return original(health, config, dict.fromkeys(said, 1 << 62), *more)


@mutant("one failed probe is enough", _SILENT_AT)
def one_probe_is_enough(
    original: Original, health: GatewayHealth, config: ControllerConfig, *more: object
) -> int | None:
    found: int | None = original(health, replace(config, probe_failures_min=1), *more)
    return found


# Moves of replicas, and their rate


@mutant("a gateway that died is up at once", "controller.core.health:GatewayHealth.back_at_ns")
def trusts_the_dead(original: Original, health: GatewayHealth, config: ControllerConfig) -> int | None:
    was_gone, health.was_gone = health.was_gone, False
    found: int | None = original(health, config)
    health.was_gone = was_gone
    return found


@mutant("a gateway that is silent again and again is up at once", "controller.core.health:GatewayHealth.back_at_ns")
def trusts_who_flaps(original: Original, health: GatewayHealth, config: ControllerConfig) -> int | None:
    falls, health.falls = health.falls, min(health.falls, 1)
    found: int | None = original(health, config)
    health.falls = falls
    return found


@mutant("a gateway that was silent is up before it answers a probe", "controller.core.health:GatewayHealth.back_at_ns")
def trusts_who_only_connects(original: Original, health: GatewayHealth, config: ControllerConfig) -> int | None:
    has_answered, health.has_answered = health.has_answered, True
    found: int | None = original(health, config)
    health.has_answered = has_answered
    return found


@mutant("who returns gets everything back at once, unwatched", "controller.core.health:GatewayHealth.back_at_ns")
def returns_unwatched(original: Original, health: GatewayHealth, config: ControllerConfig) -> int | None:
    return health.answers_since_ns


@mutant("clients of who returns alone are led nowhere", "controller.core.controller_core:areas_of")
def names_none_that_returns(original: Original, *known: Any, returning: Any, **more: Any) -> Any:
    return original(*known, returning=(), **more)


@mutant("who returns is relied on, alone or not", "controller.core.controller_core:ControllerCore._rely_on_those_named")
def relies_on_all_that_return(original: Original, core: ControllerCore, areas: Any) -> None:
    for gateway_id, health in core.health.items():
        if health.condition is Condition.RETURNING:
            health.condition = Condition.ALONE
            core._effects.append(TellCondition(gateway_id, Condition.ALONE, ""))


@mutant("clients from anywhere are led to who returns", "controller.core.controller_core:ControllerCore._publish")
def leads_anywhere_to_who_returns(original: Original, core: ControllerCore, areas: Any) -> None:
    original(core, areas)
    back = [core.gateways[each] for each, health in core.health.items() if health.condition is Condition.RETURNING]
    core._effects = [
        PublishRecords(replace(each.tree, anywhere=(*each.tree.anywhere, *addresses_of(back))))
        if isinstance(each, PublishRecords)
        else each
        for each in core._effects
    ]


@mutant(
    "a name leads where the last records did, allowed or not",
    "controller.core.controller_core:with_last",
    hunter=f"{_TESTS}/test_controller_core.py",
)
def keeps_the_last_answer_whole(original: Original, areas: Any, last: Any, *_: Any) -> Any:
    before = {each.region: each for each in last}
    return tuple(each if each.gateways else before.get(each.region, each) for each in areas)


@mutant("who returns is named before it answers", "controller.core.controller_core:ControllerCore._areas")
def names_who_only_connects(original: Original, core: ControllerCore) -> Any:
    answered = {gateway_id: health.has_answered for gateway_id, health in core.health.items()}
    for health in core.health.values():
        health.has_answered = True
    areas = original(core)
    for gateway_id, health in core.health.items():
        health.has_answered = answered[gateway_id]
    return areas


@mutant("everything that may move moves at once", "controller.core.assignment:Assigner._step")
def moves_all_at_once(original: Original, assigner: Assigner, waiting: Any, now_ns: int) -> Any:
    if assigner._mesh.frozen:
        return original(assigner, waiting, now_ns)
    return {replica_id: goal for moves in waiting.values() for replica_id, goal in moves}


@mutant("nothing ever comes home", "controller.core.assignment:Assigner._step")
def nothing_comes_home(original: Original, assigner: Assigner, waiting: Any, now_ns: int) -> Any:
    return {}


@mutant(
    "a request is refused by policy while another gateway has the replicas of its region",
    "gateway.core.kernel.feasibility:_why_no_target",
)
def blames_the_policy(original: Original, core: Any, profile: Any, request_class: Any, stamp: Any) -> Any:
    if core.is_awaited(request_class.model):
        return Outcome.REJECTED_RESIDENCY_PROCESSING, "only in forbidden places"
    return original(core, profile, request_class, stamp)


@mutant("any gateway may adopt, whatever the home's policy says", "controller.core.adoption:may_accept")
def adopts_anywhere(original: Original, policy: Any, origin: Any) -> Verdict:
    return Verdict(True, "")


@mutant("a closed jurisdiction's clients are led out of it", "controller.core.records:areas_of")
def leads_anywhere(original: Original, *there: Any, **further: Any) -> Any:
    *mesh, config = there
    return original(*mesh, replace(config, closed_jurisdictions=frozenset()), **further)


@mutant(
    "the name leads to a region that sends requests further than their own may",
    "controller.core.records:_goes_no_further",
)
def leads_to_who_sends_further(original: Original, ours: Any, theirs: Any) -> bool:
    return True


@mutant("the name leads to a region that logs more than the client's own", "controller.core.records:_logs_no_more")
def leads_to_who_logs_more(original: Original, own: Any, there: Any) -> bool:
    return True


@mutant(
    "the name still leads to who is down",
    "controller.core.state:MeshState.living",
    hunter=f"{_TESTS}/test_controller_core.py::TestRecords",
)
def names_the_dead(original: Original, core: ControllerCore) -> Any:
    return list(core.gateways.values())


@mutant(
    "gateways are told before anything is written down",
    "controller.core.controller_core:ControllerCore.handle",
    hunter=f"{_TESTS}/test_controller_core.py::TestDifferences",
)
def tells_before_it_writes(original: Original, core: ControllerCore, event: Event, now_ns: int) -> list[Effect]:
    return list(reversed(original(core, event, now_ns)))


# Leadership


@mutant(
    "a store takes what a deposed controller writes",
    "loadgen.simulator.shared_store:SharedStore.is_held",
    kind=ChaosKind.PAIR,
)
def fences_nobody(original: Original, store: Any, key: str) -> bool:
    return True


@mutant(
    "SQLite takes what a deposed controller writes",
    "controller.store.sqlite:SqliteStore._check_holding",
    hunter="tests/unit/controller/store/test_sqlite.py::TestConformance",
)
def fences_nobody_in_sqlite(original: Original, store: Any, cursor: Any, holding: Any) -> None:
    return


@mutant("a lease is another's at first sight", "controller.store.lease_watch:LeaseWatch.has_ended", kind=ChaosKind.PAIR)
def takes_over_at_first_sight(original: Original, watch: Any, mark: Any, lease_ns: int, **times: int) -> bool:
    return True


@mutant(
    "who stands by does not mind that it could not see the store",
    "controller.store.lease_watch:LeaseWatch.has_ended",
    hunter="tests/unit/controller/store/test_lease_watch.py",
)
def minds_no_silence(
    original: Original, watch: Any, mark: Any, lease_ns: int, *, asked_ns: int, answered_ns: int
) -> Any:
    watch._last_ns = answered_ns
    return original(watch, mark, lease_ns, asked_ns=asked_ns, answered_ns=answered_ns)


@mutant(
    "a lease is never over by one's own clock",
    "loadgen.simulator.controller:SimController.is_leading",
    kind=ChaosKind.PAIR,
)
def leads_for_ever(original: Original, controller: Any) -> bool:
    return controller.core is not None


@mutant(
    "a lease is counted from when it ends elsewhere", "controller.store.lease_watch:lease_end_ns", kind=ChaosKind.PAIR
)
def has_no_margin(original: Original, asked_ns: int, lease_ns: int, margin_ns: int) -> int:
    return asked_ns + 2 * lease_ns


# Gateways' handling of snapshots


@mutant("an older snapshot is taken in after a newer one", "loadgen.simulator.attachments:SimAttachment.snapshot_came")
def takes_old_snapshots(original: Original, attachment: SimAttachment, life: int, snapshot: ControlSnapshot) -> None:
    if attachment._life == life and attachment.taken.is_newer_than(snapshot.version):
        attachment._snapshot = None
    original(attachment, life, snapshot)


@mutant(
    "nobody asks who has what when a peer serves by a newer snapshot",
    "loadgen.simulator.attachments:SimAttachment.heard",
)
def asks_no_peer(original: Original, attachment: SimAttachment, peer: GatewayId, version: ControlVersion) -> None:
    attachment._asking_until_ns[peer] = 1 << 62
    original(attachment, peer, version)


@mutant(
    "a snapshot that takes something from a gateway is not taken in",
    "loadgen.simulator.attachments:SimAttachment.snapshot_came",
)
def keeps_what_is_taken(original: Original, attachment: SimAttachment, life: int, snapshot: ControlSnapshot) -> None:
    own = (each.replica_id for each in attachment.gateway.spec.replicas)
    serves = served(own, attachment.gateway_id, attachment._snapshot, ())
    if set(serves) <= set(served(serves, attachment.gateway_id, snapshot, ())):
        original(attachment, life, snapshot)


@mutant(
    "what is away is served by its home all the same",
    "loadgen.simulator.attachments:served",
)
def serves_what_is_away(
    original: Original, own: Any, gateway_id: GatewayId, snapshot: ControlSnapshot | None, disowned: Any
) -> tuple[ReplicaId, ...]:
    bare = None if snapshot is None else replace(snapshot, away=())
    found: tuple[ReplicaId, ...] = original(own, gateway_id, bare, disowned)
    return found


@mutant(
    "an adopted replica takes from anywhere",
    "loadgen.simulator.controller:SimController._accepts",
    kind=ChaosKind.MOVING_POOLS,
)
def accepts_anything(original: Original, controller: Any, home: Any) -> None:
    return None


# Rights to write records


_DNS = "tests/unit/controller/dns"


@mutant(
    "a batch for Route53 is taken whoever has written meanwhile",
    "controller.dns.route53.provider:Route53Dns._batches",
    hunter=f"{_DNS}/route53/test_provider.py",
)
def batches_without_the_claim_as_it_was_read(
    original: Original, provider: Any, changes: Any, claim: Any, said: Any
) -> Any:
    batches = original(provider, changes, claim, said)
    return [
        tuple(
            RecordChange(Action.UPSERT, each.record_set) if each.record_set.kind == "TXT" else each
            for each in batch
            if each.action is not Action.DELETE or each.record_set.kind != "TXT"
        )
        for batch in batches
    ]


@mutant(
    "an update is taken whoever has written meanwhile",
    "controller.dns.rfc2136:_Update._add",
    hunter=f"{_DNS}/test_rfc2136.py",
)
def updates_without_prerequisites(original: Original, update: Any, at: Any, old: Any, new: Any) -> None:
    before = list(update.message.prerequisite)
    original(update, at, old, new)
    update.message.prerequisite = before


@mutant(
    "records are written without a look at the lease",
    "controller.lease:Lease.check",
    hunter=f"{_DNS}/route53/test_provider.py::test_a_write_needs_a_lease_that_lasts",
)
def writes_past_its_lease(original: Original, lease: Any, needed_s: float = 0.0) -> None:
    return
