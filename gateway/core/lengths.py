"""Lengths of requests in practice: limits and ratios learnt from what engines counted and refused, and how often a
request went to a pool that was too short for it.

It places no request; it corrects the token-budget estimator and the context limits of replicas.
"""

from __future__ import annotations

from typing import Final

from gateway.core.events import LegEnded
from gateway.core.intake import at_least
from gateway.core.peers import PeerState
from gateway.core.placement.placer import Placement
from gateway.core.replicas import ReplicaState
from gateway.core.requests import LegState, RequestState
from gateway.core.state import GatewayState
from gateway.core.value import value
from gateway.core.vocabulary import (
    Category,
    Decision,
    LegResult,
    LegRole,
    ModelName,
    PoolChoice,
    PoolName,
    PoolStep,
    ReplicaId,
    Word,
)

_POOLS_MAX: Final = 1024
"""Pairs of model and pool that are counted; over it, further pairs are not."""
_CUT_TOKENS: Final = 16
"""Tokens below a pool's limit within which an ended answer counts as cut by it: engines count in blocks."""


class Misroute(Word):
    """Ways in which a pool was too short for a request."""

    REFUSED = "refused"
    """The engine refused the request for its length."""
    CUT = "cut"
    """The answer ended at the pool's limit, and its client had set no maximum."""


class PoolCounts:
    """Counts of one model and pool, since this gateway began."""

    __slots__ = ("cut", "placed", "refused")

    def __init__(self) -> None:
        self.placed: dict[PoolStep, int] = {}
        self.refused = 0
        self.cut = 0

    @property
    def misrouted(self) -> int:
        return self.refused + self.cut


@value
class PoolFigures:
    """Figures of pools told apart by token budgets, for the metrics page."""

    counts: dict[tuple[ModelName, PoolName], PoolCounts]
    waiting: dict[tuple[ModelName, PoolName], int]
    """Waiting requests by model and preferred pool; 0 for counted pairs without any."""
    preempted: dict[PoolName, int]
    learnt: dict[ReplicaId, int]
    """Context limits that engines stated in refusals, by replica, where they are below the configured ones."""
    ratios: dict[tuple[ModelName, Category], float]
    """Bytes per token used for estimates, where any were learnt."""


class Lengths:
    """Length statistics of one gateway. Called only for requests with a token budget."""

    def __init__(self, core: GatewayState) -> None:
        self._core = core
        self.sorted = False
        """True while waiting requests may have been assigned to pools by their budgets."""
        self.counts: dict[tuple[ModelName, PoolName], PoolCounts] = {}

    def figures(self) -> PoolFigures:
        core = self._core
        return PoolFigures(
            self.counts,
            dict.fromkeys(self.counts, 0) | core.waiting.pool_lengths(),
            core.replicas.preempted,
            {state.spec.replica_id: state.context_seen for state in core.replicas if state.context_seen},
            core.token_budget.ratios(),
        )

    def on_order(self, request: RequestState, leg: LegState, decision: Decision) -> tuple[int, bool, bool]:
        """Parts of an order that budgets add: the tokens that a peer is told, whether a longer pool may take the
        request, and whether the engine is asked to count."""
        assert request.budget is not None, "its budget counts"
        choice, is_whole = decision.pool, leg.role is LegRole.WHOLE
        if choice is not None and choice.pool is not None and leg.role is not LegRole.DECODE:
            counts = self._counts_of(request.profile.model, choice.pool)
            if counts is not None:
                counts.placed[choice.step] = counts.placed.get(choice.step, 0) + 1
        may_be_longer = is_whole and not request.was_too_long_before and self._has_longer(request, leg.state)
        if isinstance(leg.state, PeerState):
            return request.budget.total_tokens, may_be_longer, False
        return 0, may_be_longer, is_whole

    def leg_ended(self, request: RequestState, leg: LegState, event: LegEnded) -> tuple[bool, bool]:
        """Learn from the end of a leg. Counts from peers' engines are used as well. Returns whether a replica turned
        out to take less than was known, and whether a replica of this gateway cut the answer."""
        if event.too_long is not None:
            return self._refused(request, leg, event), False
        was_cut = False
        if event.result is LegResult.COMPLETED and leg.role is not LegRole.PREFILL:
            was_cut = self._was_cut(request, leg, event)
            if request.origin_gateway_id is None:  # a forward's origin learns, which saw the prompt
                self._core.token_budget.observe(request.profile, event.prompt_tokens, event.output_tokens, was_cut)
            if was_cut and isinstance(leg.state, ReplicaState):
                counts = self._counts_of(request.profile.model, leg.state.spec.pool)
                if counts is not None:
                    counts.cut += 1
        return False, was_cut

    def _refused(self, request: RequestState, leg: LegState, event: LegEnded) -> bool:
        """Raise the request's budget above the limit of the engine that refused it. True if that limit is news about a
        replica."""
        state, told = leg.state, event.too_long
        assert told is not None, "its engine said so"
        assert request.budget is not None, "its budget counts"
        request.is_too_long = True
        limit_tokens, is_news = told.limit_tokens or 0, False
        if isinstance(state, ReplicaState):
            counts = self._counts_of(request.profile.model, state.spec.pool)
            if counts is not None and self._has_longer(request, state):
                counts.refused += 1
            known = self._core.replicas.context_of(state)
            is_news = self._core.replicas.learn_context(state, limit_tokens)
            limit_tokens = limit_tokens or known
        request.refused_tokens = limit_tokens
        tokens = max(request.budget.total_tokens, limit_tokens + 1 if limit_tokens else 0, told.asked_tokens or 0)
        request.budget = at_least(request.budget, tokens)
        return is_news

    def _was_cut(self, request: RequestState, leg: LegState, event: LegEnded) -> bool:
        if request.profile.output_tokens_max is not None or not isinstance(leg.state, ReplicaState):
            return False
        context = self._core.replicas.context_of(leg.state)
        if not context or event.prompt_tokens is None or event.output_tokens is None:
            return False
        return event.prompt_tokens + event.output_tokens >= context - _CUT_TOKENS

    def _has_longer(self, request: RequestState, state: ReplicaState | PeerState) -> bool:
        """True if a pool exists that may take what this target does not."""
        wanted = request.request_class
        ladder = self._core.ladder_of(wanted)
        if ladder is None or wanted.fit is None:
            return False
        if isinstance(state, PeerState):
            return bool(wanted.fit.preferred)
        context = self._core.replicas.context_of(state)
        return bool(context) and ladder.longest_tokens > context

    def _counts_of(self, model: ModelName, pool: PoolName) -> PoolCounts | None:
        counts = self.counts.get((model, pool))
        if counts is None and len(self.counts) < _POOLS_MAX:
            counts = self.counts[model, pool] = PoolCounts()
        return counts


def choice_of(request: RequestState, placement: Placement) -> PoolChoice | None:
    """Pool choice of a placement, for the record; None where pools were not compared."""
    fit, budget = request.request_class.fit, request.budget
    if fit is None or budget is None or placement.step is None:
        return None
    return PoolChoice(
        placement.step,
        placement.state.spec.pool if isinstance(placement.state, ReplicaState) else None,
        fit.preferred[0] if fit.preferred else None,
        fit.need_tokens,
        budget.prompt_tokens,
        budget.output_tokens,
        budget.is_soft,
        request.refused_tokens,
    )
