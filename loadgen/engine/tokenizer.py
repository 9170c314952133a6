"""Tokenizer endpoints of the emulated engine: text to token ids and back, in vLLM's format, without a model."""

from __future__ import annotations

from typing import Any

from loadgen.engine.api_requests import is_token_id, messages_of
from loadgen.engine.fields import invalid, json_body, served_model
from loadgen.engine.tokens import chat_prompt, text_of, token_ids


def tokenize(content_type: str, body: bytes, served: tuple[str, ...], context_tokens_max: int) -> dict[str, Any]:
    """Token ids of a prompt, or of a conversation after the chat template. Raises ApiError."""
    fields = json_body(content_type, body)
    served_model(fields, served)
    if fields.value("messages") is not None:
        text = chat_prompt(messages_of(fields))
    else:
        text = fields.text("prompt").encode("utf-8", "surrogatepass")
    ids = token_ids(text)
    return {"count": len(ids), "max_model_len": context_tokens_max, "tokens": ids, "token_strs": None}


def detokenize(content_type: str, body: bytes, served: tuple[str, ...]) -> dict[str, Any]:
    """Text behind a list of token ids. Raises ApiError."""
    fields = json_body(content_type, body)
    served_model(fields, served)
    ids = fields.value("tokens")
    if not isinstance(ids, list) or not all(map(is_token_id, ids)):
        raise invalid("tokens", "list_type", "Input should be a valid list", ids)
    return {"prompt": text_of(ids).decode("utf-8", "replace")}
