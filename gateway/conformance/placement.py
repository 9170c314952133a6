"""Checks that a placement policy keeps to what a core relies on: for its author, from a test or from the command line.

It reads the policy's source and runs it in a small mesh whose state changes all the time. It shows that a policy is
safe to run, not that it places well.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType

import click
from msgspec import Struct

from gateway.config.placement_plug_ins import find_policy, policy_fault
from gateway.config.plug_ins import PlugInUnusable
from gateway.conformance.purity import imports_of, impurities
from gateway.conformance.upsets import UPSETS
from gateway.core.config import CoreConfig
from gateway.core.events import ConfigApplied, Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.config import OverflowMode, PlacementConfig
from gateway.core.kernel.effects import RecordShadow, StartLeg
from gateway.core.kernel.events import (
    AssignmentApplied,
    FirstToken,
    LegEnded,
    PeersObserved,
    PolicyApplied,
    ReplicasObserved,
    RequestArrived,
    ResponseStored,
)
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.placement.fleet import Fleet
from gateway.core.placement.policy import Policy
from gateway.core.placement.prefix_chain import prefix_chain, prefix_salt
from gateway.core.vocabulary import (
    DEFAULT_POOL,
    GatewayId,
    Jurisdiction,
    LegResult,
    LoadReport,
    ModelCapacity,
    ModelName,
    ModelQueue,
    PeerObservation,
    PeerSpec,
    Place,
    PlaceRule,
    PoolName,
    RefusalReason,
    RegionName,
    ReplicaId,
    ReplicaObservation,
    ReplicaSpec,
    RequestId,
    RequestProfile,
    TargetKind,
    TenantName,
)

REQUESTS = 2_000
BOOKS_BYTES_MAX = 64 * 2**10
"""Bytes that a policy may hold after so many requests to some ten targets, an index of its own included."""
_INDEX_BYTES_MAX = 16 * 2**10
"""Bytes of each prefix index in the config of this test; an index that keeps to them is full long before the end."""


def conformance_faults(
    policy: type[Policy], options: Mapping[str, bool | int | float | str] | None = None, requests: int = REQUESTS
) -> list[str]:
    """Faults of a policy, in words; empty if it may decide. Takes seconds; fewer requests take less and show less.

    A second process finds the class again by its name, so it has to lie in a module that can be imported.
    """
    if fault := policy_fault(policy):
        return [f"{policy.__name__} {fault}"]
    told = dict(options or {})
    try:
        policy.check_options(told)
    except ValueError as error:
        return [f"check_options refuses the options that this test was given: {error}"]
    return [*_source_faults(policy), *_behaviour_faults(policy, told, requests)]


def _behaviour_faults(policy: type[Policy], options: dict[str, bool | int | float | str], requests: int) -> list[str]:
    first = _play(policy, options, requests)
    if first.fault:
        return [first.fault]
    faults = []
    if _play(policy, options, requests).digest != first.digest:
        faults.append("the same seed told another story the second time: something outlives the policy")
    elif _digest_elsewhere(policy, options, requests) != first.digest:
        faults.append("the same seed told another story in another process: a set was iterated, or hashes were used")
    if first.books_bytes > BOOKS_BYTES_MAX:
        faults.append(f"it holds {first.books_bytes} bytes after {requests} requests: its books have no bound")
    return faults


def _digest_elsewhere(policy: type[Policy], options: dict[str, bool | int | float | str], requests: int) -> str:
    """Digest of the same run in a process with other hashes of strings."""
    seed = "1" if sys.flags.hash_randomization == 0 else "0"
    name = f"{policy.__module__}:{policy.__qualname__}"
    command = [
        sys.executable,
        "-m",
        "gateway.conformance.placement",
        "--digest",
        "--requests",
        str(requests),
        "--options",
        json.dumps(options),
        name,
    ]
    environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)  # noqa: S603 - this very module
    return done.stdout.strip()


# Source


def _source_faults(policy: type[Policy]) -> Iterator[str]:
    """Faults in the policy's module, and in the modules of its package that it imports."""
    package = policy.__module__.partition(".")[0]
    left, seen = [policy.__module__], {policy.__module__}
    while left:
        name = left.pop()
        tree = ast.parse(_source_of(name))
        yield from (f"{name}:{fault}" for fault in (*impurities(tree, [package]), *_chances_of(tree)))
        own = {each for each in _names_of(tree) if each.partition(".")[0] == package and _is_module(each)}
        left += sorted(own - seen)
        seen |= own


def _source_of(module: str) -> str:
    spec = find_spec(module)
    assert spec is not None, f"{module} is no module"
    assert spec.origin is not None, f"{module} has no source"
    path = Path(spec.origin)
    return path.with_name(f"{path.name.partition('.')[0]}.py").read_text(encoding="utf-8")


def _is_module(name: str) -> bool:
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:
        return False
    return spec is not None and spec.origin is not None


def _names_of(tree: ast.AST) -> Iterator[str]:
    """Names of all that may be a module."""
    for node, module in imports_of(tree):
        yield module
        if isinstance(node, ast.ImportFrom):
            yield from (f"{module}.{each.name}" for each in node.names)


def _chances_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="random", names=names) if any(each.name != "Random" for each in names):
                yield f"{node.lineno}: takes chance from random: it is the fleet's"
            case ast.Attribute(value=ast.Name(id="random"), attr=attribute) if attribute != "Random":
                yield f"{node.lineno}: uses random.{attribute}: chance is the fleet's"
            case ast.Call(func=ast.Name(id="Random") | ast.Attribute(value=ast.Name(id="random"), attr="Random")):
                yield f"{node.lineno}: draws chance of its own: it is the fleet's"
            case _:
                pass


# Behaviour


class _Story(Struct, frozen=True):
    digest: str
    books_bytes: int
    fault: str = ""


def _play(policy: type[Policy], options: dict[str, bool | int | float | str], requests: int) -> _Story:
    """Run one gateway under the policy, with the same events each time."""
    walk = _Walk(policy, options, requests)
    try:
        walk.run()
    except Exception as error:  # noqa: BLE001 - any exception would have stopped the gateway
        return _Story("", 0, f"after {walk.asked} requests: {type(error).__name__}: {error}")
    assert walk.made is not None, "it was named in the config"
    return _Story(walk.digest.hexdigest(), _size_of(walk.made))


_MODEL, _TENANT = ModelName("model"), TenantName("tenant")
_HOME = Place(RegionName("home"), Jurisdiction("AA"))
_ABROAD = Place(RegionName("abroad"), Jurisdiction("BB"))
_FAR = Place(RegionName("far"), Jurisdiction("CC"))
_EVERYWHERE = PlaceRule(regions=frozenset({_HOME.region, _ABROAD.region, _FAR.region}))
_ANY_POOL = PoolName("")
_BLOCK_BYTES = 16
_MS = 1_000_000
_RESULTS = [*[LegResult.COMPLETED] * 12, LegResult.FAILED, LegResult.BUSY]


@dataclass
class _Walk:
    """Random run of requests, with and without earlier turns or following a stored response, among targets that come,
    go, fill up, fail and refuse."""

    policy: type[Policy]
    options: dict[str, bool | int | float | str]
    requests: int = REQUESTS
    asked: int = 0
    made: Policy | None = None

    def __post_init__(self) -> None:
        self.digest = hashlib.sha256()
        self._rng = random.Random(7)
        self._core = GatewayCore(GatewayId("home-1"), _HOME, seed=7, plug_ins=lambda _: self._make)
        self._now_ns = 0
        self._named = 0
        self._replicas = [self._new_replica() for _ in range(5)]
        self._peers = [self._new_peer(place) for place in (_HOME, _HOME, _ABROAD, _FAR)]
        self._running: dict[RequestId, StartLeg] = {}
        self._heard = 0

    def run(self) -> None:
        self._configure()
        self._tell(PolicyApplied(ResidencyPolicy(_HOME, _EVERYWHERE, _EVERYWHERE, digest="conformance")))
        self._assign()
        chances: list[tuple[Callable[[], None], int]] = [
            (self._ask, 40),
            (self._answer, 40),
            (self._probe, 10),
            (self._hear, 10),
            (self._replace_one, 1),
            (self._configure, 1),
            (self._upset, 1),
        ]
        steps, weights = [step for step, _ in chances], [weight for _, weight in chances]
        while self.asked < self.requests:
            (step,) = self._rng.choices(steps, weights)
            step()
            self._now_ns += self._rng.randrange(20 * _MS)

    def note(self, effect: RecordShadow | StartLeg) -> None:
        decision = effect.decision
        line = f"{effect.request_id} {effect.target} {decision.reason} {decision.matched_blocks}\n"
        self.digest.update(line.encode())

    def _make(self, fleet: Fleet, config: PlacementConfig) -> Policy:
        self.made = self.policy(fleet, config)
        return self.made

    # Events

    def _ask(self) -> None:
        if len(self._running) > 100:
            self._answer()
        self.asked += 1
        conversation = self._rng.randrange(50)
        prompt = bytes([conversation]) * self._rng.randrange(600) + self._rng.randbytes(self._rng.randrange(40))
        chain, _ = prefix_chain(prefix_salt(_MODEL, _TENANT, ""), [prompt], block_bytes=_BLOCK_BYTES, blocks_max=64)
        session = f"session {conversation}" if self._rng.random() < 0.5 else f"session of request {self.asked}"
        request_id = RequestId(f"request-{self.asked}")
        follows = f"response {conversation}" if self._rng.random() < 0.2 else ""
        profile = RequestProfile(
            request_id, _MODEL, _TENANT, len(prompt), chain, _BLOCK_BYTES, session, stream=True, follows=follows
        )
        self._tell(RequestArrived(profile, self._now_ns + 60_000 * _MS))

    def _answer(self) -> None:
        if not self._running:
            return
        leg = self._running.pop(self._rng.choice(list(self._running)))
        result = self._rng.choice(_RESULTS)
        refusal = None
        if leg.target.kind is TargetKind.PEER and self._rng.random() < 0.3:
            result, refusal = LegResult.REFUSED, RefusalReason.BUSY
        if result is LegResult.COMPLETED:
            self._tell(ResponseStored(leg.request_id, leg.attempt, leg.leg, f"response {self._rng.randrange(50)}"))
            self._tell(FirstToken(leg.request_id, leg.attempt, leg.leg))
        self._tell(LegEnded(leg.request_id, leg.attempt, leg.leg, result, refusal))

    def _probe(self) -> None:
        rng = self._rng
        self._tell(
            ReplicasObserved(
                tuple(
                    ReplicaObservation(
                        spec.replica_id,
                        self._now_ns,
                        rng.random() < 0.95,
                        running=rng.randrange(8),
                        waiting=rng.choice((0, 0, 0, 0, 1)),
                    )
                    for spec in self._replicas
                )
            )
        )

    def _hear(self) -> None:
        self._heard += 1
        self._tell(PeersObserved(tuple(self._observation(spec) for spec in self._peers)))

    def _observation(self, spec: PeerSpec) -> PeerObservation:
        rng = self._rng
        free = rng.randrange(8)
        capacities = (ModelCapacity(_MODEL, DEFAULT_POOL, spec.place, 8, free, room=free),)
        queues = (ModelQueue(_MODEL, rng.randrange(4)),)
        report = LoadReport(spec.gateway_id, spec.place, self._heard, True, 1, "conformance", capacities, queues)
        rtt_ns = rng.randrange(1, 200) * _MS
        return PeerObservation(report, self._now_ns, self._now_ns, rtt_ns, rtt_ns)

    def _replace_one(self) -> None:
        """Replace a target; the new one gets the slot of the old."""
        if self._rng.random() < 0.7:
            self._replicas[self._rng.randrange(len(self._replicas))] = self._new_replica()
        else:
            index = self._rng.randrange(len(self._peers))
            self._peers[index] = self._new_peer(self._peers[index].place)
        self._assign()

    def _configure(self) -> None:
        overflow = self._rng.choice((OverflowMode.ON, OverflowMode.ON, OverflowMode.SHADOW))
        placement = PlacementConfig(
            "under test", "0", self.options, overflow=overflow, prefix_index_bytes_max=_INDEX_BYTES_MAX
        )
        self._tell(ConfigApplied(CoreConfig(placement)))

    def _upset(self) -> None:
        """Submit an event of an optional feature."""
        for upset in UPSETS:
            self._tell(upset(self._rng, [_HOME.region, _ABROAD.region, _FAR.region]))

    # Helpers

    def _assign(self) -> None:
        self._tell(
            AssignmentApplied(self._core.assignment_version + 1, tuple(self._replicas), tuple(self._peers)),
        )

    def _new_replica(self) -> ReplicaSpec:
        self._named += 1
        return ReplicaSpec(ReplicaId(f"replica-{self._named}"), _HOME, (_MODEL,))

    def _new_peer(self, place: Place) -> PeerSpec:
        self._named += 1
        return PeerSpec(GatewayId(f"{place.region}-{self._named}"), place)

    def _tell(self, event: Event) -> None:
        for effect in self._core.handle(event, self._now_ns):
            if isinstance(effect, RecordShadow | StartLeg):
                known, blocks = effect.decision.matched_blocks, effect.decision.prompt_blocks
                assert 0 <= known <= blocks, f"chose a target that knows {known} of a prompt's {blocks} blocks"
                self.note(effect)
            if isinstance(effect, StartLeg):
                self._running[effect.request_id] = effect


def _size_of(policy: Policy) -> int:
    """Bytes of the objects that the policy alone holds: nothing that its fleet or config holds."""
    shared = _reached_from([policy.fleet, policy.config], set())
    return sum(map(sys.getsizeof, _reached_from([policy], set(shared)).values()))


def _reached_from(roots: list[object], known: set[int]) -> dict[int, object]:
    """Objects that the roots refer to, themselves included, by identity; without types, functions and what is known."""
    found: dict[int, object] = {}
    left = roots
    while left:
        each = left.pop()
        if id(each) in known or isinstance(each, type | ModuleType | FunctionType):
            continue
        known.add(id(each))
        found[id(each)] = each
        left += gc.get_referents(each)
        if isinstance(each, dict):
            left += each  # The collector leaves out keys that are strings.
    return found


# Command line


@click.command()
@click.argument("name")
@click.option("--options", default="{}", help="Set policy_options, as JSON.")
@click.option("--requests", type=click.IntRange(1), default=REQUESTS, help="Set the number of requests.")
@click.option("--digest", is_flag=True, help="Print the digest of one run, without checks.")
def main(name: str, options: str, requests: int, *, digest: bool) -> None:
    """Test the policy that is installed as NAME, or that is found at module:Class.

    Exit codes: 0 it may decide, 1 it may not, 2 it cannot be found.
    """
    try:
        policy = _find(name)
    except (PlugInUnusable, ImportError, AttributeError) as error:
        click.echo(str(error), err=True)
        raise SystemExit(2) from error
    told = json.loads(options)
    if digest:
        story = _play(policy, told, requests)
        click.echo(story.fault or story.digest)
        return
    faults = conformance_faults(policy, told, requests)
    for fault in faults:
        click.echo(fault)
    click.echo(f"{name}: {len(faults)} faults" if faults else f"{name} may decide")
    raise SystemExit(bool(faults))


def _find(name: str) -> type[Policy]:
    module, colon, attribute = name.partition(":")
    if not colon:
        return find_policy(name)
    found: object = import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    if not isinstance(found, type) or not issubclass(found, Policy):
        raise PlugInUnusable(f"{name} {policy_fault(found)}")
    return found


if __name__ == "__main__":
    main()
