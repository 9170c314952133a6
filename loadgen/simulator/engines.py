"""One modelled engine in the simulated world: it can be slow, crash and come back, and tells each run how it goes on.

The engine model itself keeps its own time; a slow engine's time runs slower than the world's. What reads prompts for
others keeps them under a lease, until it is told that they have been fetched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import assert_never

from gateway.core.vocabulary import ReplicaId, ReplicaObservation, ReplicaSpec
from loadgen.engine.blocks import common_names
from loadgen.engine.model import (
    Admitted,
    EngineConfig,
    EngineModel,
    EngineOutput,
    Expired,
    Fetching,
    Finished,
    FirstToken,
    Preempted,
    TokensGenerated,
)
from loadgen.engine.sequences import EngineRequest
from loadgen.engine.vocabulary import Rejection
from loadgen.report import PrefixTokens
from loadgen.simulator.agenda import Agenda


@dataclass(slots=True, eq=False)
class Handoff:
    """Where the prompt of a run was read, or is being read."""

    source: SimEngine
    run_id: str


@dataclass(slots=True, eq=False)
class EngineRun:
    """One sequence at one engine, and whom to tell. Each of these is called at most once, the last two exclude each
    other."""

    run_id: str
    request: EngineRequest
    on_first_token: Callable[[EngineRun], None]
    on_finished: Callable[[], None]
    on_rejected: Callable[[Rejection], None]
    on_lost: Callable[[str], None]
    cached_tokens: int | None = None
    """Of its prompt, found in the cache when it first entered the batch."""
    handoff: Handoff | None = None
    """Of one whose prompt is read elsewhere."""
    waits_for_its_prompt: bool = False
    """It may come before that has been read."""
    is_followed: bool = False
    """Somebody wants to know how much of it was written, even when it is over."""
    written: int | None = None
    """Of one that is over, and followed."""


class SimReplica:
    """Whatever stands behind a `ReplicaSpec`: it runs things, and is watched."""

    def __init__(self, spec: ReplicaSpec, config: EngineConfig, agenda: Agenda) -> None:
        self.spec = spec
        self.changed_ns = 0
        """When something last happened here."""
        self.config = config
        self._agenda = agenda
        self._runs: dict[str, EngineRun] = {}
        self._watchers: list[Callable[[], object]] = []

    @property
    def replica_id(self) -> ReplicaId:
        return self.spec.replica_id

    @property
    def outstanding(self) -> int:
        return len(self._runs)

    @property
    def is_up(self) -> bool:
        raise NotImplementedError

    @property
    def running(self) -> int:
        raise NotImplementedError

    @property
    def kept(self) -> int:
        """Prompts that it keeps for others."""
        return 0

    def watch(self, on_change: Callable[[], object]) -> None:
        """Have somebody told whenever something happens here."""
        self._watchers.append(on_change)

    def unwatch(self, on_change: Callable[[], object]) -> None:
        self._watchers.remove(on_change)

    def observe(self, sampled_ns: int) -> ReplicaObservation:
        """What a probe that was sent at `sampled_ns` sees now."""
        raise NotImplementedError

    def prefix_tokens(self) -> PrefixTokens:
        """Counted over all of its lives."""
        return PrefixTokens()

    def known_blocks(self, chain: bytes) -> int:  # noqa: ARG002 - for those who know any
        """How many of a text's first blocks it has in its cache, or will have once it has read what it was asked."""
        return 0

    def generated(self, run_id: str) -> int:
        """Tokens of a run's answer that exist."""
        raise NotImplementedError

    def written(self, run: EngineRun) -> int:
        """The same of a run that is followed, whether or not it is over."""
        return self.generated(run.run_id) if run.written is None else run.written

    def _over(self, run: EngineRun, *, is_whole: bool = False) -> None:
        if run.is_followed:
            run.written = run.request.output_tokens if is_whole else self.generated(run.run_id)

    # What gateways ask for

    def submit(self, run: EngineRun) -> None:
        raise NotImplementedError

    def abort(self, run_id: str) -> None:
        raise NotImplementedError

    # What faults do

    def crash(self) -> None:
        """Everything it ran is lost, and so is its cache."""
        raise NotImplementedError

    def restart(self) -> None:
        """A fresh engine, with an empty cache."""
        raise NotImplementedError

    def slow_down(self, percent: int) -> None:
        """Everything takes `percent` of its time from now on; 100 is as it should be."""
        raise NotImplementedError

    def hang(self, hangs: bool) -> None:
        """It takes requests and answers probes, and nothing moves; or it goes on."""
        raise NotImplementedError

    def _note_change(self) -> None:
        self.changed_ns = self._agenda.now_ns
        for on_change in self._watchers:
            on_change()


class SimEngine(SimReplica):
    """A replica: the model while it lives, and nothing while it does not."""

    def __init__(self, spec: ReplicaSpec, config: EngineConfig, agenda: Agenda) -> None:
        super().__init__(spec, config, agenda)
        self._model: EngineModel | None = self._fresh_model()
        self._readers: dict[str, Callable[[], None]] = {}
        """Who is to be told once a prompt has been read, by its run."""
        self._armed_ns: int | None = None
        self._percent = 100
        """How long everything takes, of what it should."""
        self._hangs = False
        """Its own time stands still."""
        self._world_base_ns = 0
        self._own_base_ns = 0
        self._past = PrefixTokens()

    @property
    def is_up(self) -> bool:
        return self._model is not None

    @property
    def running(self) -> int:
        return 0 if self._model is None else self._model.load().running

    @property
    def kept(self) -> int:
        return 0 if self._model is None else self._model.kept

    def observe(self, sampled_ns: int) -> ReplicaObservation:
        if self._model is None:
            return ReplicaObservation(self.replica_id, sampled_ns, healthy=False, detail="connection refused")
        running, waiting, kv_usage = self._model.occupancy()
        return ReplicaObservation(
            self.spec.replica_id,
            sampled_ns,
            True,
            running,
            waiting,
            kv_usage,
            self.config.kv_tokens,
            preemptions=self._model.preemptions,
        )

    def prefix_tokens(self) -> PrefixTokens:
        if self._model is None:
            return self._past
        load = self._model.load()
        return self._past + PrefixTokens(load.prefix_query_tokens, load.prefix_hit_tokens)

    def known_blocks(self, chain: bytes) -> int:
        if self._model is None:
            return 0
        asked = [common_names(chain, run.request.block_names) for run in self._runs.values()]
        return max(self._model.cached_blocks(chain), *asked, 0)

    def generated(self, run_id: str) -> int:
        return 0 if self._model is None else self._model.generated(run_id)

    # What gateways ask for

    def submit(self, run: EngineRun) -> None:
        if self._model is None:
            run.on_lost("connection refused")
            return
        rejection = self._model.submit(run.request, self._own_ns())
        if rejection is not None:
            run.on_rejected(rejection)
            return
        self._runs[run.run_id] = run
        self._arm()

    def abort(self, run_id: str) -> None:
        if (run := self._runs.pop(run_id, None)) is not None:
            assert self._model is not None, "only a living engine runs anything"
            self._over(run)
            self._model.abort(run_id, self._own_ns())
            self._arm()

    # What decode workers ask for

    def keeps(self, run_id: str) -> bool:
        """Has it read this prompt, and keeps it?"""
        return self._model is not None and self._model.keeps(run_id)

    def when_read(self, run_id: str, tell: Callable[[], None]) -> None:
        """Have somebody told once, who came before the prompt was read."""
        self._readers[run_id] = tell

    def forget_reader(self, run_id: str) -> None:
        self._readers.pop(run_id, None)

    def renew(self, run_id: str, lease_ns: int) -> None:
        if self._model is not None:
            now_ns = self._own_ns()
            self._model.renew(run_id, now_ns + lease_ns, now_ns)

    def let_go(self, run_id: str) -> bool:
        """It has been fetched, or is wanted no longer. False: it was not here any more."""
        if self._model is None or not self._model.let_go(run_id, self._own_ns()):
            return False
        self._arm()
        return True

    # What faults do

    def crash(self) -> None:
        self._past = self.prefix_tokens()
        for run in self._runs.values():
            self._over(run)
        self._model = None
        self._armed_ns = None
        self._note_change()
        runs, self._runs = list(self._runs.values()), {}
        for run in runs:
            run.on_lost("connection reset")

    def restart(self) -> None:
        if self._model is None:
            self._model = self._fresh_model()
            self._world_base_ns, self._own_base_ns = self._agenda.now_ns, 0
            self._note_change()

    def slow_down(self, percent: int) -> None:
        assert percent > 0
        self._own_base_ns = self._own_ns()
        self._world_base_ns = self._agenda.now_ns
        self._percent = percent
        self._arm()

    def hang(self, hangs: bool) -> None:
        self._own_base_ns = self._own_ns()
        self._world_base_ns = self._agenda.now_ns
        self._hangs = hangs
        self._arm()

    # Inside

    def _fresh_model(self) -> EngineModel:
        return EngineModel(replace(self.config, report_tokens=False))

    def _own_ns(self) -> int:
        if self._hangs:
            return self._own_base_ns
        return self._own_base_ns + (self._agenda.now_ns - self._world_base_ns) * 100 // self._percent

    def _world_ns(self, own_ns: int) -> int:
        """The first moment at which the engine's own time has come that far."""
        return max(self._agenda.now_ns, self._world_base_ns - (self._own_base_ns - own_ns) * self._percent // 100)

    def _arm(self) -> None:
        """Be woken when something changes next."""
        self._note_change()
        next_ns = None if self._model is None else self._model.next_change_ns()
        wake_ns = None if next_ns is None or self._hangs else self._world_ns(next_ns)
        if wake_ns is not None and wake_ns != self._armed_ns:
            self._agenda.at(wake_ns, self._wake, wake_ns)
        self._armed_ns = wake_ns

    def _wake(self, wake_ns: int) -> None:
        if wake_ns != self._armed_ns or self._model is None:
            return
        self._armed_ns = None
        for output in self._model.advance(self._own_ns()):
            self._tell(output)
        self._arm()

    def _tell(self, output: EngineOutput) -> None:
        match output:
            case Admitted():
                run = self._runs[output.request_id]
                if run.cached_tokens is None:
                    run.cached_tokens = output.cached_tokens
            case FirstToken():
                run = self._runs[output.request_id]
                run.on_first_token(run)
            case Finished():
                run = self._runs.pop(output.request_id)
                self._over(run, is_whole=True)
                run.on_finished()
                if self._readers and (tell := self._readers.pop(output.request_id, None)) is not None:
                    tell()
            case TokensGenerated() | Preempted() | Fetching() | Expired():
                pass
            case _ as never:
                assert_never(never)
