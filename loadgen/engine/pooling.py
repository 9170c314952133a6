"""Embeddings, scores and rankings of the emulated engine, computed without generation and determined by the texts
alone.
"""

from __future__ import annotations

import base64
import math
import random
import struct
from dataclasses import dataclass
from typing import Any

import xxhash

from loadgen.engine.fields import Fields, bad_value, invalid, json_body, served_model, text_of_part
from loadgen.engine.tokens import TOKEN_ID_MAX, text_of, token_count

DIMENSIONS = 32
DIMENSIONS_MAX = 4096
TEXTS_MAX = 2048


@dataclass(frozen=True, slots=True)
class PoolingRequest:
    """One checked request; each of `texts` goes through the model."""

    model: str
    texts: tuple[bytes, ...]
    answer: dict[str, Any]

    @property
    def tokens(self) -> int:
        return sum(map(token_count, self.texts))


def parse_embeddings(content_type: str, body: bytes, served: tuple[str, ...]) -> PoolingRequest:
    """Parse an embeddings request. Raises ApiError."""
    fields = json_body(content_type, body)
    model = served_model(fields, served)
    texts = _inputs(fields)
    dimensions = fields.integer("dimensions", at_least=1) or DIMENSIONS
    if dimensions > DIMENSIONS_MAX:
        raise bad_value("dimensions", dimensions, f"dimensions must be at most {DIMENSIONS_MAX}.")
    as_base64 = fields.value("encoding_format") == "base64"
    vectors = [embedding(model, text, dimensions) for text in texts]
    data = [
        {"index": index, "object": "embedding", "embedding": _packed(vector) if as_base64 else vector}
        for index, vector in enumerate(vectors)
    ]
    return _request(model, texts, {"object": "list", "data": data})


def parse_rerank(content_type: str, body: bytes, served: tuple[str, ...]) -> PoolingRequest:
    """Parse a rerank request. Raises ApiError."""
    fields = json_body(content_type, body)
    model = served_model(fields, served)
    query, documents = fields.text("query"), _texts(fields, "documents")
    top = fields.integer("top_n", at_least=0) or len(documents)
    scores = [similarity(query, document) for document in documents]
    order = sorted(range(len(documents)), key=lambda index: (-scores[index], index))[:top]
    results = [
        {"index": index, "document": {"text": documents[index]}, "relevance_score": scores[index]} for index in order
    ]
    return _request(model, [_pair(query, document) for document in documents], {"results": results})


def parse_score(content_type: str, body: bytes, served: tuple[str, ...]) -> PoolingRequest:
    """Parse a score request: one text against each of the others, or two lists of equal length pair by pair. Raises
    ApiError."""
    fields = json_body(content_type, body)
    model = served_model(fields, served)
    firsts, seconds = _either(fields, "text_1", "queries"), _either(fields, "text_2", "documents")
    if len(firsts) == 1:
        firsts = firsts * len(seconds)
    if len(firsts) != len(seconds):
        raise bad_value("text_2", len(seconds), "both sides need as many texts, or the first side one.")
    pairs = list(zip(firsts, seconds, strict=True))
    data = [{"index": index, "object": "score", "score": similarity(*pair)} for index, pair in enumerate(pairs)]
    return _request(model, [_pair(*pair) for pair in pairs], {"object": "list", "data": data})


def embedding(model: str, text: bytes, dimensions: int) -> list[float]:
    """Pseudo-random vector of length 1, determined by model and text."""
    chance = random.Random(xxhash.xxh3_64_intdigest(text, seed=xxhash.xxh3_64_intdigest(model.encode())))
    drawn = [chance.gauss(0.0, 1.0) for _ in range(dimensions)]
    length = math.hypot(*drawn)
    return [value / length for value in drawn]


def similarity(first: str, second: str) -> float:
    """Share of words that two texts have in common, 0..1."""
    words, others = set(first.lower().split()), set(second.lower().split())
    return len(words & others) / max(len(words | others), 1)


def _request(model: str, texts: list[bytes], answer: dict[str, Any]) -> PoolingRequest:
    request = PoolingRequest(model, tuple(texts), answer)
    usage = {"prompt_tokens": request.tokens, "total_tokens": request.tokens}
    answer |= {"model": model, "usage": usage}
    return request


def _inputs(fields: Fields) -> list[bytes]:
    """Input texts: one or several, each text or a list of token ids."""
    value = fields.value("input")
    items = value if isinstance(value, list) and not _are_token_ids(value) else [value]
    return [_input(item, value) for item in _some(items, "input")]


def _input(item: object, value: object) -> bytes:
    if isinstance(item, str) and item:
        return item.encode("utf-8", "surrogatepass")
    if isinstance(item, list) and _are_token_ids(item):
        return text_of(item)
    raise invalid("input", "string_type", "Input should be texts or lists of token ids, none of them empty", value)


def _are_token_ids(value: list[Any]) -> bool:
    return bool(value) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= TOKEN_ID_MAX for item in value
    )


def _either(fields: Fields, name: str, other: str) -> list[str]:
    return _texts(fields, name if fields.value(name) is not None else other)


def _texts(fields: Fields, name: str) -> list[str]:
    value = fields.value(name)
    if value is None:
        raise invalid(name, "missing", "Field required", fields.members)
    return [text_of_part(item) for item in _some(value if isinstance(value, list) else [value], name)]


def _some(items: list[Any], name: str) -> list[Any]:
    if not 0 < len(items) <= TEXTS_MAX:
        raise bad_value(name, len(items), f"{name} must hold 1 to {TEXTS_MAX} texts.")
    return items


def _pair(first: str, second: str) -> bytes:
    return f"{first}\n{second}".encode("utf-8", "surrogatepass")


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
