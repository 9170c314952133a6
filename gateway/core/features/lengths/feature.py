"""Pools by length: requests fit into pools by their token budgets, which are estimated by what engines counted before;
limits are learnt from engines' refusals, and thresholds follow what ended in each pool.

The feature places no request: it narrows the pools that a request may go to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.core.config import all_of
from gateway.core.features.lengths.config import TokenBudgetConfig
from gateway.core.features.lengths.events import TokenBudgetRestored
from gateway.core.features.lengths.ladders import Ladder, Ladders
from gateway.core.features.lengths.token_budget import Estimate, TokenBudget
from gateway.core.features.lengths.tuning import ThresholdTuning
from gateway.core.kernel.config import KernelConfig, OverflowMode
from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.events import AssignmentApplied, FeatureEvent, LegEnded, TooLong
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.peers import PeerState
from gateway.core.kernel.pools import PoolFit
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import LegState, RequestState, Size
from gateway.core.placement.placer import Placement
from gateway.core.value import value
from gateway.core.vocabulary import (
    Category,
    Extra,
    LegResult,
    LegRole,
    ModelName,
    PoolChoice,
    PoolName,
    PoolStep,
    ReplicaId,
    RequestProfile,
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


class LengthBudget(Size):
    """Token budget of one request."""

    __slots__ = ("_feature", "estimate", "refused_tokens")

    def __init__(self, feature: PoolsByLength, estimate: Estimate) -> None:
        self._feature = feature
        self.estimate = estimate
        self.refused_tokens = 0
        """Context window of an engine that refused the request for its length; 0: none has."""

    @property
    def prompt_tokens(self) -> int:
        return self.estimate.prompt_tokens

    def fit_in(self, request_class: RequestClass, /) -> PoolFit | None:
        return self._feature.fit_of(self.estimate, request_class)


class PoolsByLength(Feature):
    """Tells pools apart by token budgets, from the moment at which a pool with a threshold is known, here or at a
    peer."""

    def __init__(self, core: Kernel) -> None:
        self._core = core
        self._has_been_on = False
        self._is_sorted = False
        """True while waiting requests may have been assigned to pools by their budgets."""
        self.ladders = Ladders(core.place.region, core.replicas, core.peers)
        self.token_budget = TokenBudget(TokenBudgetConfig())
        self.tuning = ThresholdTuning(core)
        self.counts: dict[tuple[ModelName, PoolName], PoolCounts] = {}

    def is_on(self) -> bool:
        """A feature that was on stays on: requests with budgets may still run."""
        self._has_been_on = self._has_been_on or self.ladders.exist
        return self._has_been_on

    def figures(self) -> PoolFigures:
        core = self._core
        return PoolFigures(
            self.counts,
            dict.fromkeys(self.counts, 0) | core.waiting.pool_lengths(),
            core.replicas.preempted,
            {state.spec.replica_id: state.context_seen for state in core.replicas if state.context_seen},
            self.token_budget.ratios(),
        )

    # Inputs

    def take_in(self, event: FeatureEvent, now_ns: int, /) -> bool:  # noqa: ARG002
        if not isinstance(event, TokenBudgetRestored):
            return False
        self.token_budget.restore(event.snapshot)
        return True

    def configure(self, config: KernelConfig, now_ns: int, /) -> None:
        settings = all_of(config)
        self.token_budget.configure(settings.token_budget)
        self.tuning.config = settings.threshold
        self.tuning.configured(now_ns)

    def assign(
        self,
        event: AssignmentApplied,  # noqa: ARG002
        joined: list[ReplicaState],  # noqa: ARG002
        left: list[ReplicaState],  # noqa: ARG002
        now_ns: int,
        /,
    ) -> None:
        self.tuning.configured(now_ns)

    def pools_changed(self) -> bool:
        """Waiting requests may fit into other pools now if budgets sort them, or did before."""
        was_sorted, self._is_sorted = self._is_sorted, self.ladders.exist
        return was_sorted or self._is_sorted

    # Sizes

    def size_of(self, profile: RequestProfile, /) -> LengthBudget | None:
        """Estimated tokens of a request, for a forward as its origin estimated them. None where the model's pools are
        not told apart by budgets, and for a control request."""
        if not self._core.has_thresholds(profile.model) or profile.is_control:
            return None
        estimate = self.token_budget.estimate(profile)
        if profile.budget_tokens:  # the origin has looked at the prompt; this gateway knows only its size
            prompt_tokens = max(1, profile.budget_tokens - estimate.output_tokens)
            estimate = at_least(replace(estimate, prompt_tokens=prompt_tokens), profile.budget_tokens)
        return LengthBudget(self, estimate)

    def fit_of(self, estimate: Estimate, request_class: RequestClass) -> PoolFit | None:
        """Pools that a budget fits into, among those that residency allows."""
        ladder = self.ladder_of(request_class)
        if ladder is None:
            return None
        firm_tokens = estimate.prompt_tokens if estimate.is_soft else estimate.total_tokens
        return ladder.fit_of(estimate.total_tokens, firm_tokens, self._core.config.placement.too_long_slack_share)

    def longest_of(self, request_class: RequestClass, /) -> int | None:
        ladder = self.ladder_of(request_class)
        return None if ladder is None else ladder.longest_tokens

    def ladder_of(self, request_class: RequestClass) -> Ladder | None:
        """Pools that such requests may go to; None where pools are not distinguished by token budget."""
        overflows = self._core.config.placement.overflow_of(request_class.model) is OverflowMode.ON
        return self.ladders.of(request_class, overflows=overflows)

    # Legs

    def pool_choice(self, request: RequestState, placement: Placement, /) -> PoolChoice | None:
        fit, budget = request.request_class.fit, request.size
        if fit is None or not isinstance(budget, LengthBudget) or placement.step is None:
            return None
        return PoolChoice(
            placement.step,
            placement.state.spec.pool if isinstance(placement.state, ReplicaState) else None,
            fit.preferred[0] if fit.preferred else None,
            fit.need_tokens,
            budget.estimate.prompt_tokens,
            budget.estimate.output_tokens,
            budget.estimate.is_soft,
            budget.refused_tokens,
        )

    def on_order(self, request: RequestState, leg: LegState, order: StartLeg, /) -> None:
        """Tell a peer the budget, an engine to count, and both whether a longer pool may take the request."""
        budget = request.size
        if not isinstance(budget, LengthBudget):
            return
        choice, is_whole = leg.decision.pool, leg.role is LegRole.WHOLE
        if choice is not None and choice.pool is not None and leg.role is not LegRole.DECODE:
            counts = self._counts_of(request.profile.model, choice.pool)
            if counts is not None:
                counts.placed[choice.step] = counts.placed.get(choice.step, 0) + 1
        order.may_be_longer = is_whole and not request.was_too_long_before and self._has_longer(request, leg.state)
        if isinstance(leg.state, PeerState):
            order.budget_tokens = budget.estimate.total_tokens
        elif is_whole:
            order.extras = (*order.extras, Extra.USAGE)

    def leg_answered(self, request: RequestState, leg: LegState, now_ns: int, /) -> None:
        if request.size is not None:
            self.tuning.first_token(request, leg, now_ns)

    def leg_over(self, request: RequestState, leg: LegState, event: LegEnded, now_ns: int, /) -> None:
        """Learn from the end of a leg. Counts from peers' engines are used as well."""
        budget = request.size
        if not isinstance(budget, LengthBudget):
            return
        is_news = was_cut = False
        if event.too_long is not None:
            is_news = self._refused(request, budget, leg, event.too_long)
        elif event.result is LegResult.COMPLETED and leg.role is not LegRole.PREFILL:
            was_cut = self._was_cut(request, leg, event)
            self._learn(request, leg, event, was_cut=was_cut)
        if self.tuning.leg_ended(leg, event, now_ns, was_cut=was_cut) or is_news:
            self._core.pools_changed()

    def _learn(self, request: RequestState, leg: LegState, event: LegEnded, *, was_cut: bool) -> None:
        """Learn the length of an answer, and count one that was cut."""
        if request.origin_gateway_id is None:  # a forward's origin learns, which saw the prompt
            self.token_budget.observe(request.profile, event.prompt_tokens, event.output_tokens, was_cut)
        if was_cut and isinstance(leg.state, ReplicaState):
            counts = self._counts_of(request.profile.model, leg.state.spec.pool)
            if counts is not None:
                counts.cut += 1

    def _refused(self, request: RequestState, budget: LengthBudget, leg: LegState, told: TooLong) -> bool:
        """Raise the request's budget above the limit of the engine that refused it. True if that limit is news about a
        replica."""
        state = leg.state
        request.is_too_long = True
        limit_tokens, is_news = told.limit_tokens or 0, False
        if isinstance(state, ReplicaState):
            counts = self._counts_of(request.profile.model, state.spec.pool)
            if counts is not None and self._has_longer(request, state):
                counts.refused += 1
            known = self._core.replicas.context_of(state)
            is_news = self._core.replicas.learn_context(state, limit_tokens)
            limit_tokens = limit_tokens or known
        budget.refused_tokens = limit_tokens
        least = max(budget.estimate.total_tokens, limit_tokens + 1 if limit_tokens else 0, told.asked_tokens or 0)
        budget.estimate = at_least(budget.estimate, least)
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
        ladder = self.ladder_of(wanted)
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


def at_least(estimate: Estimate, tokens: int) -> Estimate:
    """Raise an estimate to at least this many tokens, on the prompt's side: the client may have limited the output."""
    return Estimate(
        max(estimate.prompt_tokens, tokens - estimate.output_tokens), estimate.output_tokens, estimate.is_soft
    )


def pools_by_length(core: Kernel) -> PoolsByLength:
    """Feature of a core that was made with it."""
    return next(each for each in core.features if isinstance(each, PoolsByLength))
