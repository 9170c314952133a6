from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from loadgen.engine.fields import ApiError
from loadgen.engine.pooling import (
    DIMENSIONS,
    TEXTS_MAX,
    PoolingRequest,
    embedding,
    parse_embeddings,
    parse_rerank,
    parse_score,
    similarity,
)
from loadgen.engine.tokens import text_of

SERVED = ("m",)


def embed(**fields: Any) -> PoolingRequest:
    return parse_embeddings("application/json", json.dumps(fields).encode(), SERVED)


def rerank(**fields: Any) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = parse_rerank("application/json", json.dumps(fields).encode(), SERVED).answer[
        "results"
    ]
    return results


def scores(**fields: Any) -> list[float]:
    answer = parse_score("application/json", json.dumps(fields).encode(), SERVED).answer
    return [each["score"] for each in answer["data"]]


class TestEmbeddings:
    @pytest.mark.parametrize(
        ("said", "texts"),
        [
            ("one", (b"one",)),
            (["one", "two"], (b"one", b"two")),
            ([1, 2], (text_of([1, 2]),)),
            ([[1, 2], [3]], (text_of([1, 2]), text_of([3]))),
        ],
    )
    def test_input_may_have_any_shape(self, said: object, texts: tuple[bytes, ...]) -> None:
        request = embed(input=said)
        assert request.texts == texts
        assert [each["embedding"] for each in request.answer["data"]] == [
            embedding("m", text, DIMENSIONS) for text in texts
        ]
        assert request.answer["usage"]["prompt_tokens"] == request.tokens > 0

    def test_vectors_have_length_one_and_belong_to_their_text_and_model(self) -> None:
        vector = embedding("m", b"one", 8)
        assert sum(value * value for value in vector) == pytest.approx(1.0)
        assert vector == embedding("m", b"one", 8)
        assert vector != embedding("m", b"two", 8)
        assert vector != embedding("n", b"one", 8)

    def test_they_may_be_packed_and_shortened(self) -> None:
        packed = embed(input="one", encoding_format="base64", dimensions=4).answer["data"][0]["embedding"]
        assert struct.unpack("<4f", base64.b64decode(packed)) == pytest.approx(embedding("m", b"one", 4))

    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"input": ""},
            {"input": []},
            {"input": [""]},
            {"input": [[]]},
            {"input": [-1]},
            {"input": [True]},
            {"input": {"a": 1}},
            {"input": ["x"] * (TEXTS_MAX + 1)},
            {"input": "x", "dimensions": 10**9},
            {"input": "x", "model": "nope"},
        ],
    )
    def test_what_is_no_input_is_refused(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ApiError) as caught:
            embed(**fields)
        assert caught.value.status in (400, 404)


class TestOrders:
    def test_the_nearest_comes_first_and_equals_keep_their_order(self) -> None:
        results = rerank(query="red fox", documents=["blue", "a red fox", "green", "red"])
        assert [each["index"] for each in results] == [1, 3, 0, 2]
        assert results[0]["document"] == {"text": "a red fox"}
        assert [each["relevance_score"] for each in results] == sorted(
            (each["relevance_score"] for each in results), reverse=True
        )

    def test_only_as_many_as_were_asked_for(self) -> None:
        assert len(rerank(query="x", documents=["a", "b", "c"], top_n=2)) == 2
        assert len(rerank(query="x", documents=["a", "b", "c"], top_n=9)) == 3

    def test_scores_are_of_pairs(self) -> None:
        assert scores(text_1="a b", text_2=["a b", "a", "c"]) == [1.0, 0.5, 0.0]
        assert scores(text_1=["a", "b"], text_2=["a", "c"]) == [1.0, 0.0]
        assert scores(queries="a", documents=["a"]) == [1.0]
        assert similarity("", "") == 0.0

    def test_sides_that_do_not_fit_are_refused(self) -> None:
        with pytest.raises(ApiError):
            scores(text_1=["a", "b"], text_2=["a"])
