"""Rewrites the rest of a broken answer as a continuation for the client: in the shape of the client's call, with the
ids, indexes and numbers of the part already sent, and without a second opening. Pure.

An engine writes the rest as a chat or a completion, whatever the client called. Every event of it is decoded, a cost
that only resumed answers have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from gateway.features.resume.resuming import ResumeRequest
from gateway.request import engine_api
from gateway.request.answer_events import TokenUsage
from gateway.request.engine_errors import decode
from gateway.request.sse import events, fields

_DONE = b"data: [DONE]\n\n"
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def _event(document: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(document)


def _named(kind: str, document: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind} | document))


class Rewriter:
    """Rewriter of one leg that writes a rest. Comments and other events that are not JSON objects are dropped."""

    def __init__(self, rest: ResumeRequest, *, remark: bytes = b"") -> None:
        """Set up the rewriter. `remark`: an event for debugging that is sent right before the end."""
        self._said = rest.said
        self._is_full = rest.is_full
        self._remark = remark
        self._usage: dict[str, Any] | None = None
        self._finish: dict[str, Any] | None = None
        """Choice with the finish reason."""
        self._is_over = False

    def adapt(self, block: bytes) -> bytes:
        """Return the bytes for the client in place of whole events from the engine, often none."""
        return b"".join(self._rewritten(block))

    def close(self) -> bytes:
        """Return the end of the answer if the engine ended its stream without an end event of its own."""
        if self._is_over or self._finish is None:
            return b""
        self._is_over = True
        return self._remark + self._end()

    def usage_of_all(self, usage: TokenUsage | None) -> TokenUsage | None:
        """Convert the leg's usage to the request's: the part already sent counts as output rather than prompt. Earlier
        legs count their own output."""
        if usage is None or usage.prompt_tokens is None:
            return usage
        output_tokens = 0 if self._is_full else usage.output_tokens
        return TokenUsage(max(0, usage.prompt_tokens - self._said.tokens), output_tokens, usage.cached_tokens)

    def _rewritten(self, block: bytes) -> Iterator[bytes]:
        for event in events(block):
            payload = fields(event)[1]
            if payload is None or self._is_over:
                continue
            if payload.startswith(b"[DONE]"):
                self._is_over = True
                yield self._remark
                yield self._end()
                continue
            document = decode(payload)
            if isinstance(document, dict):
                yield self._take(document)

    def _take(self, document: dict[str, Any]) -> bytes:
        usage = document.get("usage")
        if isinstance(usage, dict):
            self._usage = usage
        choices = document.get("choices")
        if not isinstance(choices, list) or not choices:
            return self._take_counts(document)
        choice = choices[0]
        if not isinstance(choice, dict):
            return b""
        if self._is_full:
            if choice.get("finish_reason") is None:
                return b""
            choice = document["choices"][0] = _said_nothing(choice)
        delta = choice.get("delta")
        if isinstance(delta, dict) and "role" in delta:
            del delta["role"]
            if choice.get("finish_reason") is None and not any(delta.values()):
                return b""
        text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
        if choice.get("finish_reason") is not None:
            self._finish = choice
        return self._take_choice(document, choice, text if isinstance(text, str) else "")

    def _take_counts(self, document: dict[str, Any]) -> bytes:
        raise NotImplementedError

    def _take_choice(self, document: dict[str, Any], choice: dict[str, Any], text: str) -> bytes:
        raise NotImplementedError

    def _end(self) -> bytes:
        raise NotImplementedError

    def _counts(self) -> tuple[int, int, int]:
        """Tokens of the prompt, cached tokens among them, and tokens of the answer."""
        usage = self._usage or {}
        details = usage.get("prompt_tokens_details")
        cached = _number(details.get("cached_tokens")) if isinstance(details, dict) else 0
        prompt = max(0, _number(usage.get("prompt_tokens")) - self._said.tokens)
        output = 0 if self._is_full else _number(usage.get("completion_tokens"))
        return prompt, min(cached, prompt), self._said.tokens + output


def _said_nothing(choice: dict[str, Any]) -> dict[str, Any]:
    """Return the finish of an answer that had reached its limit before, without its text."""
    nothing: dict[str, Any] = {"delta": {"content": ""}, "text": "", "token_ids": [], "stop_reason": None}
    return choice | {name: nothing[name] for name in nothing if name in choice} | {"finish_reason": "length"}


class _ChoicesRewriter(Rewriter):
    """Rewriter for chat and completions, which have the engine's own shape."""

    def __init__(self, rest: ResumeRequest, *, remark: bytes = b"", is_chat: bool = False) -> None:
        super().__init__(rest, remark=remark)
        self._wants_usage = rest.wants_usage
        self._is_chat = is_chat
        self._identity = {"id": rest.said.answer_id, "created": rest.said.created, "model": rest.said.model}

    def _take_counts(self, document: dict[str, Any]) -> bytes:
        return self._as_begun(document) if self._wants_usage and self._usage is not None else b""

    def _take_choice(self, document: dict[str, Any], choice: dict[str, Any], text: str) -> bytes:
        if "prompt_token_ids" in choice:
            choice["prompt_token_ids"] = None
        if self._is_chat and "text" in choice:  # the rest is a completion, in token ids
            del choice["text"]
            choice.pop("prompt_token_ids", None)
            choice["delta"] = {"content": text}
            document["object"] = "chat.completion.chunk"
        return self._as_begun(document)

    def _as_begun(self, document: dict[str, Any]) -> bytes:
        document |= {name: told for name, told in self._identity.items() if told}
        document.pop("prompt_token_ids", None)
        usage = document.get("usage")
        if isinstance(usage, dict):
            prompt, cached, output = self._counts()
            usage |= {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
            details = usage.get("prompt_tokens_details")
            if isinstance(details, dict) and "cached_tokens" in details:
                details["cached_tokens"] = cached
        return _event(document)

    def _end(self) -> bytes:
        return _DONE


class _MessagesRewriter(Rewriter):
    def _take_counts(self, document: dict[str, Any]) -> bytes:  # noqa: ARG002 - usage is sent at the end
        return b""

    def _take_choice(self, document: dict[str, Any], choice: dict[str, Any], text: str) -> bytes:  # noqa: ARG002
        if not text:
            return b""
        delta = {"type": "text_delta", "text": text}
        return _named("content_block_delta", {"index": self._said.index, "delta": delta})

    def _end(self) -> bytes:
        finish = self._finish or {}
        reason, sequence = finish.get("finish_reason"), finish.get("stop_reason")
        told = _STOP_REASONS.get(str(reason), "end_turn")
        if isinstance(sequence, str):
            told = "stop_sequence"
        prompt, cached, output = self._counts()
        usage = {
            "input_tokens": prompt - cached,
            "output_tokens": output,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
        }
        delta = {"stop_reason": told, "stop_sequence": sequence if isinstance(sequence, str) else None}
        return b"".join(
            (
                _named("content_block_stop", {"index": self._said.index}),
                _named("message_delta", {"delta": delta, "usage": usage}),
                _named("message_stop", {}),
            )
        )


class _ResponsesRewriter(Rewriter):
    def __init__(self, rest: ResumeRequest, *, remark: bytes = b"") -> None:
        super().__init__(rest, remark=remark)
        self._pieces: list[str] = []
        """Text of this leg, repeated by the closing events."""

    def _take_counts(self, document: dict[str, Any]) -> bytes:  # noqa: ARG002 - usage is sent at the end
        return b""

    def _take_choice(self, document: dict[str, Any], choice: dict[str, Any], text: str) -> bytes:  # noqa: ARG002
        if not text:
            return b""
        self._pieces.append(text)
        return self._numbered("response.output_text.delta", self._place() | {"logprobs": [], "delta": text})

    def _end(self) -> bytes:
        said = self._said
        text = said.text + "".join(self._pieces)
        is_cut = (self._finish or {}).get("finish_reason") == "length"
        part = said.part | {"text": text}
        item = said.item | {"content": [part], "status": "completed"}
        response = said.response | {
            "output": [item],
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "usage": self._usage_told(),
        }
        return b"".join(
            (
                self._numbered("response.output_text.done", self._place() | {"text": text, "logprobs": []}),
                self._numbered("response.content_part.done", self._place() | {"part": part}),
                self._numbered("response.output_item.done", {"output_index": said.output_index, "item": item}),
                # vLLM uses this name for the last event, whatever the status
                self._numbered("response.completed", {"response": response}),
            )
        )

    def _usage_told(self) -> dict[str, Any]:
        prompt, cached, output = self._counts()
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + output,
        }

    def _place(self) -> dict[str, Any]:
        said = self._said
        return {
            "item_id": said.item.get("id"),
            "output_index": said.output_index,
            "content_index": said.content_index,
        }

    def _numbered(self, kind: str, document: dict[str, Any]) -> bytes:
        number = self._said.next_number
        self._said.next_number += 1
        return _named(kind, {"sequence_number": number} | document)


_REWRITERS: dict[str, Callable[..., Rewriter]] = {
    engine_api.CHAT_PATH: partial(_ChoicesRewriter, is_chat=True),
    engine_api.COMPLETIONS_PATH: _ChoicesRewriter,
    engine_api.MESSAGES_PATH: _MessagesRewriter,
    engine_api.RESPONSES_PATH: _ResponsesRewriter,
}


def rewriter_for(path: str, rest: ResumeRequest, *, remark: bytes = b"") -> Rewriter:
    """Return the rewriter for the call that the client made, by its path."""
    return _REWRITERS[path](rest, remark=remark)


def _number(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0
