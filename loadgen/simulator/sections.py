"""Base class and value types of a scenario's sections; values are written as in a region file.

Values only.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict

from mesh.values import parse_duration_ns, parse_size_bytes


def _duration_or_zero(text: object) -> int:
    return 0 if text in (0, "0s") else parse_duration_ns(text)


Duration = Annotated[int, BeforeValidator(parse_duration_ns), Field(gt=0)]
Moment = Annotated[int, BeforeValidator(_duration_or_zero)]
Size = Annotated[int, BeforeValidator(parse_size_bytes), Field(gt=0)]
Count = Annotated[int, Strict(), Field(ge=1)]
CountOrNone = Annotated[int, Strict(), Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0)]


class ScenarioSection(BaseModel):
    """Section that is read once, as a whole, and immutable; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True)

    def _holds_one_of(self, *names: str) -> None:
        """Check that exactly one of these keys is set. Raises ValueError."""
        if sum(getattr(self, name) is not None for name in names) != 1:
            raise ValueError(f"should hold one of {', '.join(names)}")
