"""Publisher of an emulated engine's KV events, in vLLM's wire format: a socket that publishes numbered batches, and one
that repeats the last of them. Token ids are all 0, since a modelled engine knows no text.
"""

from __future__ import annotations

import asyncio
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from loadgen.engine.blocks import NAME_BYTES, NamesChange
from mesh.zmtp import SocketType, ZmtpFault, message_bytes, read_message, shake_hands

KEPT_BATCHES: Final = 10_000
"""Batches that can be repeated (vLLM's `buffer_steps`)."""
_UNSENT_BYTES_MAX: Final = 2**20
"""Bytes that wait for one subscriber, beyond which it loses messages."""
_REQUEST_BYTES_MAX: Final = 1024
_NUMBER_BYTES: Final = 8
_END: Final = [b"", b"", b"\xff" * _NUMBER_BYTES, b""]


class KvEventPublisher:
    """Publisher of one rank."""

    def __init__(self, host: str, block_tokens: int, rank: int, topic: bytes, kept_batches: int = KEPT_BATCHES) -> None:
        self._host = host
        self._block_tokens = block_tokens
        self._rank = rank
        self._topic = topic
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=kept_batches)
        self._subscribers: dict[StreamWriter, bytes] = {}
        """Beginning of the topics that each subscriber wants."""
        self._tasks: dict[StreamWriter, asyncio.Task[object]] = {}
        self._servers: list[asyncio.Server] = []
        self.next = 0
        """Number of the next batch."""
        self.ports = (0, 0)
        """Ports of the publishing and of the repeating socket."""

    @property
    def subscribers(self) -> int:
        return len(self._subscribers)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for subscribers to read."""
        return sum(writer.transport.get_write_buffer_size() for writer in self._subscribers)

    def describe(self) -> dict[str, object]:
        """Entry in the engine's list of its publishers."""
        endpoint, replay = (f"tcp://{self._host}:{port}" for port in self.ports)
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": endpoint,
            "replay_endpoint": replay,
            "buffer_steps": self._kept.maxlen,
            "topic": self._topic.decode(),
        }

    async def start(self, port: int, replay_port: int) -> None:
        """Listen on these ports; 0 takes a free one."""
        self._servers = [
            await asyncio.start_server(self._serve_subscriber, self._host, port),
            await asyncio.start_server(self._serve_requester, self._host, replay_port),
        ]
        published, repeated = (server.sockets[0].getsockname()[1] for server in self._servers)
        self.ports = (published, repeated)

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        for server in self._servers:
            server.close()
        for writer in self._tasks:
            writer.transport.abort()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    def publish(self, at_s: float, changes: Sequence[NamesChange]) -> None:
        """Publish changes of the cache as one batch."""
        self.publish_payload(batch_bytes(at_s, changes, self._block_tokens, self._rank))

    def publish_payload(self, payload: bytes) -> None:
        """Publish a batch as it is, whatever it holds."""
        number = self.lose(payload)
        message = message_bytes([self._topic, number.to_bytes(_NUMBER_BYTES, "big"), payload])
        for writer, wanted in self._subscribers.items():
            if self._topic.startswith(wanted) and writer.transport.get_write_buffer_size() < _UNSENT_BYTES_MAX:
                writer.write(message)

    def lose(self, payload: bytes) -> int:
        """Number a batch that no subscriber gets, as when a queue is full; it can be repeated."""
        number = self.next
        self.next += 1
        self._kept.append((number, payload))
        return number

    def forget(self) -> None:
        """Forget what could be repeated."""
        self._kept.clear()

    def repetition(self, first: int) -> Iterator[list[bytes]]:
        """Messages of the answer to a request for the batches from this number on."""
        for number, payload in list(self._kept):
            if number >= first:
                yield [b"", self._topic, number.to_bytes(_NUMBER_BYTES, "big"), payload]
        yield _END

    async def _serve_subscriber(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._note(writer)
        try:
            await shake_hands(reader, writer.write, SocketType.PUB)
            while True:
                (word,), _ = await read_message(reader, _REQUEST_BYTES_MAX)
                if word[:1] == b"\x01":
                    self._subscribers[writer] = word[1:]
        except (OSError, IncompleteReadError, ZmtpFault, ValueError):
            pass  # the subscriber has left, or is none
        finally:
            self._subscribers.pop(writer, None)
            self._close(writer)

    async def _serve_requester(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._note(writer)
        try:
            await shake_hands(reader, writer.write, SocketType.ROUTER)
            while True:
                request, _ = await read_message(reader, _REQUEST_BYTES_MAX)
                for message in self.repetition(int.from_bytes(request[-1], "big")):
                    writer.write(message_bytes(message))
                    await writer.drain()
        except (OSError, IncompleteReadError, ZmtpFault):
            pass  # the requester has left, or is none
        finally:
            self._close(writer)

    def _note(self, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "each connection is served by a task"
        self._tasks[writer] = task

    def _close(self, writer: StreamWriter) -> None:
        self._tasks.pop(writer, None)
        writer.close()


def batch_bytes(at_s: float, changes: Sequence[NamesChange], block_tokens: int, rank: int = 0) -> bytes:
    """Batch of changes in MessagePack."""
    return msgspec.msgpack.encode([at_s, [_event(change, block_tokens) for change in changes], rank])


def _event(change: NamesChange, block_tokens: int) -> dict[str, object]:
    names = [change.names[at : at + NAME_BYTES] for at in range(0, len(change.names), NAME_BYTES)]
    hashes = [int.from_bytes(name, "big") for name in names]
    if not change.is_stored:
        return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": 0}
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": int.from_bytes(change.parent, "big") if change.parent else None,
        "token_ids": [0] * (block_tokens * len(names)),
        "block_size": block_tokens,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(names),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
