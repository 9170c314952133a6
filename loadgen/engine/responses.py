"""Responses API of the emulated engine: it stores answers, continues conversations and streams typed events.

It interprets text and function calls; other items of a conversation count with their JSON.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import xxhash

from loadgen.engine.api_answers import AnyAnswer, encode
from loadgen.engine.api_requests import GenerationRequest, check_sampling, schema_in, schema_of
from loadgen.engine.fields import (
    ApiError,
    Fields,
    cache_salt_of,
    invalid,
    json_body,
    served_model,
    text_of_content,
    text_of_part,
)
from loadgen.engine.tokens import TOKEN_BYTES, PromptMessage, chat_prompt
from loadgen.engine.tools import Tool, call_id, chosen_tool
from loadgen.engine.vocabulary import Endpoint, FinishReason

_STORED_MAX = 1_000
_ECHOED: dict[str, Any] = {
    "instructions": None,
    "metadata": None,
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "max_output_tokens": None,
    "previous_response_id": None,
    "user": None,
}
"""Request fields that a response repeats, each with its value when absent."""


@dataclass(frozen=True, slots=True)
class ResponsesRequest(GenerationRequest):
    messages: tuple[PromptMessage, ...] = ()
    """Conversation before the answer."""
    echo: dict[str, Any] = field(default_factory=dict)
    store: bool = True


@dataclass(frozen=True, slots=True)
class StoredResponse:
    messages: tuple[PromptMessage, ...]
    """Conversation including the answer."""
    body: dict[str, Any]


class ResponseStore:
    """Newest responses, at most `_STORED_MAX`, kept in memory for the engine's lifetime."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()

    def put(self, response_id: str, stored: StoredResponse) -> None:
        self._stored[response_id] = stored
        while len(self._stored) > _STORED_MAX:
            self._stored.popitem(last=False)

    def get(self, response_id: str) -> StoredResponse:
        """Return a stored response. Raises ApiError if it is unknown."""
        stored = self._stored.get(response_id)
        if stored is None:
            raise ApiError(404, "NotFoundError", f"Response with id '{response_id}' not found.", "response_id")
        return stored

    def why_not_cancelled(self, response_id: str) -> ApiError:
        """Error for a cancellation: stored responses are complete. Raises ApiError if the response is unknown."""
        self.get(response_id)
        return ApiError(400, "BadRequestError", "Cannot cancel a synchronous response.", "response_id")

    def delete(self, response_id: str) -> dict[str, Any]:
        self.get(response_id)
        del self._stored[response_id]
        return {"id": response_id, "object": "response", "deleted": True}


def parse_responses(content_type: str, body: bytes, served: tuple[str, ...], store: ResponseStore) -> ResponsesRequest:
    """Parse a responses API request. Raises ApiError."""
    fields = json_body(content_type, body)
    check_sampling(fields)
    messages = tuple(_messages_of(fields, store))
    stored = fields.value("store")
    return ResponsesRequest(
        endpoint=Endpoint.RESPONSES,
        model=served_model(fields, served),
        prompt=chat_prompt(messages),
        output_tokens_max=fields.integer("max_output_tokens", at_least=1),
        ignore_eos=fields.flag("ignore_eos"),
        stream=fields.flag("stream"),
        cache_salt=cache_salt_of(fields),
        tool=_tool_to_call(fields),
        schema=schema_in((fields.object("text") or Fields({})).object("format"), None),
        messages=messages,
        echo={name: default if (said := fields.value(name)) is None else said for name, default in _ECHOED.items()},
        store=stored is None or fields.flag("store"),
    )


def _messages_of(fields: Fields, store: ResponseStore) -> list[PromptMessage]:
    """Messages of the conversation: the instructions, then those stored with the previous response, then the input."""
    system = [] if fields.value("instructions") is None else [PromptMessage("system", fields.text("instructions"))]
    before: tuple[PromptMessage, ...] = ()
    if fields.value("previous_response_id") is not None:
        before = store.get(fields.text("previous_response_id")).messages
    said = fields.value("input")
    if isinstance(said, str):
        return [*system, *before, PromptMessage("user", said)]
    if said is None:
        raise invalid("input", "missing", "Field required", fields.members)
    return [*system, *before, *map(_message_of_item, fields.objects("input"))]


def _message_of_item(item: Fields) -> PromptMessage:
    if "role" in item.members:
        return PromptMessage(item.text("role"), text_of_content(item.members))
    match item.value("type"):
        case "function_call":
            return PromptMessage("assistant", text_of_part(item.value("arguments")))
        case "function_call_output":
            return PromptMessage("tool", text_of_part(item.value("output")))
        case _:
            return PromptMessage("user", text_of_part(item.members))


def _tool_to_call(fields: Fields) -> Tool | None:
    functions = [each for each in fields.objects("tools") if each.value("type") == "function"]
    tools = [Tool(each.text("name"), schema_of(each, "parameters")) for each in functions]
    choice = fields.value("tool_choice")
    name = Fields(choice).text("name") if isinstance(choice, dict) else None
    return chosen_tool(tools, must_call=choice == "required", name=name)


@dataclass(slots=True)
class ResponsesAnswer(AnyAnswer):
    request: ResponsesRequest

    @property
    def preamble(self) -> bytes:
        """Events sent before the engine has begun."""
        response = self.body(0, None)
        return self._event(0, "response.created", response=response) + self._event(
            1, "response.in_progress", response=response
        )

    def piece(self, start: int, end: int, reason: FinishReason | None) -> bytes:
        opening = b"".join(self._event(2 + i, *event) for i, event in enumerate(self._opening())) if start == 0 else b""
        deltas = b"".join(self._delta(index) for index in range(start, end))
        return opening + deltas + (b"" if reason is None else self._ending(end, reason))

    def whole(self, tokens: int, reason: FinishReason) -> bytes:
        return encode(self.body(tokens, reason))

    def body(self, tokens: int, reason: FinishReason | None) -> dict[str, Any]:
        """Response as it stands after `tokens` tokens."""
        status = _STATUSES[reason]
        incomplete = {"reason": "max_output_tokens"} if reason is FinishReason.LENGTH else None
        return {
            "id": self.answer_id,
            "created_at": self.created,
            "incomplete_details": incomplete,
            "model": self.request.model,
            "object": "response",
            "output": [] if reason is None else [self._item(self._text(tokens), status="completed")],
            **self.request.echo,
            "background": False,
            "service_tier": "auto",
            "status": status,
            "text": None,
            "truncation": "disabled",
            "usage": None if reason is None else self._usage(tokens),
            "error": None,
        }

    def stored(self, tokens: int, reason: FinishReason) -> StoredResponse:
        said = PromptMessage("assistant", self._text(tokens))
        return StoredResponse((*self.request.messages, said), self.body(tokens, reason))

    def _opening(self) -> list[tuple[str, dict[str, Any]]]:
        """Events that announce the output item; a message contains a part, a function call does not."""
        item = self._item("", status="in_progress")
        events = [("response.output_item.added", {"output_index": 0, "item": item})]
        if self.request.tool is None:
            events.append(("response.content_part.added", self._place() | {"content_index": 0, "part": _part("")}))
        return events

    def _delta(self, index: int) -> bytes:
        text = self.output[index * TOKEN_BYTES : (index + 1) * TOKEN_BYTES].decode()
        number = 2 + len(self._opening()) + index
        if self.request.tool is not None:
            return self._event(number, "response.function_call_arguments.delta", self._place() | {"delta": text})
        place = self._place() | {"content_index": 0, "logprobs": []}
        return self._event(number, "response.output_text.delta", place | {"delta": text})

    def _ending(self, tokens: int, reason: FinishReason) -> bytes:
        text, first = self._text(tokens), 2 + len(self._opening()) + tokens
        if self.request.tool is None:
            place = self._place() | {"content_index": 0}
            events = [
                ("response.output_text.done", place | {"text": text, "logprobs": []}),
                ("response.content_part.done", place | {"part": _part(text)}),
            ]
        else:
            done = {"arguments": text, "name": self.request.tool.name}
            events = [("response.function_call_arguments.done", self._place() | done)]
        events.append(("response.output_item.done", {"output_index": 0, "item": self._item(text, status="completed")}))
        # vLLM 0.32 uses this name for the last event whatever the status; OpenAI also has response.incomplete.
        events.append(("response.completed", {"response": self.body(tokens, reason)}))
        return b"".join(self._event(first + i, *event) for i, event in enumerate(events))

    def _item(self, text: str, *, status: str) -> dict[str, Any]:
        if self.request.tool is not None:
            return {
                "id": self._item_id,
                "type": "function_call",
                "call_id": f"call_{call_id(self.request.prompt)}",
                "name": self.request.tool.name,
                "arguments": text,
                "status": status,
            }
        content = [] if status == "in_progress" else [_part(text)]
        return {"id": self._item_id, "content": content, "role": "assistant", "status": status, "type": "message"}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0}

    @property
    def _item_id(self) -> str:
        prefix = "msg" if self.request.tool is None else "fc"
        return f"{prefix}_{xxhash.xxh3_64_hexdigest(self.answer_id.encode())}"

    def _text(self, tokens: int) -> str:
        return self.output[: tokens * TOKEN_BYTES].decode()

    def _usage(self, tokens: int) -> dict[str, Any]:
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + tokens,
        }

    @staticmethod
    def _event(number: int, kind: str, fields: dict[str, Any] | None = None, **more: Any) -> bytes:
        content = {"type": kind, "sequence_number": number, **(fields or {}), **more}
        return f"event: {kind}\n".encode() + b"data: %b\n\n" % encode(content)


_STATUSES = {
    None: "in_progress",
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
    FinishReason.ABORT: "cancelled",
}


def _part(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": []}
