"""One modelled engine in the simulated world: it can be slow, crash and restart, and reports the progress of each run.

The engine model keeps its own time; a slow engine's time runs slower than the world's. A prefill worker keeps prompts
under a lease, until it is told that they have been fetched.
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
    FirstTokenMade,
    Preempted,
    TokensGenerated,
)
from loadgen.engine.sequences import EngineRequest
from loadgen.engine.sglang_model import engine_model
from loadgen.engine.vocabulary import Rejection
from loadgen.report import PrefixTokens
from loadgen.simulator.agenda import Agenda


@dataclass(slots=True, eq=False)
class PrefillRun:
    """Prefill run that computes or has computed the prompt of a decode run."""

    source: SimEngine
    run_id: str


@dataclass(slots=True, eq=False)
class EngineRun:
    """One sequence at one engine, and its callbacks. Each callback is called at most once; `on_finished`, `on_rejected`
    and `on_lost` exclude one another."""

    run_id: str
    request: EngineRequest
    on_first_token: Callable[[EngineRun], None]
    on_finished: Callable[[], None]
    on_rejected: Callable[[Rejection], None]
    on_lost: Callable[[str], None]
    cached_tokens: int | None = None
    """Prompt tokens found in the cache when it first entered the batch."""
    handoff: PrefillRun | None = None
    """Source of the prompt, for a run whose prompt is computed by a prefill worker."""
    waits_for_its_prompt: bool = False
    """True if the run may come before its prompt has been computed."""
    is_followed: bool = False
    """True if the number of written tokens is still wanted after the run has ended."""
    written: int | None = None
    """Written tokens of a followed run that has ended."""


class SimReplica:
    """Replica behind a `ReplicaSpec`: it executes runs and notifies watchers of changes."""

    def __init__(self, spec: ReplicaSpec, config: EngineConfig, agenda: Agenda) -> None:
        self.spec = spec
        self.changed_ns = 0
        """Time of the last change."""
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
        """Number of prompts kept for decode workers."""
        return 0

    def watch(self, on_change: Callable[[], object]) -> None:
        """Call `on_change` after every change."""
        self._watchers.append(on_change)

    def unwatch(self, on_change: Callable[[], object]) -> None:
        self._watchers.remove(on_change)

    def observe(self, sampled_ns: int) -> ReplicaObservation:
        """Observation of a probe that was sent at `sampled_ns` and arrives now."""
        raise NotImplementedError

    def prefix_tokens(self) -> PrefixTokens:
        """Prompt tokens queried and found in the cache, over all of its lives."""
        return PrefixTokens()

    def known_blocks(self, chain: bytes) -> int:  # noqa: ARG002 - subclasses use it
        """Leading blocks of a text that are in its cache, or will be once it has computed the prompts of its runs."""
        return 0

    def generated(self, run_id: str) -> int:
        """Tokens of a run's answer that exist."""
        raise NotImplementedError

    def written(self, run: EngineRun) -> int:
        """Tokens written by a followed run, whether or not it has ended."""
        return self.generated(run.run_id) if run.written is None else run.written

    def _over(self, run: EngineRun, *, is_whole: bool = False) -> None:
        if run.is_followed:
            run.written = run.request.output_tokens if is_whole else self.generated(run.run_id)

    # Commands of gateways

    def submit(self, run: EngineRun) -> None:
        raise NotImplementedError

    def abort(self, run_id: str) -> None:
        raise NotImplementedError

    # Effects of faults

    def crash(self) -> None:
        """Lose all runs and the cache."""
        raise NotImplementedError

    def restart(self) -> None:
        """Start again with an empty cache, if down."""
        raise NotImplementedError

    def slow_down(self, percent: int) -> None:
        """Scale all durations to `percent` of normal from now on; 100 is normal."""
        raise NotImplementedError

    def hang(self, hangs: bool) -> None:
        """Stop or resume all progress; a hanging engine still accepts requests and answers probes."""
        raise NotImplementedError

    def _note_change(self) -> None:
        self.changed_ns = self._agenda.now_ns
        for on_change in self._watchers:
            on_change()


class SimEngine(SimReplica):
    """Unified replica or prefill worker: an engine model while it is up, and none while it is down."""

    def __init__(self, spec: ReplicaSpec, config: EngineConfig, agenda: Agenda) -> None:
        super().__init__(spec, config, agenda)
        self._model: EngineModel | None = self._fresh_model()
        self._readers: dict[str, Callable[[], None]] = {}
        """Callbacks of decode workers that wait for a prompt to be computed, by its run."""
        self._armed_ns: int | None = None
        self._percent = 100
        """Duration of everything, in percent of normal."""
        self._hangs = False
        """True while its own time stands still."""
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

    # Commands of gateways

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

    # Commands of decode workers

    def keeps(self, run_id: str) -> bool:
        """True if this prompt has been computed and is kept."""
        return self._model is not None and self._model.keeps(run_id)

    def when_read(self, run_id: str, tell: Callable[[], None]) -> None:
        """Call `tell` once when the prompt has been computed, for a decode run that came before."""
        self._readers[run_id] = tell

    def forget_reader(self, run_id: str) -> None:
        self._readers.pop(run_id, None)

    def renew(self, run_id: str, lease_ns: int) -> None:
        if self._model is not None:
            now_ns = self._own_ns()
            self._model.renew(run_id, now_ns + lease_ns, now_ns)

    def let_go(self, run_id: str) -> bool:
        """Release a kept prompt that has been fetched or is not needed. False: it was not kept any more."""
        if self._model is None or not self._model.let_go(run_id, self._own_ns()):
            return False
        self._arm()
        return True

    # Effects of faults

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

    # Internals

    def _fresh_model(self) -> EngineModel:
        return engine_model(replace(self.config, report_tokens=False))

    def _own_ns(self) -> int:
        if self._hangs:
            return self._own_base_ns
        return self._own_base_ns + (self._agenda.now_ns - self._world_base_ns) * 100 // self._percent

    def _world_ns(self, own_ns: int) -> int:
        """First moment of the world's time at which the engine's own time has reached `own_ns`."""
        return max(self._agenda.now_ns, self._world_base_ns - (self._own_base_ns - own_ns) * self._percent // 100)

    def _arm(self) -> None:
        """Schedule a wake-up at the model's next change."""
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
            case FirstTokenMade():
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
