"""A folder of tiny traces under the names that the real ones are published with."""

from __future__ import annotations

import json
from pathlib import Path

_MOONCAKE = {"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [0, 1]}
_AGENTIC = {"i": 0, "t": 0.0, "in": 64, "out": 9, "api": 1.0, "think": 0.0, "blk": [[0, 0]]}
_AZURE = ["TIMESTAMP,ContextTokens,GeneratedTokens"] + [
    f"2023-11-16 18:15:{second}.0,374,44" for second in range(10, 40)
]


def published(folder: Path) -> Path:
    """Fill the folder, and return it."""
    files = {
        "mooncake/conversation_trace.jsonl": [json.dumps(_MOONCAKE | {"timestamp": 3000 * n}) for n in range(9)],
        "claude_code_sessions/requests.jsonl": [json.dumps({"s": f"s{n}"} | _AGENTIC) for n in range(9)],
        "azure2023/AzureLLMInferenceTrace_conv.csv": _AZURE,
        "mtbench/question.jsonl": [json.dumps({"turns": [f"What is {n}?", "Why?"]}) for n in range(9)],
        "azure2024_digitised/code_invocations_per_min_10min.csv": ["minute,rate", "0,1.0", "10,2.0", "20,1.0"],
    }
    for name, lines in files.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
