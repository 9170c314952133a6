"""Assembles a stream into the answer that the engine would have given in one piece, field for field. Pure.

With a hand-off, a decode is streamed even for a client that does not stream: its first token shows that the prefill
worker is free again. Fields that only whole answers have, and the order of fields, are taken from the prefill's answer,
which is one of the same call from an engine of the same version. The table says where each field comes from; an unknown
field is refused, never guessed.

vLLM writes whole answers with Python's `json`, and so does this module: for text, token ids and usage the result equals
the engine's own byte for byte. Reasoning, which no recording here has, is equal in its fields only, as the engine's
parser streams it.
"""

from __future__ import annotations

import json
from array import array
from enum import Enum, auto
from typing import Any

import msgspec

from gateway.request import engine_api
from gateway.request.bodies import is_set
from gateway.request.engine_errors import decode
from gateway.request.sse import events, fields

_ABSENT = msgspec.Raw()
_NUMBERS = "q"
"""Array type of token ids: signed numbers of 64 bits."""
_NUMBER_END = 1 << 63


class Unassembled(Exception):
    """Error for a stream that cannot be assembled, with the obstacle. It never quotes the answer."""


class AnswerTooLong(Unassembled):
    """Error for an answer that is too long; other answers of the same engine need not be."""


class From(Enum):
    """Source of a field of a whole answer."""

    PREFILL = auto()
    """The prefill's answer; every answer has the same value."""
    TOLD = auto()
    """Last value in the stream; null if there is none."""
    TEXT = auto()
    """Text in pieces."""
    NUMBERS = auto()
    """Lists of numbers in pieces."""
    COUNTS = auto()
    """Object of numbers, in which a stream omits those that are null."""
    NOTHING = auto()
    """Always null for the calls made here; another value cannot be had from a stream."""
    NULL = auto()
    """Always null for the client; the prefill's value is meant for engines."""


Table = dict[str, From]

_TOP: Table = {
    "id": From.TOLD,
    "object": From.PREFILL,
    "created": From.TOLD,
    "model": From.TOLD,
    "service_tier": From.PREFILL,
    "system_fingerprint": From.TOLD,
    "usage": From.COUNTS,
    "kv_transfer_params": From.NULL,
    "ec_transfer_params": From.NULL,
    "metrics": From.TOLD,
}
_CHOICE: Table = {
    "index": From.TOLD,
    "logprobs": From.NOTHING,
    "finish_reason": From.TOLD,
    "stop_reason": From.TOLD,
    "token_ids": From.NUMBERS,
    "routed_experts": From.NOTHING,
}
TOP: dict[str, Table] = {
    engine_api.CHAT_PATH: {
        **_TOP,
        "prompt_logprobs": From.NOTHING,
        "prompt_token_ids": From.TOLD,
        "prompt_text": From.TOLD,
    },
    engine_api.COMPLETIONS_PATH: _TOP,
}
CHOICE: dict[str, Table] = {
    engine_api.CHAT_PATH: _CHOICE,
    engine_api.COMPLETIONS_PATH: {
        **_CHOICE,
        "text": From.TEXT,
        "prompt_logprobs": From.NOTHING,
        "prompt_token_ids": From.TOLD,
    },
}
MESSAGE: Table = {
    "role": From.TOLD,
    "content": From.TEXT,
    "refusal": From.NOTHING,
    "annotations": From.NOTHING,
    "audio": From.NOTHING,
    "function_call": From.NOTHING,
    "reasoning": From.TEXT,
    "reasoning_content": From.TEXT,
}
"""Fields of a chat's message, whose pieces come as `delta`. With tools a decode is asked for the whole answer, since
engines parse calls differently from a text than from its pieces."""


class _Asked(msgspec.Struct):
    logprobs: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT


_ASKED = msgspec.json.Decoder(_Asked)


def can_be_assembled(path: str, body: bytes) -> bool:
    """Return true if the decode of this call may be streamed for a client that does not stream; `handoffs.py` has
    decided that it can be handed off. Logprobs are many times the size of their text and therefore passed on rather
    than held."""
    if path not in TOP:
        return False
    asked = _ASKED.decode(body)
    return not is_set(asked.logprobs) and not is_set(asked.tools)


class Assembler:
    """Assembler of one answer. It takes a stream's events as they are released and returns the whole answer at the
    end."""

    __slots__ = ("_bytes_max", "_choice", "_message", "_parts", "_top")

    def __init__(self, path: str, prefilled: bytes, *, bytes_max: int) -> None:
        """Set up the assembler. `prefilled`: the prefill's answer to the same call. `bytes_max`: limit of the text and
        numbers held. Raises Unassembled."""
        skeleton = decode(prefilled)
        choices = skeleton.get("choices") if isinstance(skeleton, dict) else None
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise Unassembled("the prefill's answer has not one choice")
        message = choices[0].get("message", {})
        if not isinstance(message, dict):
            raise Unassembled("the prefill's answer has no message")
        self._top = _Part(skeleton, TOP[path], holds="choices")
        self._choice = _Part(choices[0], CHOICE[path], holds="message")
        self._message = _Part(message, MESSAGE)
        self._parts = (self._top, self._choice, self._message)
        self._bytes_max = bytes_max

    def feed(self, block: bytes) -> None:
        """Take whole events. Raises Unassembled."""
        for event in events(block):
            payload = fields(event)[1]
            if payload is not None and not payload.startswith(b"[DONE]"):
                self._take(decode(payload))
        if sum(part.held for part in self._parts) > self._bytes_max:
            raise AnswerTooLong(f"the answer is more than {self._bytes_max} bytes")

    def finish(self) -> bytes:
        """Return the whole answer. Raises Unassembled if the stream lacked its usage or finish reason."""
        if "usage" not in self._top.told or "finish_reason" not in self._choice.told:
            raise Unassembled("the stream did not tell its usage, or why it ended")
        choice = self._choice.whole()
        if "message" in choice:
            choice["message"] = self._whole_message()
        whole = self._top.whole()
        whole["choices"] = [choice]
        return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()

    def _take(self, document: Any) -> None:
        if not isinstance(document, dict) or not isinstance(choices := document.pop("choices", []), list):
            raise Unassembled("an event is none of this call")
        self._top.take(document)
        for choice in choices:
            if not isinstance(choice, dict) or choice.get("index") != 0:
                raise Unassembled("an event has another choice than the one")
            delta = choice.pop("delta", {})
            if not isinstance(delta, dict):
                raise Unassembled("an event has no delta")
            self._choice.take(choice)
            self._message.take(delta)

    def _whole_message(self) -> dict[str, Any]:
        """Return the message. A stream begins with an empty text; with nothing but reasoning, engines set the content
        to null."""
        message = self._message.whole()
        if not message.get("content") and (message.get("reasoning") or message.get("reasoning_content")):
            message["content"] = None
        return message


class _Part:
    """Part of the answer that is one JSON object."""

    __slots__ = ("_numbers", "_skeleton", "_table", "_texts", "told")

    def __init__(self, skeleton: dict[str, Any], table: Table, *, holds: str = "") -> None:
        """Set up the part. `holds`: a field that is a part of its own."""
        for name, value in skeleton.items():
            if name != holds and value is not None and table.get(name, From.NOTHING) is From.NOTHING:
                raise Unassembled(f"whole answers have {name[:64]!r}, and streams do not")
        self._skeleton = skeleton
        self._table = table
        self._texts: dict[str, bytearray] = {}
        self._numbers: dict[str, array[int]] = {}
        self.told: dict[str, Any] = {}

    @property
    def held(self) -> int:
        """Size of the texts and numbers held, in bytes."""
        numbers = sum(len(each) * each.itemsize for each in self._numbers.values())
        return numbers + sum(map(len, self._texts.values()))

    def take(self, told: dict[str, Any]) -> None:
        for name, value in told.items():
            if value is None:
                continue
            match self._table.get(name, From.NOTHING):
                case From.TOLD | From.COUNTS:
                    self.told[name] = value
                case From.TEXT if isinstance(value, str):
                    self._texts.setdefault(name, bytearray()).extend(value.encode())
                case From.NUMBERS if isinstance(value, list) and all(map(_is_number, value)):
                    self._numbers.setdefault(name, array(_NUMBERS)).extend(value)
                case From.PREFILL | From.NULL:
                    pass
                case _:
                    raise Unassembled(f"an event has {name[:64]!r}, which is in no table")

    def whole(self) -> dict[str, Any]:
        """Return the fields in the order of the prefill's answer, followed by those that only the stream has."""
        names = dict.fromkeys((*self._skeleton, *self.told, *self._texts, *self._numbers))
        return {name: self._value(name) for name in names}

    def _value(self, name: str) -> Any:
        match self._table.get(name):
            case From.PREFILL:
                return self._skeleton[name]
            case From.TOLD:
                return self.told.get(name)
            case From.COUNTS:
                return _counts(self._skeleton.get(name), self.told[name])
            case From.TEXT if name in self._texts:
                return self._texts[name].decode()
            case From.NUMBERS if name in self._numbers:
                return list(self._numbers[name])
            case _:
                return None


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < _NUMBER_END


def _counts(skeleton: Any, told: Any) -> Any:
    if not isinstance(skeleton, dict) or not isinstance(told, dict):
        return told
    names = dict.fromkeys((*skeleton, *told))
    return {name: _counts(skeleton.get(name), told.get(name)) for name in names}
