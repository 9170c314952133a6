"""Messages API of the emulated engine: content blocks, token counts without generation, named stream events."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from loadgen.engine.api_answers import AnyAnswer, encode
from loadgen.engine.api_requests import GenerationRequest, check_sampling, messages_of, schema_of
from loadgen.engine.fields import Fields, cache_salt_of, invalid, json_body, served_model, text_of_content
from loadgen.engine.tokens import TOKEN_BYTES, PromptMessage, chat_prompt, token_count
from loadgen.engine.tools import Tool, call_id, chosen_tool
from loadgen.engine.vocabulary import Endpoint, FinishReason

_STOP_REASONS = {FinishReason.STOP: "end_turn", FinishReason.LENGTH: "max_tokens", FinishReason.ABORT: None}


def parse_messages(content_type: str, body: bytes, served: tuple[str, ...]) -> GenerationRequest:
    """Parse a messages API request. Raises ApiError."""
    fields = json_body(content_type, body)
    check_sampling(fields)
    output_tokens_max = fields.integer("max_tokens", at_least=1)
    if output_tokens_max is None:
        raise invalid("max_tokens", "missing", "Field required", fields.members)
    return GenerationRequest(
        endpoint=Endpoint.MESSAGES,
        model=served_model(fields, served),
        prompt=_prompt(fields),
        output_tokens_max=output_tokens_max,
        ignore_eos=fields.flag("ignore_eos"),
        stream=fields.flag("stream"),
        cache_salt=cache_salt_of(fields),
        tool=_tool_to_call(fields),
    )


def count_tokens(content_type: str, body: bytes, served: tuple[str, ...]) -> dict[str, int]:
    """Number of input tokens of a prompt. Raises ApiError."""
    fields = json_body(content_type, body)
    served_model(fields, served)
    return {"input_tokens": token_count(_prompt(fields))}


def _prompt(fields: Fields) -> bytes:
    system = text_of_content({"content": fields.value("system")})
    return chat_prompt([*([PromptMessage("system", system)] if system else []), *messages_of(fields)])


def _tool_to_call(fields: Fields) -> Tool | None:
    tools = [Tool(each.text("name"), schema_of(each, "input_schema")) for each in fields.objects("tools")]
    choice = fields.object("tool_choice") or Fields({})
    name = choice.text("name") if choice.value("type") == "tool" else None
    return chosen_tool(tools, must_call=choice.value("type") == "any", name=name)


@dataclass(slots=True)
class MessagesAnswer(AnyAnswer):
    @property
    def preamble(self) -> bytes:
        return b""

    def piece(self, start: int, end: int, reason: FinishReason | None) -> bytes:
        opening = self._opening() if start == 0 else b""
        deltas = b"".join(self._delta(index) for index in range(start, end))
        return opening + deltas + (b"" if reason is None else self._ending(end, reason))

    def whole(self, tokens: int, reason: FinishReason) -> bytes:
        message = self._message([self._block(self._text(tokens))])
        handed_over = {} if self.handed_over is None else {"kv_transfer_params": self.handed_over}
        return encode(message | {"stop_reason": self._stop_reason(reason), "usage": self._usage(tokens)} | handed_over)

    def _opening(self) -> bytes:
        """Opening events in vLLM's form: no ping, and all of the prompt as input; cached tokens are reported at the
        end."""
        usage = {"input_tokens": self.prompt_tokens, "output_tokens": 0}
        message = self._message([]) | {"stop_reason": None, "stop_sequence": None, "usage": usage}
        start = _event("message_start", message=message)
        return start + _event("content_block_start", index=0, content_block=self._block(""))

    def _delta(self, index: int) -> bytes:
        text = self._text(index + 1, start=index)
        if self.request.tool is None:
            delta = {"type": "text_delta", "text": text}
        else:
            delta = {"type": "input_json_delta", "partial_json": text}
        return _event("content_block_delta", index=0, delta=delta)

    def _ending(self, tokens: int, reason: FinishReason) -> bytes:
        delta = {"stop_reason": self._stop_reason(reason), "stop_sequence": None}
        usage = self._usage(tokens)
        stop = _event("content_block_stop", index=0)
        return stop + _event("message_delta", delta=delta, usage=usage) + _event("message_stop")

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.answer_id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.request.model,
        }

    def _block(self, text: str) -> dict[str, Any]:
        """Content block of the answer. Tool arguments that were cut off are not JSON, and become an empty object."""
        if self.request.tool is None:
            return {"type": "text", "text": text}
        try:
            arguments = json.loads(text)
        except json.JSONDecodeError:
            arguments = {}
        identity = f"toolu_{call_id(self.request.prompt)}"
        return {"type": "tool_use", "id": identity, "name": self.request.tool.name, "input": arguments}

    def _stop_reason(self, reason: FinishReason) -> str | None:
        return "tool_use" if self.request.tool is not None and reason is FinishReason.STOP else _STOP_REASONS[reason]

    def _text(self, end: int, *, start: int = 0) -> str:
        return self.output[start * TOKEN_BYTES : end * TOKEN_BYTES].decode()

    def _usage(self, tokens: int) -> dict[str, int]:
        return {
            "input_tokens": self.prompt_tokens - self.cached_tokens,
            "output_tokens": tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached_tokens,
        }


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\n".encode() + b"data: %b\n\n" % encode({"type": kind, **fields})
