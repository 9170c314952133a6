"""Data-parallel ranks of one engine: one model each, which share time and, where there are several, a barrier.

It is pure, and lets no rank run ahead of another, because a rank's iterations depend on the others' batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loadgen.engine.barrier import Barrier
from loadgen.engine.decode_group import Steps
from loadgen.engine.iteration_cost import LinearCost
from loadgen.engine.model import EngineConfig, EngineLoad, EngineOutput, Expired, Finished
from loadgen.engine.sequences import EngineRequest
from loadgen.engine.sglang_model import engine_model
from loadgen.engine.vocabulary import Rejection


class Ranks:
    """Interface of an `EngineModel`, with a rank for each request."""

    def __init__(
        self,
        config: EngineConfig,
        count: int = 1,
        kv_token_ns: int = 0,
        on_steps: Callable[[Steps], object] | None = None,
    ) -> None:
        """Create the models. With several ranks, or a `kv_token_ns`, a barrier decides the cost of iterations."""
        assert count > 0
        self.config = config
        if count == 1 and not kv_token_ns:
            self.models = [engine_model(config)]
        else:
            cost = config.cost
            assert isinstance(cost, LinearCost), "a barrier is made of a linear cost"
            barrier = Barrier(count, cost.base_ns, kv_token_ns, cost.prefill_token_ns, on_steps)
            self.models = [engine_model(replace(config, cost=rank)) for rank in barrier.ranks]
        self._ranks: dict[str, int] = {}
        """Rank of each request that is running or whose blocks are kept."""
        self._outputs: list[EngineOutput] = []

    def submit(self, rank: int, request: EngineRequest, now_ns: int) -> Rejection | None:
        self._settle(now_ns - 1)
        rejection = self.models[rank].submit(request, now_ns)
        if rejection is None:
            self._ranks[request.request_id] = rank
        return rejection

    def abort(self, request_id: str, now_ns: int) -> None:
        """Abort a request. Blocks that are kept for one that has ended stay."""
        self._settle(now_ns - 1)
        rank = self._ranks.get(request_id)
        if rank is not None:
            self.models[rank].abort(request_id, now_ns)
            self._forget(request_id)

    def deliver(self, request_id: str, now_ns: int, *, has_come: bool) -> None:
        self._settle(now_ns - 1)
        rank = self._ranks.get(request_id)
        if rank is not None:
            self.models[rank].deliver(request_id, now_ns, has_come=has_come)

    def renew(self, request_id: str, until_ns: int, now_ns: int) -> bool:
        self._settle(now_ns - 1)
        rank = self._ranks.get(request_id)
        return rank is not None and self.models[rank].renew(request_id, until_ns, now_ns)

    def let_go(self, request_id: str, now_ns: int) -> bool:
        self._settle(now_ns - 1)
        rank = self._ranks.get(request_id)
        has_let_go = rank is not None and self.models[rank].let_go(request_id, now_ns)
        self._forget(request_id)
        return has_let_go

    def keeps(self, request_id: str) -> bool:
        rank = self._ranks.get(request_id)
        return rank is not None and self.models[rank].keeps(request_id)

    def advance(self, now_ns: int) -> list[EngineOutput]:
        self._settle(now_ns)
        for model in self.models:
            self._take(model.advance(now_ns))
        outputs, self._outputs = self._outputs, []
        return outputs

    def next_change_ns(self) -> int | None:
        return min([at_ns for model in self.models if (at_ns := model.next_change_ns()) is not None], default=None)

    def loads(self) -> list[EngineLoad]:
        return [model.load() for model in self.models]

    def emptiest(self) -> int:
        """Rank with the fewest requests, for a request that names none."""
        loads = self.loads()
        return min(range(len(loads)), key=lambda rank: loads[rank].running + loads[rank].waiting + loads[rank].arriving)

    def _settle(self, until_ns: int) -> None:
        if len(self.models) == 1:
            return
        while (next_ns := self.next_change_ns()) is not None and next_ns <= until_ns:
            for model in self.models:
                self._take(model.advance(next_ns))

    def _take(self, outputs: list[EngineOutput]) -> None:
        self._outputs += outputs
        for output in outputs:
            if isinstance(output, Finished | Expired):
                self._forget(output.request_id)

    def _forget(self, request_id: str) -> None:
        rank = self._ranks.get(request_id)
        if rank is not None and not self.models[rank].keeps(request_id):
            del self._ranks[request_id]
