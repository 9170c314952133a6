"""Settings of a disaggregated pool's output-length predictor. The checks here decide nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.core.features.disaggregated.config import check_decode, decode_of, out_of_bounds
from gateway.core.features.disaggregated.predictors.arrays import LENGTHS_MAX, PredictorKind, PromptKey
from gateway.core.vocabulary import PoolSpec
from gateway.features.section import FeatureSection, WrittenFile, duration_fault, duration_faults, settings_in
from mesh.faults import FileFault
from mesh.values import MILLISECOND_NS, SECOND_NS

_MINUTE_NS = 60 * SECOND_NS
_KEY = "prediction"
"""Key of a pool's description that holds its `PredictionConfig`."""
_TICKS = {"tick_interval_ns": MILLISECOND_NS, "progress_interval_ns": MILLISECOND_NS}
"""Least durations of the decode tier's intervals."""
_LEASE_MIN_NS = 100 * MILLISECOND_NS


class PredictionConfig(FeatureSection, frozen=True):
    """Output-length predictor of a disaggregated pool."""

    kind: PredictorKind = PredictorKind.EXACT_MATCH
    """Method of predicting the length of an output."""
    key: PromptKey = PromptKey.PROMPT_OR_LENGTH
    """Prompts that count as the same under `exact_match`."""
    artifact: Path | None = None
    """File written by `nightside fit predictor`, read again at each refit. None: the gateway fits to its own
    history."""
    history_max: int = 20_000
    """Most requests in the history; beyond it, the oldest is dropped."""
    requests_min: int = 200
    """Requests below which the gateway neither fits nor predicts."""
    refit_interval_ns: int = 10 * _MINUTE_NS
    """Interval of fitting the predictor to the history again."""
    refit_timeout_ns: int = 5 * _MINUTE_NS
    """Time-out of fitting `learned`, which runs in a process of its own."""
    save_interval_ns: int = _MINUTE_NS
    """Interval of saving the history; a crash loses the requests that ended since."""
    stale_after_ns: int = 24 * 60 * _MINUTE_NS
    """Age above which a fit is not used."""

    def faults(self, file: WrittenFile) -> Iterator[FileFault]:
        if self.kind is PredictorKind.LEARNED and self.artifact is None and not file.keeps_state:
            yield FileFault("kind", "learned is fitted to a file: name `state.folder`, or an `artifact`")

    def read_files(self) -> Iterator[Path]:
        if self.artifact is not None:
            yield self.artifact


def prediction_of(spec: PoolSpec) -> PredictionConfig:
    """Settings of a pool's predictor."""
    return settings_in(spec, _KEY, PredictionConfig) or PredictionConfig()


def decode_faults(spec: PoolSpec) -> Iterator[FileFault]:
    """Faults of the settings that a pool's decode tier decides by, and contradictions between them and its
    connector."""
    if spec.connector is None:
        return
    config = decode_of(spec)
    faults = [FileFault(f"decode.{key}", what) for key, what in out_of_bounds(config)]
    faults += duration_faults(config, "decode", _TICKS)
    faults += duration_fault("lease", spec.lease_ns, _LEASE_MIN_NS)
    yield from faults
    if not faults:
        try:
            check_decode(config, spec.connector)
        except ValueError as error:
            yield FileFault("decode", str(error))


def prediction_faults(spec: PoolSpec) -> Iterator[FileFault]:
    """Faults of the settings of a pool's predictor, and contradictions between them."""
    config = prediction_of(spec)
    yield from duration_faults(config, "prediction")
    if not 0 < config.history_max <= LENGTHS_MAX:
        yield FileFault("prediction.history_max", f"should lie between 1 and {LENGTHS_MAX}")
    if not 0 < config.requests_min <= config.history_max:
        yield FileFault("prediction.requests_min", "should lie between 1 and history_max: there never are more")
    if config.stale_after_ns <= config.refit_interval_ns:
        yield FileFault(
            "prediction.stale_after", "should be longer than refit_interval, or nothing is ever used for long"
        )
