"""Answers of the emulated engine, byte for byte in the shapes recorded from vLLM 0.32.

One `ApiAnswer` per request: it knows the whole output beforehand and writes the bytes for any range of its tokens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

from loadgen.engine.api_requests import GenerationRequest
from loadgen.engine.fields import ApiError
from loadgen.engine.tokens import TOKEN_BYTES, token_ids
from loadgen.engine.tools import call_id
from loadgen.engine.vocabulary import Endpoint, FinishReason

ENGINE_VERSION = "0.32.0"
FINGERPRINT = f"vllm-{ENGINE_VERSION}-emulated"
DONE = b"data: [DONE]\n\n"

_BUSY = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)


def busy() -> ApiError:
    """Error of admission control: the request is safe to retry at another engine."""
    return ApiError(503, "Service Unavailable", _BUSY)


def internal() -> ApiError:
    return ApiError(500, "InternalServerError", "Internal server error")


def shutting_down() -> ApiError:
    return ApiError(500, "InternalServerError", "cannot schedule new futures after shutdown")


def encode(content: object) -> bytes:
    """JSON without spaces, as vLLM writes every body but the error events of a stream."""
    return msgspec.json.encode(content)


def event(content: object) -> bytes:
    return b"data: %b\n\n" % encode(content)


def error_event(error: ApiError) -> bytes:
    """Error event of a stream whose status has been sent; vLLM writes this one with spaces."""
    return f"data: {json.dumps(error.content())}\n\n".encode()


@dataclass(slots=True)
class AnyAnswer:
    """One answer of any API: its identity and its whole output, of which it writes any range of tokens."""

    request: GenerationRequest
    answer_id: str
    created: int
    prompt_tokens: int
    output: bytes
    cached_tokens: int = field(default=0, kw_only=True)
    """Prompt tokens found in the cache; known once the engine admits the request, before the first token."""
    cut_reason: FinishReason = field(default=FinishReason.ABORT, kw_only=True)
    """Finish reason reported for an answer that ends early."""
    stop_reason: str | None = field(default=None, kw_only=True)
    """Stop reason reported with it."""
    handed_over: dict[str, Any] | None = field(default=None, kw_only=True)
    """KV transfer parameters for the decode worker's fetch: where the KV cache is kept. Known at the end."""


@dataclass(slots=True)
class ApiAnswer(AnyAnswer):
    preamble: bytes = b""
    """Bytes of a stream that precede the first token."""
    is_one_of_several: bool = False
    """True for a choice of a request with several, which end together with one usage."""
    _plain: tuple[bytes, bytes] = field(init=False)
    """Bytes before and after the text of a chunk that does not finish the answer."""

    def __post_init__(self) -> None:
        mark = "\0"
        before, after = event(self._chunk(mark, 0, None)).split(encode(mark)[1:-1])
        self._plain = before, after

    @property
    def is_chat(self) -> bool:
        return self.request.endpoint is Endpoint.CHAT

    def piece(self, start: int, end: int, reason: FinishReason | None) -> bytes:
        """Stream bytes of tokens `start` … `end` - 1, with the opening if `start` is 0 and, given a reason, the end."""
        opening = self._opening() if start == 0 else b""
        if reason is None:
            return opening + self._chunks(start, end, None)
        if reason is FinishReason.ABORT:
            return opening + self._chunks(start, end, None) + self._aborted(end) + self._last(end)
        return opening + self._chunks(start, end, reason) + self._last(end)

    def whole(self, tokens: int, reason: FinishReason) -> bytes:
        """The body of an answer that is not streamed."""
        return self.body([self.choice(tokens, reason)], tokens)

    def choice(self, tokens: int, reason: FinishReason) -> dict[str, Any]:
        text = self.output[: tokens * TOKEN_BYTES]
        reason = self.cut_reason if reason is FinishReason.ABORT else reason
        return self._chat_choice(text, reason) if self.is_chat else self._completion_choice(text, reason)

    def body(self, choices: list[dict[str, Any]], tokens: int) -> bytes:
        """Body of an answer that is not streamed. `tokens`: output tokens of all choices."""
        details = {"cached_tokens": self.cached_tokens, "created_cache_tokens": 0 if self.is_chat else None}
        usage = self._counts(tokens) | {
            "prompt_tokens_details": details | {"multimodal_tokens": None},
            "completion_tokens_details": None,
        }
        of_the_prompt = {
            "prompt_logprobs": None,
            "prompt_token_ids": self._ids(self.request.prompt),
            "prompt_text": None,
        }
        return encode(
            self._identity(choices, whole=True)
            | {"service_tier": None, "system_fingerprint": FINGERPRINT, "usage": usage}
            | (of_the_prompt if self.is_chat else {})
            | {"kv_transfer_params": self.handed_over, "ec_transfer_params": None, "metrics": None}
        )

    def _opening(self) -> bytes:
        """The chat stream's first event: it names the role and goes out together with the first token."""
        if not self.is_chat:
            return b""
        choice = {
            "index": self.request.index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        prompt = {"prompt_token_ids": self._ids(self.request.prompt), "prompt_text": None}
        opening = event(self._identity([choice]) | self._usage_so_far(0) | prompt)
        return opening if self.request.tool is None else opening + event(self._named_call())

    def _chunks(self, start: int, end: int, reason: FinishReason | None) -> bytes:
        """The events of tokens `start` … `end` - 1; with a reason the last of them finishes the answer."""
        plain_end = end if reason is None else end - 1
        request = self.request
        needs_escapes = request.tool is not None or request.schema is not None
        if request.continuous_usage or request.return_token_ids or needs_escapes:
            plain = b"".join([event(self._chunk(self._text(i), i + 1, None)) for i in range(start, plain_end)])
        else:
            before, after = self._plain
            texts = range(start * TOKEN_BYTES, plain_end * TOKEN_BYTES, TOKEN_BYTES)
            plain = b"".join([before + self.output[i : i + TOKEN_BYTES] + after for i in texts])
        if reason is None:
            return plain
        return plain + event(self._chunk(self._text(plain_end), end, reason))

    def _aborted(self, tokens: int) -> bytes:
        """Event that ends an aborted stream: no text, and `cut_reason` as its finish reason."""
        return event(self._chunk("", tokens, self.cut_reason))

    def _last(self, tokens: int) -> bytes:
        return b"" if self.is_one_of_several else self.ending(tokens)

    def ending(self, tokens: int) -> bytes:
        """Usage event, if requested, and the end mark."""
        if not self.request.include_usage:
            return DONE
        details = {"cached_tokens": self.cached_tokens, "created_cache_tokens": 0}
        usage = self._counts(tokens) | {"prompt_tokens_details": details}
        return event(self._identity([]) | {"usage": usage, "system_fingerprint": FINGERPRINT}) + DONE

    def _chunk(self, text: str, tokens: int, reason: FinishReason | None) -> dict[str, Any]:
        """The event of token number `tokens`."""
        choice = self._chat_delta(text, reason) if self.is_chat else self._text_delta(text, tokens, reason)
        chunk = self._identity([choice]) | self._usage_so_far(tokens)
        if reason is not None and not self.request.include_usage:
            chunk["system_fingerprint"] = FINGERPRINT
        return chunk

    def _chat_delta(self, text: str, reason: FinishReason | None) -> dict[str, Any]:
        said: dict[str, Any] = {"content": text}
        if self.request.tool is not None:
            said = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        finish = self._finish_reason(reason)
        delta: dict[str, Any] = {"index": self.request.index, "delta": said, "logprobs": None, "finish_reason": finish}
        if reason is not None:
            delta["stop_reason"] = self.stop_reason
        return delta | {"token_ids": self._ids(text.encode())}

    def _named_call(self) -> dict[str, Any]:
        """Event that begins a call of the tool; its arguments follow."""
        delta = {"tool_calls": [{"index": 0, **self._call("")}]}
        choice = {"index": self.request.index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._identity([choice]) | self._usage_so_far(0)

    def _call(self, arguments: str) -> dict[str, Any]:
        assert self.request.tool is not None
        function = {"name": self.request.tool.name, "arguments": arguments}
        return {"id": f"chatcmpl-tool-{call_id(self.request.prompt)}", "type": "function", "function": function}

    def _finish_reason(self, reason: FinishReason | None) -> str | None:
        return "tool_calls" if self.request.tool is not None and reason is FinishReason.STOP else reason

    def _text_delta(self, text: str, tokens: int, reason: FinishReason | None) -> dict[str, Any]:
        return {
            "index": self.request.index,
            "text": text,
            "logprobs": None,
            "finish_reason": reason,
            "stop_reason": self.stop_reason,
            "prompt_token_ids": self._ids(self.request.prompt) if tokens == 1 else None,
            "token_ids": self._ids(text.encode()),
        }

    def _chat_choice(self, text: bytes, reason: FinishReason) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text.decode(),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        if self.request.tool is not None:
            message |= {"content": None, "tool_calls": [self._call(text.decode())]}
        return {
            "index": self.request.index,
            "message": message,
            "logprobs": None,
            "finish_reason": self._finish_reason(reason),
            "stop_reason": self.stop_reason,
            "token_ids": self._ids(text),
            "routed_experts": None,
        }

    def _completion_choice(self, text: bytes, reason: FinishReason) -> dict[str, Any]:
        return {
            "index": self.request.index,
            "text": text.decode(),
            "logprobs": None,
            "finish_reason": reason,
            "stop_reason": self.stop_reason,
            "token_ids": self._ids(text),
            "prompt_logprobs": None,
            "prompt_token_ids": self._ids(self.request.prompt),
            "routed_experts": None,
        }

    def _identity(self, choices: list[dict[str, Any]], *, whole: bool = False) -> dict[str, Any]:
        kind = ("chat.completion" if whole else "chat.completion.chunk") if self.is_chat else "text_completion"
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.request.model,
            "choices": choices,
        }

    def _usage_so_far(self, tokens: int) -> dict[str, Any]:
        if not self.request.continuous_usage:
            return {}
        return {"usage": self._counts(tokens) | {"completion_tokens_details": None}}

    def _counts(self, tokens: int) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + tokens,
            "completion_tokens": tokens,
        }

    def _text(self, index: int) -> str:
        return self.output[index * TOKEN_BYTES : (index + 1) * TOKEN_BYTES].decode()

    def _ids(self, text: bytes) -> tuple[int, ...] | None:
        return token_ids(text) if self.request.return_token_ids else None
