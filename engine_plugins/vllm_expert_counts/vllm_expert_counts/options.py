"""Options of the plug-in, in vLLM's own `--additional-config` under its name. They are checked once, as the engine
starts; an invalid option turns the plug-in off, never the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SECTION = "nightside_expert_counts"
_LINES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Options:
    """`record`: a file to which calibration is recorded, with at most `record_lines_max` lines."""

    record: Path | None = None
    record_lines_max: int = _LINES_MAX


def read_options(additional_config: object) -> Options:
    """Read the options. Raises ValueError with the key that is wrong."""
    section = additional_config.get(SECTION, {}) if isinstance(additional_config, Mapping) else {}
    if not isinstance(section, Mapping):
        raise ValueError(f"{SECTION} should be an object")  # noqa: TRY004 - as any other value that is wrong
    unknown = [str(key) for key in section if key not in ("record", "record_lines_max")]
    if unknown:
        raise ValueError(f"{SECTION}.{unknown[0]} is not known; there are record and record_lines_max")
    record = section.get("record")
    if record is not None and (not isinstance(record, str) or not record):
        raise ValueError(f"{SECTION}.record should be the path of a file")
    lines_max = section.get("record_lines_max", _LINES_MAX)
    if not isinstance(lines_max, int) or isinstance(lines_max, bool) or lines_max < 1:
        raise ValueError(f"{SECTION}.record_lines_max should be a number of lines, 1 or more")
    return Options(None if record is None else Path(record), lines_max)
