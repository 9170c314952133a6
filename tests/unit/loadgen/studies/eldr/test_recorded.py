from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadgen.studies.eldr.recorded import EXPERTS, WINDOW, read_recorded
from loadgen.studies.eldr.requests import split
from loadgen.traces.files import TraceError


def write(path: Path, **changed: np.ndarray) -> Path:
    """Write two documents of law, 200 and 60 tokens, and two of code, 20 and 128; each token picks the expert of its
    number, and the next ones.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, lengths in (("law", [200, 60]), ("code", [20, 128])):
        tokens = np.arange(sum(lengths))[None, :, None] + np.arange(6)[None, None, :] + np.arange(3)[:, None, None]
        arrays[f"{name}_ids"] = (tokens % EXPERTS).astype(np.uint8)
        arrays[f"{name}_seqlens"] = np.array(lengths)
    np.savez(path, **(arrays | changed))  # type: ignore[arg-type]
    return path


def test_a_window_is_a_request_whose_first_half_is_its_prompt(tmp_path: Path) -> None:
    read = read_recorded(write(tmp_path / "r.npz"))
    assert list(zip(read.documents, read.prompt_tokens, strict=True)) == [
        ("code/1", 64),
        ("law/0", 64),
        ("law/0", 36),
        ("law/1", 30),
    ]
    assert read.prefill.sum(axis=2).tolist() == [[each * 6] * 3 for each in read.prompt_tokens]
    assert read.decode.sum(axis=2) == pytest.approx(6.0)
    assert read.prefill[1, 0, 0] == 6, "of tokens 0 to 63, the first picks expert 0, and the last five come round to it"
    assert WINDOW == 128


def test_the_halves_come_from_different_documents(tmp_path: Path) -> None:
    calibration, test = split(read_recorded(write(tmp_path / "r.npz")), 0.5)
    assert not set(calibration.documents) & set(test.documents)


@pytest.mark.parametrize(
    "changed, fault",
    [
        ({"law_ids": np.full((3, 260, 6), EXPERTS, np.uint8)}, "law: its picks and lengths"),
        ({"law_seqlens": np.array([200, 61])}, "law: its picks and lengths"),
        ({"law_ids": np.array([None], dtype=object)}, "cannot be read"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, changed: dict[str, np.ndarray], fault: str) -> None:
    with pytest.raises(TraceError, match=fault):
        read_recorded(write(tmp_path / "r.npz", **changed))


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.npz").write_bytes(b"none")
    with pytest.raises(TraceError, match="cannot be read"):
        read_recorded(tmp_path / "r.npz")
    np.savez(tmp_path / "e.npz", x=np.zeros(1))
    with pytest.raises(TraceError, match="no domain"):
        read_recorded(tmp_path / "e.npz")
