"""A plug-in for vLLM that counts which experts each prompt picks, block by block of its KV cache, and hands the counts
over with the prompt. It must never change or prevent an engine's answers."""

from __future__ import annotations

import logging

logger = logging.getLogger("vllm.nightside_expert_counts")
"""Logger below vLLM's own, whose format and level it takes."""
