"""Calls to engines that share their work (prefill and decode), and readers of their answers."""

from __future__ import annotations

import json
import os
from typing import Any

from gateway.request import engine_api
from tests.support.core import MODEL

CHAT, COMPLETIONS = engine_api.CHAT_PATH, engine_api.COMPLETIONS_PATH
TOKENS = 24
FETCHED = "vllm:external_prefix_cache_hits_total"
"""Metric of tokens whose KV cache an engine fetched from another engine."""
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"


def long_text() -> str:
    """Text of some ten blocks that differs each time, so that no prefix cache holds it."""
    return " ".join(f"region {os.urandom(3).hex()} sleeps" for _ in range(20))


def asked(path: str, text: str, **changes: object) -> bytes:
    """Body of a call with every member that shapes the answer, so that each change of the gateway to the body has one
    to act on.
    """
    words: dict[str, dict[str, object]] = {
        CHAT: {
            "messages": [{"role": "user", "content": text}],
            "max_completion_tokens": TOKENS,
            "min_tokens": TOKENS,
            "ignore_eos": True,
            "logprobs": True,
            "top_logprobs": 2,
            "logprob_token_ids": [300, 301],
        },
        COMPLETIONS: {"prompt": text, "max_tokens": TOKENS, "min_tokens": TOKENS, "ignore_eos": True, "logprobs": 2},
        engine_api.MESSAGES_PATH: {"messages": [{"role": "user", "content": text}], "max_tokens": TOKENS},
        engine_api.RESPONSES_PATH: {"input": text, "max_output_tokens": TOKENS, "store": False},
    }
    return json.dumps({"model": MODEL, "temperature": 0, **words[path], **changes}).encode()


def said_in(path: str, said: bytes) -> list[Any]:
    """Generated text and logprobs of an answer, whole or streamed; joined, since engines put two tokens into one event
    at times.
    """
    events = [line[6:] for line in said.splitlines() if line.startswith(b"data: {")] or [said]
    documents = [json.loads(event) for event in events]
    if path in (CHAT, COMPLETIONS):
        choices = [choice for document in documents for choice in document["choices"]]
        parts = [choice.get("delta") or choice.get("message") or choice for choice in choices]
        texts = [part.get("content") or part.get("text") or "" for part in parts]
        logprobs = [list((choice["logprobs"] or {}).items()) for choice in choices]
        flat = [
            each for pairs in logprobs for name, values in pairs if name in ("content", "tokens") for each in values
        ]
        return ["".join(texts), flat]
    if len(documents) > 1:
        deltas = [each.get("delta") for each in documents]
        return ["".join((d.get("text") or "") if isinstance(d, dict) else d for d in deltas if d)]
    (document,) = documents
    if path == engine_api.MESSAGES_PATH:
        return ["".join(block["text"] for block in document["content"])]
    return ["".join(part["text"] for item in document["output"] for part in item["content"])]


PATHS = (CHAT, COMPLETIONS, engine_api.MESSAGES_PATH, engine_api.RESPONSES_PATH)


def comparable(answer: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(answer)
    for name in ("id", "created", "system_fingerprint"):
        assert document.pop(name)
    document["usage"].pop("prompt_tokens_details")
    return document
