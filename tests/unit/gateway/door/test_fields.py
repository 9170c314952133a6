from __future__ import annotations

import json
import random

import pytest

from gateway.door import fields
from gateway.door.fields import FIELDS_MAX, has_too_many_fields

MANY = FIELDS_MAX + 1


@pytest.mark.parametrize("piece", [b'"":1,', b'"rid":null,', b' "a" : [1,{"b":2}] ,', b'"\\"":"\\\\",'])
def test_more_than_there_may_be(piece: bytes) -> None:
    assert has_too_many_fields(b'{%b"model":"m"}' % (piece * MANY))
    assert not has_too_many_fields(b'{%b"model":"m"}' % (piece * (FIELDS_MAX - 1)))


@pytest.mark.parametrize(
    "inside",
    [
        [{"role": "user", "content": "a:b,c"}] * MANY,
        {str(number): 1 for number in range(MANY)},
        '{"a":1,"b":2},' * MANY,
        '\\",:' * MANY,
        [[1, 2, 3]] * MANY,
    ],
)
def test_what_is_further_inside_is_not_counted(inside: object) -> None:
    assert not has_too_many_fields(json.dumps({"model": "m", "messages": inside}, separators=(",", ":")).encode())


def test_where_it_is_cut_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares with a JSON decoder, on documents that are mostly made of the characters to be told apart."""
    rng = random.Random(1)
    monkeypatch.setattr(fields, "FIELDS_MAX", 5)
    for _ in range(300):
        monkeypatch.setattr(fields, "_PIECE_BYTES", rng.randint(1, 12))
        document = {str(number): _anything(rng) for number in range(rng.randint(0, 10))}
        raw = json.dumps(document, separators=(",", ":")).encode()
        assert fields._has_more_commas(raw) == (len(document) > 5), raw


def _anything(rng: random.Random, depth: int = 0) -> object:
    if depth < 3 and rng.random() < 0.5:
        inside = [_anything(rng, depth + 1) for _ in range(rng.randint(0, 4))]
        return inside if rng.random() < 0.5 else {'\\"{[,:'[at % 6 :]: each for at, each in enumerate(inside)}
    return "".join(rng.choices('\\"{}[],:x', k=rng.randint(0, 8)))
