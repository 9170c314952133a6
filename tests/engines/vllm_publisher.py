"""vLLM's own publisher of KV events without an engine: `.venv-engines/bin/python vllm_publisher.py PORT REPLAY_PORT`
keeps batches, each of a full step, prints `ready`, and ends with its input.
"""

from __future__ import annotations

import sys

from vllm.distributed.kv_events import (  # type: ignore[import-not-found]
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    ZmqEventPublisher,
)

BATCHES = 4_000
"""Four times what the queue of a socket holds by default."""
BLOCKS, BLOCK_TOKENS = 64, 32
"""Blocks that each step stores in place of those of the step before, and their tokens."""


def main(port: int, replay_port: int) -> None:
    publisher = ZmqEventPublisher(
        0, endpoint=f"tcp://*:{port}", replay_endpoint=f"tcp://*:{replay_port}", topic="kv@here"
    )
    tokens = list(range(1_000, 1_000 + BLOCKS * BLOCK_TOKENS))
    before: list[int] = []
    for batch in range(BATCHES):
        blocks = [batch * BLOCKS + at + 1 for at in range(BLOCKS)]
        stored = BlockStored(
            block_hashes=blocks,
            parent_block_hash=None,
            token_ids=tokens,
            block_size=BLOCK_TOKENS,
            lora_id=None,
            medium="GPU",
            lora_name=None,
            group_idx=0,
        )
        removed = [BlockRemoved(block_hashes=before, medium="GPU", group_idx=0)] if before else []
        publisher.publish(KVEventBatch(ts=float(batch), events=[*removed, stored]))
        before = blocks
    publisher._event_queue.join()
    print("ready", flush=True)  # noqa: T201 - for the test that waits for it
    sys.stdin.read()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
