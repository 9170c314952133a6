"""Measures what a gateway takes for each request, chunk, stream, replica and peer, by the clients, engines and readings
of the relay bench. It judges nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import uvloop
import yaml
from rich.console import Console

from loadgen.bench import core
from loadgen.bench.relay import machine, published
from loadgen.bench.relay.client import HeldStreams, WrongAnswer, closed_loop, now_s, open_streams
from loadgen.bench.relay.figures import RelayFigure, by_round
from loadgen.bench.relay.main import RelayPlan, RelayRun
from loadgen.bench.relay.measures import (
    QUICK,
    TOKENS_PER_S,
    Effort,
    MeasureName,
    RelayBench,
    Subject,
    ask_until_ready,
)
from loadgen.bench.relay.processes import BenchFailure, running, running_engines
from loadgen.bench.relay.relays import FORWARD, NIGHTSIDE, SIBLINGS, mesh_of
from loadgen.bench.relay.setting import Relay, RelaySetting
from loadgen.interrupts import leaves
from loadgen.studies.capacity.links import CountedLinks, counted_links
from loadgen.studies.capacity.rule import CapacityCosts
from loadgen.studies.long.sampling import read_process

MEASURED = (
    MeasureName.REQUESTS,
    MeasureName.SATURATION,
    MeasureName.CHUNKS,
    MeasureName.LONG_PROMPTS,
    MeasureName.JOBS,
    MeasureName.MEMORY,
)
FEW, MANY = 8, 72
"""Replicas of a gateway that are compared."""
PEERS = (1, 4)
MESH = 3
REPLICAS_OF_A_DECISION = (8, 1_000)
HELD = 400
ROUNDS = 3
"""Rounds of the relay bench, and windows of each of the study's own readings: of both, medians are taken."""
INTERVAL = "100 ms"
"""Interval of heartbeats, by default, in whose use costs are measured unless another one is named."""
SIMULATED_INTERVAL = "250 ms"
SIMULATED = {"publish_change_share": 0.25, "publish_interval": SIMULATED_INTERVAL.replace(" ", "")}
"""Heartbeats of the simulator's largest run."""
_READY_S = 120.0
_SETTLE_S = 2.0
_HOLD_S = 600.0
_PROMPT_BYTES = 256
_BUSY_USERS = 2
_FORWARD_USERS = 16
_FORWARD_STREAMS = 50
_FORWARDS = "nightside_forwards_sent_total"


@dataclass(frozen=True, slots=True)
class HeldAtRest:
    """Use of a gateway process without requests."""

    us: float
    """CPU a second, in microseconds."""
    kib: float
    files: float


@dataclass(frozen=True, slots=True)
class BusyMesh:
    """Use of a mesh of three gateways, at each of which clients ask, over one window."""

    took_s: float
    requests_per_s: float
    """Requests a second of all of them."""
    cores: float
    """Cores of all of them."""
    forwarded_share: float = 0.0
    """Share of the requests that a gateway forwarded to another."""


@dataclass(frozen=True, slots=True)
class CapacityMeasured:
    figures: Mapping[tuple[str, RelayFigure], float]
    """Figures of the relay bench, by relay: medians of its rounds."""
    costs: CapacityCosts
    simulated_costs: CapacityCosts
    """The same with the simulator's heartbeats, by what peers take with them."""
    idle_us: Mapping[str, float]
    """CPU a second of a relay without a request, in microseconds."""
    mesh: BusyMesh
    life_us: Mapping[int, float]
    """CPU of the core for the life of a request, by number of replicas."""
    faults: Mapping[str, str]


def measure(console: Console, *, is_quick: bool) -> CapacityMeasured:
    """Measure everything on two cores. Raises BenchFailure."""
    effort = replace(QUICK if is_quick else Effort(), rounds=1 if is_quick else ROUNDS)
    relay_core, load_core = machine.usable_cores()[:2]
    with TemporaryDirectory(prefix="nightside-capacity-") as folder:
        plan = RelayPlan(
            effort=effort, measures=MEASURED, relays=[NIGHTSIDE, FORWARD, SIBLINGS], rivals=Path(folder),
            relay_core=relay_core, load_core=load_core, sibling_core=load_core, seed=1,
        )  # fmt: skip
        run = RelayRun(plan, Path(folder), console)
        _play(run.measure())
        if any(each in run.faults for each in (NIGHTSIDE.name, FORWARD.name)):
            raise BenchFailure("; ".join(f"{name}: {why}" for name, why in run.faults.items()))
        figures = {
            (relay, figure): median(by_round(run.readings, relay, figure).values())
            for relay, figure in {(each.relay, each.figure) for each in run.readings if not each.part}
        }
        sizes = _Sizes(Path(folder), plan, console)
        _play(sizes.measure())
    lives = {replicas: core.life_us(replicas) for replicas in REPLICAS_OF_A_DECISION}
    costs = sizes.costs(figures)
    return CapacityMeasured(
        figures, costs, sizes.simulated(costs), sizes.idle_us(), sizes.mesh, lives, run.faults
    )  # fmt: skip


def _play(work: Coroutine[None, None, None]) -> None:
    """Run to the end. Raises BenchFailure."""
    try:
        return uvloop.run(work)
    except* (BenchFailure, WrongAnswer, OSError) as failures:
        reasons = [str(each) or "it took too long" for each in leaves(failures)]
    raise BenchFailure("; ".join(reasons))


@dataclass(frozen=True, slots=True)
class _Running:
    """Gateways that run."""

    subjects: list[Subject]
    """Each gateway, in the order of their start."""
    admins: list[str]
    """Admin address of each."""
    links: CountedLinks


async def _forwards(admins: Sequence[str]) -> float:
    """Requests that gateways have forwarded since their start."""
    lines: list[str] = []
    async with aiohttp.ClientSession() as session:
        for admin in admins:
            async with session.get(f"http://{admin}/metrics") as answer:
                lines += (await answer.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(_FORWARDS))


def _read(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(file.read_text())
    return document


def _write(file: Path, document: dict[str, Any]) -> None:
    file.write_text(yaml.safe_dump(document, sort_keys=False))


def _rest_pair_bytes(rest_bytes: float) -> float:
    """Bytes a second of each pair of the largest mesh, by those between all of it at rest."""
    gateways = 1 + PEERS[-1]
    return rest_bytes / (gateways * (gateways - 1) / 2)


def _busy_pair_bytes(rest_bytes: float, busy_bytes: float) -> float:
    """Bytes a second of a pair of which both are busy, by those between all of the largest mesh: the first of its
    gateways is at rest, and tells each of the others as much as at rest."""
    others = PEERS[-1]
    told_by_the_first = others * _rest_pair_bytes(rest_bytes) / 2
    return 2 * (busy_bytes - told_by_the_first) / others**2


class _Sizes:
    """Gateways with few and many replicas and peers, at rest, with open streams, and beside busy peers."""

    def __init__(self, folder: Path, plan: RelayPlan, console: Console) -> None:
        self._folder = folder
        self._plan = plan
        self._console = console
        self._rng = random.Random(plan.seed)
        self._rest: dict[tuple[int, int], HeldAtRest] = {}
        """Use by number of replicas and of peers."""
        self._asked_us: dict[int, float] = {}
        """CPU of a request, by number of peers."""
        self._held = HeldAtRest(0.0, 0.0, 0.0)
        """Use with streams that are open."""
        self._busy_us = self._rest_bytes = self._busy_bytes = self._forward_bytes = self._chunk_bytes = 0.0
        self._simulated_us = (0.0, 0.0)
        """CPU a second with most peers and the simulator's heartbeats, at rest and beside busy peers."""
        self._simulated_bytes = (0.0, 0.0)
        self.mesh = BusyMesh(0.0, 0.0, 0.0)

    async def measure(self) -> None:
        async with running_engines(MANY, self._plan.load_core, self._folder) as engines:
            bench = RelayBench(self._plan.effort, engines, self._rng)
            for replicas in (FEW, MANY):
                async with self._gateways(NIGHTSIDE, replicas, bench) as ran:
                    self._rest[replicas, 0], _ = await self._look(ran)
                    if replicas == FEW:
                        self._asked_us[0] = await self._asked(ran, bench, self._rest[FEW, 0])
                        self._held = await self._with_streams(ran, bench)
            for peers in PEERS:
                async with self._gateways(mesh_of(1 + peers), FEW, bench) as ran:
                    self._rest[FEW, peers], self._rest_bytes = await self._look(ran)
                    self._asked_us[peers] = await self._asked(ran, bench, self._rest[FEW, peers])
                    busy, self._busy_bytes = await self._beside_busy(ran, bench)
                    self._busy_us = busy.us
            async with self._gateways(mesh_of(1 + PEERS[-1]), FEW, bench, SIMULATED) as ran:
                rest, rest_bytes = await self._look(ran)
                busy, busy_bytes = await self._beside_busy(ran, bench)
                self._simulated_us, self._simulated_bytes = (rest.us, busy.us), (rest_bytes, busy_bytes)
            async with self._gateways(mesh_of(MESH), FEW, bench) as ran:
                self.mesh = await self._mesh(ran, bench)
            async with self._gateways(FORWARD, FEW, bench) as ran:
                self._forward_bytes = await self._forwarded(ran, bench)
                self._chunk_bytes = await self._forwarded_streams(ran, bench)

    @asynccontextmanager
    async def _gateways(
        self, relay: Relay, replicas: int, bench: RelayBench, observation: Mapping[str, object] | None = None
    ) -> AsyncIterator[_Running]:
        """Run gateways, ready for requests, and count what they tell each other. Raises BenchFailure."""
        plan, name = self._plan, f"{relay.name} with {replicas} replicas{' and slow heartbeats' if observation else ''}"
        self._console.print(name, style="dim", highlight=False)
        folder = self._folder / f"sizes-{name.replace(' ', '-')}"
        folder.mkdir()
        setting = RelaySetting(
            folder, bench.engines[:replicas], plan.relay_core, plan.rivals, plan.sibling_core, self._rng
        )
        ready = await asyncio.to_thread(relay.prepare, setting)
        async with AsyncExitStack() as stack:
            links = await stack.enter_async_context(counted_links())
            listens = []
            for command in ready.commands:
                document = _read(folder / f"{command.name}.yaml")
                await links.lead(document)
                document |= {"observation": dict(observation)} if observation else {}
                _write(folder / f"{command.name}.yaml", document)
                listens.append(document["listen"])
            ran = _Running([], [each["admin"] for each in listens], links)
            for command, listen in zip(ready.commands, listens, strict=True):
                port = int(listen["http"].rpartition(":")[2])
                process = await stack.enter_async_context(running(command, folder / f"{command.name}.log"))
                ran.subjects.append(Subject(command.name, port, {command.name: process.pid}, ready.key))
            for subject in ran.subjects:
                try:
                    await ask_until_ready(subject, bench, wait_max_s=_READY_S)
                except TimeoutError as error:
                    raise BenchFailure(f"{name}: {error}") from error
            await asyncio.sleep(_SETTLE_S)
            yield ran

    async def _look(self, ran: _Running) -> tuple[HeldAtRest, float]:
        """Use of the first gateway, and bytes a second between all of them: medians of some windows."""
        rests, carried = zip(*[await self._window(ran) for _ in range(self._plan.effort.rounds)], strict=True)
        return HeldAtRest(*(median(getattr(each, what) for each in rests) for what in ("us", "kib", "files"))), median(
            carried
        )

    async def _window(self, ran: _Running) -> tuple[HeldAtRest, float]:
        (pid,) = ran.subjects[0].processes.values()
        carried, used_ns, began_s = ran.links.carried, machine.cpu_ns([pid]), now_s()
        await asyncio.sleep(self._plan.effort.stream_window_s)
        took_s = now_s() - began_s
        used_us = (machine.cpu_ns([pid]) - used_ns) / 1e3
        held = read_process(took_s, ran.subjects[0].name, pid)
        if held is None:
            raise BenchFailure(f"{ran.subjects[0].name} has ended by itself")
        rest = HeldAtRest(used_us / took_s, held.resident_kib, held.descriptors)
        return rest, (ran.links.carried - carried) / took_s

    async def _asked(self, ran: _Running, bench: RelayBench, rest: HeldAtRest) -> float:
        """CPU of a request of the first gateway beside that of its rest, in microseconds: of one after the other, while
        its peers have nothing to do. The median of some windows."""
        first, found = ran.subjects[0], []
        (pid,) = first.processes.values()
        async with closed_loop(first.port, bench.requests(first, _PROMPT_BYTES), 1, max_s=_READY_S) as tally:
            await asyncio.sleep(self._plan.effort.warm_s)
            for _ in range(self._plan.effort.rounds):
                answers, used_ns, began_s = tally.answers, machine.cpu_ns([pid]), now_s()
                await asyncio.sleep(self._plan.effort.stream_window_s)
                used_us = (machine.cpu_ns([pid]) - used_ns) / 1e3 - rest.us * (now_s() - began_s)
                found.append(used_us / max(1, tally.answers - answers))
        return median(found)

    async def _with_streams(self, ran: _Running, bench: RelayBench) -> HeldAtRest:
        await bench.pace(_HOLD_S)
        streams = HeldStreams(ran.subjects[0].port, bench.requests(ran.subjects[0], _PROMPT_BYTES, 2))
        try:
            await streams.grow_to(HELD, max_s=_READY_S)
            await asyncio.sleep(_SETTLE_S)
            return (await self._look(ran))[0]
        finally:
            streams.cut()

    async def _beside_busy(self, ran: _Running, bench: RelayBench) -> tuple[HeldAtRest, float]:
        """The same while clients ask at all gateways but the first."""
        async with AsyncExitStack() as stack:
            for each in ran.subjects[1:]:
                wanted = bench.requests(each, _PROMPT_BYTES)
                await stack.enter_async_context(closed_loop(each.port, wanted, _BUSY_USERS, max_s=_READY_S))
            await asyncio.sleep(_SETTLE_S)
            return await self._look(ran)

    async def _mesh(self, ran: _Running, bench: RelayBench) -> BusyMesh:
        """Use of all gateways while clients ask at each of them: that of the window with the middle cost a request."""
        effort, pids = self._plan.effort, [pid for each in ran.subjects for pid in each.processes.values()]
        async with AsyncExitStack() as stack:
            tallies = [
                await stack.enter_async_context(
                    closed_loop(each.port, bench.requests(each, _PROMPT_BYTES), _BUSY_USERS, max_s=_READY_S)
                )
                for each in ran.subjects
            ]

            def answers() -> int:
                return sum(each.answers for each in tallies)

            await asyncio.sleep(effort.warm_s)
            all_before, forwards_before, windows = answers(), await _forwards(ran.admins), []
            for _ in range(effort.rounds):
                before, used_ns, began_s = answers(), machine.cpu_ns(pids), now_s()
                await asyncio.sleep(effort.stream_window_s)
                took_s = now_s() - began_s
                cores = (machine.cpu_ns(pids) - used_ns) / 1e9 / took_s
                windows.append(BusyMesh(took_s, max(1, answers() - before) / took_s, cores))
            forwarded = (await _forwards(ran.admins) - forwards_before) / max(1, answers() - all_before)
        windows.sort(key=lambda each: each.cores / each.requests_per_s)
        return replace(windows[len(windows) // 2], forwarded_share=forwarded)

    async def _forwarded(self, ran: _Running, bench: RelayBench) -> float:
        """Bytes between the gateways for each request that is forwarded, with a whole answer."""
        near = next(each for each in ran.subjects if each.name == "near")
        async with closed_loop(near.port, bench.requests(near, _PROMPT_BYTES), _FORWARD_USERS, max_s=_READY_S) as tally:
            await asyncio.sleep(self._plan.effort.warm_s)
            return await self._bytes_for_each(ran, lambda: tally.answers)

    async def _forwarded_streams(self, ran: _Running, bench: RelayBench) -> float:
        """Bytes between the gateways for each chunk of streams that are forwarded, none of which begins or ends."""
        effort = self._plan.effort
        near = next(each for each in ran.subjects if each.name == "near")
        stream_s = effort.ramp_s + effort.warm_s + effort.rounds * effort.stream_window_s + effort.settle_s
        wanted = bench.requests(near, _PROMPT_BYTES, round(stream_s * TOKENS_PER_S))
        await bench.pace(1 / TOKENS_PER_S)
        async with open_streams(
            near.port, wanted, _FORWARD_STREAMS, ramp_s=effort.ramp_s, rng=self._rng, max_s=_READY_S
        ) as tally:
            await asyncio.sleep(effort.ramp_s + effort.warm_s)
            return await self._bytes_for_each(ran, lambda: tally.events)

    async def _bytes_for_each(self, ran: _Running, count: Callable[[], int]) -> float:
        """Bytes between two gateways for each of what is counted, without those of their heartbeats: the median of some
        windows."""
        found = []
        for _ in range(self._plan.effort.rounds):
            counted, carried, began_s = count(), ran.links.carried, now_s()
            await asyncio.sleep(self._plan.effort.stream_window_s)
            beats = _busy_pair_bytes(self._rest_bytes, self._busy_bytes) * (now_s() - began_s)
            found.append((ran.links.carried - carried - beats) / max(1, count() - counted))
        return median(found)

    def idle_us(self) -> dict[str, float]:
        """CPU a second of a relay without a request, which the bench's readings contain. Of the two gateways of a
        forward, one has no replicas."""
        few, many, one = self._rest[FEW, 0], self._rest[MANY, 0], self._rest[FEW, PEERS[0]]
        replicas_us = FEW * max(0.0, many.us - few.us) / (MANY - FEW)
        return {NIGHTSIDE.name: few.us, FORWARD.name: 2 * one.us - replicas_us}

    def simulated(self, costs: CapacityCosts) -> CapacityCosts:
        """Costs with the simulator's heartbeats: what its peers take beyond the rest of what the process does."""
        rest_us = costs.base_us + costs.peering_us + FEW * costs.replica_us
        at_rest_us, busy_us = (max(0.0, us - rest_us) / PEERS[-1] for us in self._simulated_us)
        return replace(
            costs, peer_us=at_rest_us, busy_peer_us=busy_us, peer_bytes=_rest_pair_bytes(self._simulated_bytes[0]),
            busy_peer_bytes=_busy_pair_bytes(*self._simulated_bytes),
        )  # fmt: skip

    def costs(self, figures: Mapping[tuple[str, RelayFigure], float]) -> CapacityCosts:
        few, many = (self._rest[replicas, 0] for replicas in (FEW, MANY))
        one, some = (self._rest[FEW, peers] for peers in PEERS)

        def each_replica(figure: str) -> float:
            return max(0.0, float(getattr(many, figure) - getattr(few, figure))) / (MANY - FEW)

        def each_peer(figure: str) -> float:
            return max(0.0, float(getattr(some, figure) - getattr(one, figure))) / (PEERS[1] - PEERS[0])

        def base(figure: str) -> float:
            return float(getattr(few, figure)) - FEW * each_replica(figure)

        def peering(figure: str) -> float:
            """Cost of having peers at all, beside that of each of them."""
            return max(0.0, float(getattr(one, figure) - getattr(few, figure)) - PEERS[0] * each_peer(figure))

        alone_us, one_us, some_us = (self._asked_us[peers] for peers in (0, *PEERS))
        peer_request_us = max(0.0, some_us - one_us) / (PEERS[1] - PEERS[0])
        idle_us = self.idle_us()
        idle_stream_us = max(0.0, self._held.us - few.us) / HELD

        def request(relay: Relay, us: float) -> float:
            """CPU of a request alone, of one after the other on a core that does nothing else."""
            return us * (1 - idle_us[relay.name] / 1e6)

        def short(relay: Relay) -> float:
            return request(relay, figures[relay.name, RelayFigure.CPU_PER_REQUEST])

        def chunk(relay: Relay) -> float:
            chunks_per_s = self._plan.effort.streams * TOKENS_PER_S
            streams_us = idle_stream_us * (2 if relay is FORWARD else 1) / TOKENS_PER_S
            return figures[relay.name, RelayFigure.CPU_PER_CHUNK] - idle_us[relay.name] / chunks_per_s - streams_us

        def further(relay: Relay) -> float:
            """CPU of 1,000 bytes, by LiteLLM's prompts, half of whose answers are streamed."""
            long_us = request(relay, 1e6 / figures[relay.name, RelayFigure.LONG_PROMPTS_PER_CPU_S])
            kb = (fmean(published.PROMPT_TOKENS) * published.BYTES_PER_TOKEN - _PROMPT_BYTES) / 1000
            return max(0.0, long_us - published.ANSWER_TOKENS / 2 * chunk(relay) - short(relay)) / kb

        return CapacityCosts(
            request_us=short(NIGHTSIDE),
            peered_request_us=max(0.0, one_us - alone_us - PEERS[0] * peer_request_us),
            peer_request_us=peer_request_us,
            prompt_kb_us=further(NIGHTSIDE),
            chunk_us=chunk(NIGHTSIDE),
            forward_us=short(FORWARD),
            forward_kb_us=further(FORWARD),
            forwarded_chunk_us=chunk(FORWARD),
            idle_stream_us=idle_stream_us,
            base_us=base("us"),
            peering_us=peering("us"),
            replica_us=each_replica("us"),
            peer_us=each_peer("us"),
            busy_peer_us=each_peer("us") + max(0.0, self._busy_us - some.us) / PEERS[1],
            base_kib=base("kib"),
            peering_kib=peering("kib"),
            stream_kib=figures[NIGHTSIDE.name, RelayFigure.MEMORY_PER_STREAM],
            replica_kib=each_replica("kib"),
            peer_kib=each_peer("kib"),
            base_files=base("files"),
            peering_files=peering("files"),
            stream_files=(self._held.files - few.files) / HELD,
            replica_files=each_replica("files"),
            peer_files=each_peer("files"),
            peer_bytes=_rest_pair_bytes(self._rest_bytes),
            busy_peer_bytes=_busy_pair_bytes(self._rest_bytes, self._busy_bytes),
            forward_bytes=self._forward_bytes,
            forwarded_chunk_bytes=self._chunk_bytes,
        )
