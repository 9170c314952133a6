"""Defines the permitted values of a trace line's fields; a line with other values counts as broken."""

from __future__ import annotations

from typing import Annotated

import msgspec

_TOKENS_MAX = 2**24
InputTokens = Annotated[int, msgspec.Meta(ge=1, le=_TOKENS_MAX)]
OutputTokens = Annotated[int, msgspec.Meta(ge=0, le=_TOKENS_MAX)]
BlockNumber = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
