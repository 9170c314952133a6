"""Vocabulary of an engine: its endpoints, reasons for rejection and finish reasons. Values only."""

from __future__ import annotations

from enum import StrEnum


class Endpoint(StrEnum):
    """Endpoint that a request is made to."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"


class FinishReason(StrEnum):
    """Reason why a sequence ended, in the terms of the OpenAI API."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Rejection(StrEnum):
    """Reason why a request was not accepted; it causes no further output."""

    QUEUE_FULL = "queue_full"
    TOO_LONG = "too_long"
