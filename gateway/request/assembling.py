"""Puts a stream together to the answer that the engine would have given in one piece, field for field. Pure.

With a hand-off a decode is had as a stream even for a client who wants none: its first token says that the prefill
worker is free again. What only the engine's whole answers hold, and in which order, is read off the prefill's: it is
one of the same call, from an engine of the same version. The table says where each field comes from; a field that it
does not know is a reason to refuse, never to guess.

vLLM writes whole answers with Python's `json`, so they are written with that here: what comes out is equal to the
engine's own byte for byte, for text, token ids and usage. Equal in its fields only, and as the engine's parser streams
it, is reasoning, which no recording here has.
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
"""Token ids are held as signed numbers of 64 bits."""
_NUMBER_END = 1 << 63


class Unassembled(Exception):
    """This stream is not put together here. It says what stood in the way, never what the answer was."""


class TooLong(Unassembled):
    """This one is; others of the same engine need not be."""


class From(Enum):
    """Where a field of a whole answer comes from."""

    PREFILL = auto()
    """The prefill's answer has it, and every answer has the same."""
    TOLD = auto()
    """The stream tells it: the last word counts, and null where there is none."""
    TEXT = auto()
    """Piece by piece."""
    NUMBERS = auto()
    """Some at a time."""
    COUNTS = auto()
    """An object of numbers, of which a stream leaves out those that are null."""
    NOTHING = auto()
    """It is null in what we ask for; anything else cannot be had from a stream."""
    NULL = auto()
    """Whatever the prefill has there is between engines."""


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
"""Of a chat: the message, whose pieces come as `delta`. With tools a decode is asked for the whole answer: engines read
calls out of a text in another way than out of its pieces."""


class _Asked(msgspec.Struct):
    logprobs: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT


_ASKED = msgspec.json.Decoder(_Asked)


def can_be_assembled(path: str, body: bytes) -> bool:
    """May the decode of this call be had as a stream for a client who wants none? `handoffs.py` has said that it can be
    handed off at all. Logprobs are many times their text, and better passed on than held."""
    if path not in TOP:
        return False
    asked = _ASKED.decode(body)
    return not is_set(asked.logprobs) and not is_set(asked.tools)


class Assembler:
    """One answer. Feed it a stream's events as they are released; at the end it gives the whole."""

    __slots__ = ("_bytes_max", "_choice", "_message", "_parts", "_top")

    def __init__(self, path: str, prefilled: bytes, *, bytes_max: int) -> None:
        """`prefilled`: the prefill's answer to the same call. `bytes_max`: of text and numbers that may be held. Raises
        Unassembled."""
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
        """Whole events. Raises Unassembled."""
        for event in events(block):
            payload = fields(event)[1]
            if payload is not None and not payload.startswith(b"[DONE]"):
                self._take(decode(payload))
        if sum(part.held for part in self._parts) > self._bytes_max:
            raise TooLong(f"the answer is more than {self._bytes_max} bytes")

    def finish(self) -> bytes:
        """The whole answer. Raises Unassembled where the stream has not told all of it."""
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
        """The first event brings an empty text; with nothing but reasoning engines say that there is none."""
        message = self._message.whole()
        if not message.get("content") and (message.get("reasoning") or message.get("reasoning_content")):
            message["content"] = None
        return message


class _Part:
    """One object of the answer."""

    __slots__ = ("_numbers", "_skeleton", "_table", "_texts", "told")

    def __init__(self, skeleton: dict[str, Any], table: Table, *, holds: str = "") -> None:
        """`holds`: a field that is a part of its own."""
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
        """Bytes."""
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
        """In the order of the prefill's answer; what only the stream knows comes last."""
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
