"""Inputs of a simulated gateway's decode tiers beside the requests: predictors fitted to the lengths of ended requests,
and cosines of prompts to the centroids of a simulated artifact of expert locality.

Prompts that begin alike belong to one cluster, as prompts of one application do. It decides nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final
from zlib import crc32

from gateway.core.events import ArtifactReady, DecodeHistoryRestored, Event, PredictorFitted
from gateway.core.features.disaggregated.config import LOCAL_POLICIES
from gateway.core.features.disaggregated.feature import decode_pools_of
from gateway.core.features.disaggregated.predictors.arrays import ExactMatchArrays, PromptKey, SurvivalArrays
from gateway.core.features.disaggregated.predictors.exact_match import fit_exact_match
from gateway.core.features.disaggregated.predictors.history import Ended
from gateway.core.features.disaggregated.predictors.survival import fit_survival
from gateway.core.gateway_core import GatewayCore
from gateway.core.nearness import UNIT, Nearness, SignatureState
from gateway.core.vocabulary import GatewayId, PoolName
from gateway.features.disaggregated.gain import gain_on_newest
from gateway.features.disaggregated.handing_over import ArrivedHistories, travelling, with_arrived
from gateway.request.handoffs import COUNTS_KEY
from loadgen.engine.blocks import NAME_BYTES
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.pool_sections import DisaggregatedSection, SimPredictionSection
from loadgen.simulator.prompts import Prompt
from mesh.control.pool_history import PoolHistory

_DIGEST: Final = "simulated"
_STALE_AFTER_NS = 24 * 3_600_000_000_000
_HISTORY_MAX = 20_000
"""Most requests that the predictor of a pool is fitted to."""
_UNCOUNTED_OF = 16
"""One prompt of so many has no expert counts."""
_OWN = 9 * UNIT // 10
"""Cosine of a prompt to the centroid of its own cluster."""
_OTHERS = UNIT // 2
"""Largest cosine of a prompt to another centroid."""


def expert_counts_of(prompt: Prompt) -> bytes:
    """Hand-off of a prefill worker, with a number for the prompt's cluster in place of expert counts."""
    cluster = crc32(prompt.names[:NAME_BYTES])
    if cluster % _UNCOUNTED_OF == 0:
        return b"{}"
    return b'{"%b":%d}' % (COUNTS_KEY.encode(), cluster)


class DecodeInputs:
    """Inputs of the decode tiers of one life of a gateway."""

    def __init__(
        self,
        core: GatewayCore,
        agenda: Agenda,
        tell: Callable[[Event], None],
        sections: Mapping[PoolName, DisaggregatedSection],
    ) -> None:
        self._core = core
        self._agenda = agenda
        self._tell = tell
        self._sections = sections
        self._served: set[PoolName] = set()
        """Pools that the gateway serves."""
        self._fitted: dict[PoolName, int] = {}
        """Requests ever recorded when the predictor of each pool was fitted last; 0: never."""
        self._arrived: dict[PoolName, ArrivedHistories] = {}
        """Histories of other gateways, and the gateway's own from an earlier life until its pool is here."""
        self._is_closed = False

    def close(self) -> None:
        """End the life: what is due later does nothing."""
        self._is_closed = True

    def assigned(self, pools: Iterable[PoolName]) -> None:
        """Follow the artifacts and predictors of these pools, as the gateway has just been assigned them."""
        served = {pool for pool in pools if pool in self._sections}
        for pool in sorted(served ^ self._served):
            clusters = self._sections[pool].expert_clusters
            if clusters:
                is_there = pool in served
                self._tell(ArtifactReady(pool, _DIGEST if is_there else "", clusters if is_there else 0))
            prediction = self._sections[pool].prediction
            if prediction is not None and pool not in self._fitted:
                self._fitted[pool] = 0
                self._agenda.after(prediction.refit_interval, self._refit, pool, prediction)
        self._served = served
        for pool in sorted(served & self._arrived.keys()):
            self._go_on_with(pool)

    def histories(self, home_of: Mapping[PoolName, GatewayId]) -> Iterator[PoolHistory]:
        """Yield the histories of the served pools that have a predictor; `home_of` tells the pools' homes."""
        for pool in sorted(self._served):
            there = decode_pools_of(self._core).get(pool)
            if there is not None and there.workers and self._sections[pool].prediction is not None:
                here, home = self._core.gateway_id, home_of[pool]
                yield travelling(there.predictor.history.snapshot(), here, home, pool)

    def history_came(self, history: PoolHistory) -> None:
        """Go on with a history, once its pool is here."""
        pool = PoolName(history.pool)
        self._arrived.setdefault(pool, ArrivedHistories()).take(history, self._agenda.now_ns)
        if pool in self._served:
            self._go_on_with(pool)

    def _go_on_with(self, pool: PoolName) -> None:
        """Restore what this gateway has lost in a crash, and fit to what came."""
        there = decode_pools_of(self._core).get(pool)
        if there is None:
            return
        mine = self._arrived[pool].pop(self._core.gateway_id)
        if mine is not None and mine.history.added > there.predictor.history.added:
            known = mine.snapshot()
            self._tell(DecodeHistoryRestored(pool, known.ended, known.added, _HISTORY_MAX, there.predictor.horizon))
        prediction = self._sections[pool].prediction
        if prediction is not None:
            self._fit(pool, prediction)

    def nearness(self, pool: PoolName, counts: bytes) -> Nearness | None:
        """Nearness of a prompt to the centroids of its pool's artifact. None where no policy uses it, or without
        counts."""
        there = decode_pools_of(self._core).get(pool)
        if not counts or pool not in self._served or there is None or there.config.policy not in LOCAL_POLICIES:
            return None
        clusters = self._sections[pool].expert_clusters
        if not clusters:
            return None
        cluster = int(counts)
        cosines = [crc32(b"%d %d" % (cluster, other)) % _OTHERS for other in range(clusters)]
        cosines[cluster % clusters] = _OWN
        return Nearness(SignatureState.USED, _DIGEST, struct.pack(f"<{clusters}h", *cosines))

    def _refit(self, pool: PoolName, prediction: SimPredictionSection) -> None:
        if self._is_closed:
            return
        self._agenda.after(prediction.refit_interval, self._refit, pool, prediction)
        self._fit(pool, prediction)

    def _fit(self, pool: PoolName, prediction: SimPredictionSection) -> None:
        there = decode_pools_of(self._core).get(pool)
        if there is None:
            return
        snapshot = there.predictor.history.snapshot()
        if pool in self._arrived:
            snapshot = with_arrived(snapshot, self._arrived[pool].all(), _HISTORY_MAX)
        if len(snapshot.ended) < prediction.requests_min or snapshot.added == self._fitted[pool]:
            return
        self._fitted[pool] = snapshot.added
        fit = _FITS[prediction.kind]
        gain = gain_on_newest(snapshot, fit, there.config.balance)
        is_better = gain is not None and gain.is_better
        arrays, until_ns = fit(snapshot.ended), self._agenda.now_ns + _STALE_AFTER_NS
        if isinstance(arrays, SurvivalArrays):
            self._tell(PredictorFitted(pool, until_ns, survival=arrays, is_better=is_better))
        else:
            self._tell(PredictorFitted(pool, until_ns, exact_match=arrays, is_better=is_better))


def _by_all(ended: Sequence[Ended]) -> SurvivalArrays:
    return fit_survival(each.output_tokens for each in ended)


def _by_prompt_length(ended: Sequence[Ended]) -> ExactMatchArrays:
    return fit_exact_match(ended, PromptKey.LENGTH)


_FITS: Final[Mapping[str, Callable[[Sequence[Ended]], SurvivalArrays | ExactMatchArrays]]] = {
    "survival": _by_all,
    "exact_match": _by_prompt_length,
}
