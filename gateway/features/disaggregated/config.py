"""Settings of a disaggregated pool's output-length predictor. The checks here decide nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.core.config import CoreConfig
from gateway.core.features.disaggregated.config import check_decode, out_of_bounds
from gateway.core.features.disaggregated.predictors.arrays import LENGTHS_MAX, PredictorKind, PromptKey
from gateway.core.vocabulary import Connector
from gateway.features.section import FeatureSection, WrittenFile
from mesh.faults import FileFault
from mesh.values import SECOND_NS

_MINUTE_NS = 60 * SECOND_NS


class PredictionConfig(FeatureSection, frozen=True):
    """Output-length predictor of disaggregated pools."""

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
        try:
            check_prediction(self, has_folder=file.keeps_state)
        except ValueError as error:
            key, _, what = str(error).partition(": ")
            yield FileFault(f"prediction.{key}", what) if what else FileFault("prediction", key)


def decode_faults(core: CoreConfig) -> Iterator[FileFault]:
    """Faults of the settings that the decode tier decides by."""
    yield from (FileFault(f"decode.{key}", what) for key, what in out_of_bounds(core.decode))


def why_unfit(core: CoreConfig, connector: Connector) -> str:
    """Contradiction between the decode settings and a pool's connector; empty if there is none, or if the settings are
    faulty by themselves."""
    if any(out_of_bounds(core.decode)):
        return ""
    try:
        check_decode(core.decode, connector)
    except ValueError as error:
        return f"decode: {error}"
    return ""


def check_prediction(config: PredictionConfig, *, has_folder: bool) -> None:
    """Raise ValueError, in words, for settings that contradict each other."""
    if not 0 < config.history_max <= LENGTHS_MAX:
        raise ValueError(f"history_max: should lie between 1 and {LENGTHS_MAX}")
    if not 0 < config.requests_min <= config.history_max:
        raise ValueError("requests_min: should lie between 1 and history_max: there never are more")
    if config.kind is PredictorKind.LEARNED and config.artifact is None and not has_folder:
        raise ValueError("kind learned is fitted to a file: name `state.folder`, or an `artifact`")
    if config.stale_after_ns <= config.refit_interval_ns:
        raise ValueError("stale_after: should be longer than refit_interval, or nothing is ever used for long")
