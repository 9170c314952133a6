"""Finds recorded files beneath a folder of traces, by the names that they are published with. It reads none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadgen.traces.files import TraceError

SERVEGEN = ("servegen/servegen_datasets_reason_deepseek-r1*", "servegen/reason_deepseek-r1_client_hod.csv")
"""ServeGen's reasoning service, and the rates of its clients."""
SERVEGEN_SCALE = 0.0135
"""Share of a day's requests, so that not many more are read than are kept."""
AZURE_CHATS = "azure2023/AzureLLMInferenceTrace_conv.csv*"
AZURE_CURVES = ("azure2024_digitised/conv_input_cdf.csv", "azure2024_digitised/conv_output_cdf.csv")
"""Distributions of prompts and answers of Azure's conversations of 2024, read off Microsoft's plots."""
MOONCAKE = "mooncake/conversation_trace.jsonl*"


def first_file(folder: Path | None, pattern: str) -> Path | None:
    """First file that matches the pattern; None without one, or without a folder."""
    return None if folder is None else next(iter(sorted(file.resolve() for file in folder.glob(pattern))), None)


def find_file(folder: Path | None, pattern: str) -> Path:
    """First file that matches the pattern. Raises TraceError."""
    found = first_file(folder, pattern)
    if found is None:
        raise TraceError(f"there is no {pattern} in {folder or 'any folder of traces: name one with --traces'}")
    return found


def all_files(folder: Path | None, patterns: Sequence[str]) -> list[Path] | None:
    """A file for each pattern; None where one is missing."""
    found = [first_file(folder, pattern) for pattern in patterns]
    return None if None in found else [each for each in found if each is not None]
