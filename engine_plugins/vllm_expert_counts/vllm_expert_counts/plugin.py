"""Entry point, which vLLM calls in each of its processes. It must never raise, whatever vLLM it finds."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from vllm_expert_counts import logger
from vllm_expert_counts.guard import Guard

SERVED = "0.32"
"""Release line of vLLM whose internals the hooks know. Others are refused: the hooks' effect there is unknown."""

_installed = False


def is_served(found: str) -> bool:
    return found.split("+", maxsplit=1)[0].split(".")[:2] == SERVED.split(".")


def register() -> None:
    global _installed  # noqa: PLW0603 - vLLM may call it again
    if _installed:
        return
    _installed = True
    try:
        found = version("vllm")
    except PackageNotFoundError:
        found = "unknown"
    if not is_served(found):
        logger.warning("expert counts are made for vLLM %s and are off in vLLM %s, which serves as ever", SERVED, found)
        return
    Guard("plug-in").run(_install, None)


def _install() -> None:
    from vllm_expert_counts import scheduler_hooks, worker_hooks  # noqa: PLC0415 - they know the insides of one vLLM

    scheduler_hooks.install()
    worker_hooks.install()
