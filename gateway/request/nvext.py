"""Hints in a body's `nvext`, in the form of NVIDIA Dynamo's `agent_hints`. Everything else in it is skipped unread.

https://docs.nvidia.com/dynamo/agents/agent-hints
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from gateway.core.vocabulary import HINTED_TOKENS_MAX, Hints
from gateway.request.body_edits import BodyMember

NVEXT: Final = BodyMember("nvext")
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


_EXTENSIONS: Final = msgspec.json.Decoder(_Extensions | None)


def hints_in(raw: msgspec.Raw) -> Hints:
    """Hints in the value of `nvext`. Raises msgspec.ValidationError for hints of another type than Dynamo's."""
    extensions = _EXTENSIONS.decode(raw)
    told = None if extensions is None else extensions.agent_hints
    if told is None:
        return Hints()
    tier, priority = min(told.strict_priority or 0, PRIORITY_MAX), min(max(told.priority or 0, 0), PRIORITY_MAX)
    return Hints(
        output_tokens=min(told.osl or 0, HINTED_TOKENS_MAX),
        priority=tier * (PRIORITY_MAX + 1) + priority,
        comes_again=told.speculative_prefill is True,
    )
