from __future__ import annotations

import json
import zlib
from base64 import b64encode

import numpy as np
import pytest

from gateway.features.expert_locality.expert_counts import BadCounts, read_counts
from tests.support.locality import told


def packed(raw: bytes) -> str:
    return b64encode(zlib.compress(raw)).decode()


def test_they_are_read_as_they_were_said() -> None:
    read = read_counts(told([[1, 2, 65_535], [0, 0, 256]], model="m"))
    assert (read.counts.tolist(), read.model) == ([[1, 2, 65_535], [0, 0, 256]], "m")


def test_those_of_a_large_model_fit() -> None:
    counts = np.random.default_rng(1).integers(0, 400, (48, 128))
    assert (read_counts(told(counts.tolist())).counts == counts).all()


@pytest.mark.parametrize(
    "text, fault",
    [
        (b"", "not in the form"),
        (b"[" * 60_000, "not in the form"),
        (b"null", "not in the form"),
        (b'{"v":1}', "not in the form"),
        (b'{"v":1,"layers":NaN,"experts":1,"counts":""}', "not in the form"),
        (b'{"v":1,"x":"%b"}' % (b"x" * (64 << 10)), "more than 64 KiB"),
        (told([[1]], v=2), "version 2"),
        (told([[1]], model="x" * 200), "fingerprint is too long"),
        (told([[1]], layers=0), "of a shape"),
        (told([[1]], layers=-1), "of a shape"),
        (told([[1]], layers=10**6, experts=10**6), "of a shape"),
        (told([[1]], counts="!!"), "cannot be unpacked"),
        (told([[1]], counts=b64encode(b"no zlib").decode()), "cannot be unpacked"),
        (told([[1, 2]], experts=1), "not as many"),
        (told([[1, 2]], experts=3), "not as many"),
        (told([[1]], counts=packed(bytes(1 << 24))), "not as many"),
    ],
)
def test_nothing_of_them_is_believed(text: bytes, fault: str) -> None:
    with pytest.raises(BadCounts, match=fault) as raised:
        read_counts(text)
    assert len(str(raised.value)) < 100, "what was said is not told again"


def test_what_is_cut_off_is_no_counts() -> None:
    whole = json.loads(told([[5] * 64] * 8))
    cut = b64encode(zlib.compress(bytes(range(256)) * 4)[:-30]).decode()
    with pytest.raises(BadCounts, match=r"not as many|cannot be unpacked"):
        read_counts(json.dumps(whole | {"counts": cut}).encode())
