"""Cases of the study of a disaggregated pool that moves: its decode policy, the streams, and the measurements.

One case is played at a time, live, in three regions. The gateway of the region with the pool is killed, another one
adopts the pool, and the pool returns.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import aiohttp
import numpy as np

from gateway.core.features.expert_locality.artifact import EldrArtifact, MoeShape
from gateway.core.kernel.config import OverflowMode
from gateway.core.vocabulary import Jurisdiction, Place, RegionName
from gateway.features.expert_locality.files import eldr_file
from loadgen.demo.members import Member
from loadgen.demo.mesh import Mesh, running_mesh
from loadgen.demo.region_files import write_open_policies
from loadgen.demo.scenario import MODEL, DemoScenario, RegionScenario
from loadgen.demo.watch import Watch
from loadgen.engine.expert_counts import ExpertShape, counts_of
from loadgen.engine.tokens import PromptMessage, chat_prompt
from loadgen.studies.composition.clients import TOPICS, StreamSeen, Users
from loadgen.studies.composition.samples import PoolSample, PoolSampler
from mesh.clock import Clock

HOME = RegionName("eu-west-1")
"""Region with the pool."""
_SECOND_NS = 1_000_000_000
_WHERE = {"us-east-1": (39.0, -77.5), "eu-west-1": (53.3, -6.3), "ap-northeast-1": (35.7, 139.7)}
_ROUND_TRIP_MS = 20
_SLOTS = 3
"""Requests that an engine runs at once: few, so that some users fill a region."""
_STEADY_USERS, _BUSY_USERS = 3, 9
"""Users of a region, and those of a region while its turn lasts: the pool's region and the others take turns, so that
requests overflow out of the pool's region and into it."""
_TURN_S = 4
_SHAPE = ExpertShape(4, 32, 4)


@dataclass(frozen=True, slots=True)
class PolicyCase:
    """Decode policy of the pool that moves."""

    name: str
    policy: str
    keys: Mapping[str, object] = field(default_factory=dict)
    """Keys of the pool's description, but for its artifact's."""
    decode_group: str = ""
    has_experts: bool = False
    """The pool names an artifact of expert locality, and its prefill workers count experts."""


CASES = (
    PolicyCase(
        "BR-H",
        "br_h",
        {
            "decode": {"policy": "br_h"},
            "prediction": {"kind": "exact_match", "requests_min": 30, "refit_interval": "2s", "save_interval": "1s"},
        },
        decode_group="dp",
    ),
    PolicyCase("ELDR", "eldr", {"decode": {"policy": "eldr"}}, has_experts=True),
)


@dataclass(frozen=True, slots=True)
class Stages:
    """Ends of the stages, in nanoseconds of the study's clock."""

    began_ns: int
    killed_ns: int
    adopted_ns: int
    """Another gateway has all of the pool's workers."""
    restarted_ns: int
    home_ns: int
    """The home has its workers again, and no other gateway has them."""
    over_ns: int

    def spans(self) -> dict[str, tuple[int, int]]:
        return {
            "at home": (self.began_ns, self.killed_ns),
            "from the kill to the adoption": (self.killed_ns, self.adopted_ns),
            "adopted": (self.adopted_ns, self.restarted_ns),
            "from the restart to the return": (self.restarted_ns, self.home_ns),
            "home again": (self.home_ns, self.over_ns),
        }


@dataclass(frozen=True, slots=True)
class CompositionOutcome:
    """Measurements of one case, played once."""

    case: str
    policy: str
    stages: Stages
    streams: tuple[StreamSeen, ...]
    samples: tuple[PoolSample, ...]
    dead_host: str
    adopter: str
    """Gateway that adopted the pool."""


class NotPlayed(Exception):
    """The pool did not move as it should; the message says what did not happen."""


@dataclass(frozen=True, slots=True)
class PlayedPace:
    """Times of a case, and the users who always ask."""

    stage_s: float
    """Shortest length of a stage."""
    steady_users: int = _STEADY_USERS
    """Users of each region who ask in every turn; the others of its clients ask in theirs."""
    within_s: float = 45.0
    """Time for each move, and for the last streams."""


async def play(case: PolicyCase, stage_s: float) -> CompositionOutcome:
    """Play the case, with stages of at least `stage_s` seconds. Raises DemoFailure where a process does not start, and
    NotPlayed where the pool is not adopted, or does not return."""
    with tempfile.TemporaryDirectory(prefix="nightside-composition-") as name:
        return await play_scenario(case, scenario_of(case, Path(name)), Path(name), PlayedPace(stage_s))


async def play_scenario(case: PolicyCase, scenario: DemoScenario, folder: Path, pace: PlayedPace) -> CompositionOutcome:
    """Play the case in this scenario, with files and logs in `folder`; raises as `play` does."""
    async with asyncio.TaskGroup() as tasks:
        async with running_mesh(scenario, OverflowMode.ON, folder, tasks, may_gateways_die=True) as mesh:
            return await _Played(case, scenario, mesh, pace).outcome()


class _Played:
    def __init__(self, case: PolicyCase, scenario: DemoScenario, mesh: Mesh, pace: PlayedPace) -> None:
        assert mesh.name is not None, "there is a name"
        self._case = case
        self._mesh = mesh
        self._clock = Clock()
        self._pace = pace
        self._began_ns = self._clock.now_ns()
        self._home: Member = mesh.first_of(HOME)
        self._regions = scenario.regions
        self._users = [
            Users(each.name, scenario.model, mesh.name, self._clock, scenario.seed, self._turn_of(each.name))
            for each in scenario.regions
        ]

    def _turn_of(self, region: RegionName):  # type: ignore[no-untyped-def]
        """Tell whether a user asks at this moment: some always do, and the others in their region's turn."""

        def is_wanted(number: int) -> bool:
            turn = (self._clock.now_ns() - self._began_ns) // (_TURN_S * _SECOND_NS) % 2
            return number < self._pace.steady_users or (turn == 0) == (region == HOME)

        return is_wanted

    async def outcome(self) -> CompositionOutcome:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(users.run(region.clients))
                for users, region in zip(self._users, self._regions, strict=True)
            ]
            sampler = PoolSampler(self._mesh.members.values(), session, self._clock)
            sampling = tasks.create_task(sampler.run())
            watch = Watch(self._mesh, session, self._clock)
            stages, adopter = await self._stages(watch)
            for each in self._users:
                each.is_over = True
            await asyncio.wait(running, timeout=self._pace.within_s)
            for task in (*running, sampling):
                task.cancel()
        streams = tuple(stream for each in self._users for stream in each.seen)
        return CompositionOutcome(
            self._case.name, self._case.policy, stages, streams, tuple(sampler.samples), self._home.host, adopter
        )

    async def _stages(self, watch: Watch) -> tuple[Stages, str]:
        began_ns = self._clock.now_ns()
        await asyncio.sleep(2 * self._pace.stage_s)  # the first half warms up
        lost = await watch.replicas_of([self._home])
        killed_ns = self._clock.now_ns()
        await self._home.child.kill()
        seen = await watch.death(lost, self._pace.within_s)
        if seen.reassigned_ns is None:
            raise NotPlayed(f"the pool was not adopted within {self._pace.within_s:.0f} s")
        others = [each for each in self._mesh.members.values() if each is not self._home]
        having = await watch.replicas_of(others)
        replicas = lost[self._home.gateway_id]
        adopter = next((name for name, served in having.items() if replicas <= served), "")
        if not adopter:
            raise NotPlayed("several gateways adopted parts of the pool")
        await asyncio.sleep(self._pace.stage_s)
        restarted_ns = self._clock.now_ns()
        await self._home.start()
        back = await watch.homecoming(self._home, replicas, self._pace.within_s)
        if back.home_ns is None:
            raise NotPlayed(f"the pool did not return within {self._pace.within_s:.0f} s")
        await asyncio.sleep(self._pace.stage_s)
        return (
            Stages(
                began_ns + round(self._pace.stage_s * _SECOND_NS),
                killed_ns,
                seen.reassigned_ns,
                restarted_ns,
                back.home_ns,
                self._clock.now_ns(),
            ),
            adopter,
        )


def scenario_of(case: PolicyCase, folder: Path) -> DemoScenario:
    """Scenario with open policies and short distances: one region has one prefill worker and three decode workers.
    Its files are written to `folder`."""
    artifacts = folder / "artifacts"
    artifacts.mkdir()
    pool = dict(case.keys)
    if case.has_experts:
        path = artifacts / "eldr.json"
        eldr_file(path).write(_artifact())
        pool |= {"expert_locality": {"artifact": str(path), "look_interval": "1s"}}
    regions = tuple(
        RegionScenario(
            Place(RegionName(name), Jurisdiction("XX")),
            clients=_BUSY_USERS,
            engines=4 if name == HOME else 2,
            slots=_SLOTS,
            prefill_engines=1 if name == HOME else 0,
            pool=pool if name == HOME else {},
            decode_group=case.decode_group if name == HOME else "",
            policies=folder / "policies",
            location=where,
        )
        for name, where in _WHERE.items()
    )
    write_open_policies(regions, folder / "policies")
    round_trips = folder / "round_trips.csv"
    pairs = combinations([each.name for each in regions], 2)
    round_trips.write_text("".join(f"{one},{other},{_ROUND_TRIP_MS}\n" for one, other in pairs))
    experts = f"{_SHAPE.layers}x{_SHAPE.experts}x{_SHAPE.picks}" if case.has_experts else ""
    return DemoScenario(regions=regions, round_trips_file=round_trips, experts=experts, artifacts=artifacts)


def _artifact() -> EldrArtifact:
    """Artifact with one centroid for each subject of the prompts: the direction of a prompt of it alone."""
    prompts = [chat_prompt([PromptMessage("user", 12 * topic)]) for topic in TOPICS]
    rows = np.stack([counts_of(prompt, _SHAPE).astype(np.float32).ravel() for prompt in prompts])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    ones = np.ones((_SHAPE.layers, _SHAPE.experts), "<f4").tobytes()
    shape = MoeShape(_SHAPE.layers, _SHAPE.experts, str(MODEL))
    return EldrArtifact(shape, tuple(range(_SHAPE.layers)), ones, len(rows), rows.astype("<f4").tobytes())
