"""The words of an engine: what it can be asked, why it takes no request, how it ends one. Nothing is decided here."""

from __future__ import annotations

from enum import StrEnum


class Endpoint(StrEnum):
    """Which call a request is made with."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"


class FinishReason(StrEnum):
    """Why a sequence ended, in the words of the OpenAI API."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Rejection(StrEnum):
    """Why a request was not taken; nothing else will be heard of it."""

    QUEUE_FULL = "queue_full"
    TOO_LONG = "too_long"
