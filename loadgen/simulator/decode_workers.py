"""Decode workers in the simulated world: the ranks of a group, which step in lockstep, each a replica of its own.

They fetch prompts computed by prefill workers, renew the leases of those that wait for room, and free them afterwards.
A rank that crashes leaves its group; one that hangs stalls all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from gateway.core.vocabulary import ReplicaObservation, ReplicaSpec
from loadgen.engine.decode_group import DecodeGroup, DecodeGroupConfig, DecodeOutput, Pulled
from loadgen.engine.model import EngineConfig, Finished, FirstTokenMade
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.engines import EngineRun, SimReplica

_HEARTBEAT_NS = 5_000_000_000
_RENEWED_NS = 20_000_000_000
"""Intervals of NIXL: a heartbeat after a sixth of the lease, which renews it for two thirds."""


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """Duration of the transfer of a prompt's KV cache."""

    base_ns: int
    token_ns: int

    def lasts_ns(self, tokens: int) -> int:
        return max(1, self.base_ns + tokens * self.token_ns)


class SimDecodeGroup:
    """Clock that the ranks share, and the model of the group."""

    def __init__(self, config: DecodeGroupConfig, transfer: TransferConfig, agenda: Agenda) -> None:
        self.config = config
        self.transfer = transfer
        self.workers: list[SimDecodeWorker] = []
        self.model = DecodeGroup(config)
        self._agenda = agenda
        self._armed_ns: int | None = None
        self._hangs: set[int] = set()
        self._world_base_ns = 0
        self._own_base_ns = 0

    def own_ns(self) -> int:
        if self._hangs:
            return self._own_base_ns
        return self._own_base_ns + self._agenda.now_ns - self._world_base_ns

    def hang(self, rank: int, hangs: bool) -> None:
        self._own_base_ns = self.own_ns()
        self._world_base_ns = self._agenda.now_ns
        if hangs:
            self._hangs.add(rank)
        else:
            self._hangs.discard(rank)
        self.arm()

    def look(self) -> DecodeGroup:
        """Model of the group, brought up to the present."""
        self.model.look(self.own_ns())
        self.arm()
        return self.model

    def arm(self) -> None:
        """Schedule a wake-up at the model's next change."""
        next_ns = self.model.next_change_ns()
        wake_ns = None
        if next_ns is not None and not self._hangs:
            wake_ns = max(self._agenda.now_ns, self._world_base_ns + next_ns - self._own_base_ns)
        if wake_ns is not None and wake_ns != self._armed_ns:
            self._agenda.at(wake_ns, self._wake, wake_ns)
        self._armed_ns = wake_ns

    def _wake(self, wake_ns: int) -> None:
        if wake_ns != self._armed_ns:
            return
        self._armed_ns = None
        for output in self.model.advance(self.own_ns()):
            for worker in self.workers:
                if worker.hears(output):
                    break
        self.arm()


class SimDecodeWorker(SimReplica):
    """One rank."""

    def __init__(self, spec: ReplicaSpec, config: EngineConfig, agenda: Agenda, group: SimDecodeGroup) -> None:
        super().__init__(spec, config, agenda)
        self._group = group
        self._rank = len(group.workers)
        self._unfetched: dict[str, EngineRun] = {}
        """Runs whose prompts have not been fetched yet."""
        self._is_up = True
        group.workers.append(self)

    @property
    def is_up(self) -> bool:
        return self._is_up

    @property
    def running(self) -> int:
        return self._group.model.running(self._rank)

    def observe(self, sampled_ns: int) -> ReplicaObservation:
        if not self._is_up:
            return ReplicaObservation(self.replica_id, sampled_ns, healthy=False, detail="connection refused")
        model, rank = self._group.look(), self._rank
        room = self._group.config.kv_tokens
        usage = model.cached_tokens(rank) / room if room else 0.0
        unread = sum(not model.has(run_id) for run_id in self._unfetched)
        waiting = model.waiting(rank) + unread  # vLLM counts requests whose prompts are still read elsewhere, too
        return ReplicaObservation(self.replica_id, sampled_ns, True, model.running(rank), waiting, usage, room)

    def generated(self, run_id: str) -> int:
        if run_id not in self._runs or run_id in self._unfetched:
            return 0
        model = self._group.look()
        if not model.has(run_id):  # the last token was written just now, and `Finished` has not been delivered yet
            return self._runs[run_id].request.output_tokens
        return model.generated(run_id)

    # Commands of gateways

    def submit(self, run: EngineRun) -> None:
        handoff = run.handoff
        assert handoff is not None, "a decode worker was sent an ordinary request"
        if not self._is_up:
            run.on_lost("connection refused")
            return
        self._runs[run.run_id] = self._unfetched[run.run_id] = run
        self._note_change()
        if handoff.source.keeps(handoff.run_id):
            self._take(run)
        elif run.waits_for_its_prompt:
            handoff.source.when_read(handoff.run_id, lambda: self._take(run))
        else:
            self._lose(run, "500: what it was to fetch is gone")

    def abort(self, run_id: str) -> None:
        if (followed := self._runs.get(run_id)) is not None:
            self._over(followed)
        if self._runs.pop(run_id, None) is None:
            return
        self._let_go(run_id)
        self._group.model.abort(run_id, self._group.own_ns())
        self._note_change()
        self._group.arm()

    # Effects of faults

    def crash(self) -> None:
        if not self._is_up:
            return
        for run in self._runs.values():
            self._over(run)
        self._is_up = False
        self._group.model.lose_rank(self._rank, self._group.own_ns())
        self._unfetched.clear()  # a dead rank cannot free the KV caches it would have fetched
        runs, self._runs = list(self._runs.values()), {}
        self._note_change()
        for run in runs:
            if run.handoff is not None:
                run.handoff.source.forget_reader(run.handoff.run_id)
            run.on_lost("connection reset")
        self._group.arm()

    def restart(self) -> None:
        if not self._is_up:
            self._is_up = True
            self._group.model.return_rank(self._rank, self._group.own_ns())
            self._note_change()

    def slow_down(self, percent: int) -> None:
        self._group.model.slow_down(self._rank, percent, self._group.own_ns())
        self._group.arm()

    def hang(self, hangs: bool) -> None:
        self._group.hang(self._rank, hangs)

    # Internals

    def hears(self, output: DecodeOutput) -> bool:
        """Handle an output of the group's model. False if it is about a run that this rank does not have."""
        run = self._runs.get(output.request_id)
        if run is None:
            return False
        self._note_change()
        match output:
            case Pulled():
                if not self._let_go(run.run_id):
                    self._group.model.abort(run.run_id, self._group.own_ns())
                    self._lose(run, "500: what it was fetching is gone")
            case FirstTokenMade():
                run.on_first_token(run)
            case Finished():
                del self._runs[run.run_id]
                self._over(run, is_whole=True)
                run.on_finished()
            case _ as never:
                assert_never(never)
        return True

    def _take(self, run: EngineRun) -> None:
        """Submit a run whose prompt has been computed and is kept."""
        if self._runs.get(run.run_id) is not run:
            return
        request = run.request
        rejection = self._group.model.admit(
            run.run_id,
            self._rank,
            request.prompt_tokens,
            request.output_tokens,
            self._group.own_ns(),
            transfer_ns=self._group.transfer.lasts_ns(request.prompt_tokens),
        )
        if rejection is not None:
            del self._runs[run.run_id]
            self._let_go(run.run_id)
            run.on_rejected(rejection)
            return
        self._heartbeat(run)
        self._group.arm()

    def _heartbeat(self, run: EngineRun) -> None:
        """Renew the lease of a prompt periodically until it is fetched."""
        if self._unfetched.get(run.run_id) is run and run.handoff is not None:
            run.handoff.source.renew(run.handoff.run_id, _RENEWED_NS)
            self._agenda.after(_HEARTBEAT_NS, self._heartbeat, run)

    def _let_go(self, run_id: str) -> bool:
        """Free the KV cache kept for a run. False: it was not kept any more."""
        run = self._unfetched.pop(run_id, None)
        if run is None or run.handoff is None:
            return True
        run.handoff.source.forget_reader(run.handoff.run_id)
        return run.handoff.source.let_go(run.handoff.run_id)

    def _lose(self, run: EngineRun, why: str) -> None:
        self._over(run)
        self._runs.pop(run.run_id, None)
        self._unfetched.pop(run.run_id, None)
        run.on_lost(why)
