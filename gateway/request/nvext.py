"""Hints in a body's `nvext`, in the form of NVIDIA Dynamo's `agent_hints`. Everything else in it is skipped unread.

https://docs.nvidia.com/dynamo/agents/agent-hints
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from gateway.core.vocabulary import HINTED_TOKENS_MAX, NO_HINTS, Hints
from gateway.request.body_edits import BodyMember, without

_NVEXT: Final = BodyMember("nvext")
_TIMES_MAX: Final = 4
"""Limit of members of this name in one body; each takes a reading of the whole body."""
PRIORITY_MAX: Final = 1000
"""Highest priority of one tier; Dynamo's own have no bound, and higher ones count as this one."""
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _AgentHints(msgspec.Struct):
    priority: int | None = None
    strict_priority: _Count | None = None
    osl: _Count | None = None
    speculative_prefill: bool | None = None


class _Extensions(msgspec.Struct):
    agent_hints: _AgentHints | None = None


class _Extended(msgspec.Struct):
    nvext: msgspec.Raw = msgspec.Raw()


_EXTENDED: Final = msgspec.json.Decoder(_Extended)
_EXTENSIONS: Final = msgspec.json.Decoder(_Extensions | None)


def hints_in(raw: msgspec.Raw) -> Hints:
    """Hints in the value of `nvext`. Raises msgspec.ValidationError for hints of another type than Dynamo's."""
    extensions = _EXTENSIONS.decode(raw)
    told = None if extensions is None else extensions.agent_hints
    if told is None:
        return NO_HINTS
    tier, priority = min(told.strict_priority or 0, PRIORITY_MAX), min(max(told.priority or 0, 0), PRIORITY_MAX)
    return Hints(
        output_tokens=min(told.osl or 0, HINTED_TOKENS_MAX),
        priority=tier * (PRIORITY_MAX + 1) + priority,
        comes_again=told.speculative_prefill is True,
    )


def without_nvext(body: bytes, value: msgspec.Raw) -> bytes | None:
    """Return the body without any `nvext`; None if it has too many. `value` is the last one's, decoded from it."""
    for _ in range(_TIMES_MAX):
        body = without(body, value)
        if not _NVEXT.may_be_in(body):
            return body
        value = _EXTENDED.decode(body).nvext
        if not value:
            return body
    return None
