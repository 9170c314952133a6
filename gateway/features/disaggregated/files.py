"""Files of a pool's predictor: the history that it is fitted to, the artifact, which is plain arrays, and a secret.

Neither history nor artifact holds text, names or code. A file that is damaged, of another version or too large is
refused with a reason; it is not repaired.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from gateway.core.features.disaggregated.predictors.arrays import (
    LENGTHS_MAX,
    TOKENS_MAX,
    ExactMatchArrays,
    LearnedArrays,
    PredictorArrays,
    PredictorKind,
    SurvivalArrays,
    UnusableArrays,
)
from gateway.core.features.disaggregated.predictors.catalogue import kind_of, make_estimator
from gateway.core.features.disaggregated.predictors.estimator import KEY_MAX
from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot
from mesh.state_files import StateFile, StateUnusable

_MILLISECOND_NS = 1_000_000
_SECRET_BYTES = 32
_SECRET_BYTES_MAX = 64


# History


class HistoryColumns(Struct, frozen=True):
    """Columns of equal length with one entry for each request, in the order in which the requests ended."""

    added: int
    prompt_keys: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    after: tuple[int, ...]
    ended_ms: tuple[int, ...]
    """Wall time in milliseconds since 1970."""


def history_file(path: Path) -> StateFile[HistoryColumns]:
    return StateFile(path, "decode history", 1, HistoryColumns)


def read_history(path: Path) -> Snapshot | None:
    """Read a history, with wall times; None where there is no file. Raises StateUnusable."""
    columns = history_file(path).read()
    return None if columns is None else _snapshot_of(columns, path)


def write_history(path: Path, snapshot: Snapshot, wall_ahead_ns: int = 0) -> None:
    """Write a history. `wall_ahead_ns` is added to its times to make them wall times. Raises OSError."""
    ended = snapshot.ended
    columns = HistoryColumns(
        snapshot.added,
        tuple(each.prompt_key for each in ended),
        tuple(each.prompt_tokens for each in ended),
        tuple(each.output_tokens for each in ended),
        tuple(each.after for each in ended),
        tuple((each.ended_ns + wall_ahead_ns) // _MILLISECOND_NS for each in ended),
    )
    history_file(path).write(columns)


def _snapshot_of(columns: HistoryColumns, path: Path) -> Snapshot:
    count = len(columns.prompt_keys)
    lengths = (columns.prompt_tokens, columns.output_tokens, columns.after, columns.ended_ms)
    if any(len(column) != count for column in lengths):
        raise StateUnusable(f"{path}: its columns are not equally long")
    if not count <= min(LENGTHS_MAX, columns.added):
        raise StateUnusable(f"{path}: {count} requests are more than {min(LENGTHS_MAX, columns.added)}")
    for column, highest in (
        (columns.prompt_keys, KEY_MAX),
        (columns.prompt_tokens, TOKENS_MAX),
        (columns.output_tokens, TOKENS_MAX),
        (columns.after, columns.added),
    ):
        _check(column, highest, path)
    rows = zip(columns.prompt_keys, *lengths, strict=True)
    ended = (Ended(key, prompt, output, after, ms * _MILLISECOND_NS) for key, prompt, output, after, ms in rows)
    return Snapshot(tuple(ended), columns.added)


def _check(column: Sequence[int], highest: int, path: Path) -> None:
    if column and not 0 <= min(column) <= max(column) <= highest:
        raise StateUnusable(f"{path}: holds a number that is not between 0 and {highest}")


# Secret for prompt keys


class Secret(Struct, frozen=True):
    """Secret that prompt keys are made with. It is kept apart from the files with the keys, so that a reader of those
    files cannot confirm a guess at a prompt."""

    hex: str


def read_or_make_secret(path: Path) -> bytes:
    """Secret in the file, or a new one that is written there. Raises StateUnusable and OSError."""
    file: StateFile[Secret] = StateFile(path, "decode secret", 1, Secret)
    found = file.read()
    if found is not None:
        try:
            return bytes.fromhex(found.hex)[:_SECRET_BYTES_MAX]
        except ValueError as error:
            raise StateUnusable(f"{path}: holds no secret") from error
    fresh = secrets.token_bytes(_SECRET_BYTES)
    file.write(Secret(fresh.hex()))
    return fresh


# Artifact


class Artifact(Struct, frozen=True):
    """Predictor that was fitted: its arrays, which are of exactly one kind, the number of requests and the time."""

    fitted_ms: int
    """Wall time in milliseconds since 1970."""
    requests: int
    fitted_by: str
    """Program and versions, for operators."""
    survival: SurvivalArrays | None = None
    exact_match: ExactMatchArrays | None = None
    learned: LearnedArrays | None = None

    @property
    def arrays(self) -> PredictorArrays:
        arrays = self.survival or self.exact_match or self.learned
        assert arrays is not None, "an artifact that was read has arrays"
        return arrays

    @property
    def kind(self) -> PredictorKind:
        return kind_of(self.arrays)

    def fresh_for_ns(self, wall_ns: int, stale_after_ns: int) -> int:
        """Nanoseconds for which it may still be used; an artifact from the future counts as new."""
        age_ns = max(0, wall_ns - self.fitted_ms * _MILLISECOND_NS)
        return max(0, stale_after_ns - age_ns)


def artifact_file(path: Path) -> StateFile[Artifact]:
    return StateFile(path, "decode predictor", 1, Artifact)


def artifact_of(arrays: PredictorArrays, *, requests: int, wall_ns: int, fitted_by: str) -> Artifact:
    return Artifact(
        wall_ns // _MILLISECOND_NS,
        requests,
        fitted_by,
        survival=arrays if isinstance(arrays, SurvivalArrays) else None,
        exact_match=arrays if isinstance(arrays, ExactMatchArrays) else None,
        learned=arrays if isinstance(arrays, LearnedArrays) else None,
    )


def read_artifact(path: Path) -> Artifact | None:
    """Read an artifact of which an estimator can be made; None where there is no file. Raises StateUnusable."""
    artifact = artifact_file(path).read()
    if artifact is None:
        return None
    there = [each for each in (artifact.survival, artifact.exact_match, artifact.learned) if each is not None]
    if len(there) != 1:
        raise StateUnusable(f"{path}: should hold the arrays of one kind, and holds those of {len(there)}")
    try:
        make_estimator(artifact.arrays)
    except UnusableArrays as error:
        raise StateUnusable(f"{path}: {error}") from error
    return artifact
