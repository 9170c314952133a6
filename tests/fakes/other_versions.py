"""The mesh's protocol as other versions of the product speak it, in one process with the current one: an older version
and a newer.

`frozen/peer.binpb` is the descriptor of `peer.proto` in the first version in which all forwards share streams. It is
never generated again.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from protos.mesh.v1 import peer_pb2

_PACKAGE = "nightside.mesh.v1"
_FROZEN = Path(__file__).with_name("frozen")
_UNHEARD_OF = 1000
"""Number of the field that every message of the newer version has and the current version lacks."""


class Protocol:
    """Messages and calls of one version, made from its own descriptors, without the current version's generated
    code.
    """

    def __init__(self, file: FileDescriptorProto) -> None:
        self._pool = DescriptorPool()
        self._pool.AddSerializedFile(file.SerializeToString())
        self._calls = self._pool.FindServiceByName(f"{_PACKAGE}.PeerService").methods_by_name

    @property
    def knows_progress(self) -> bool:
        """True if this version has a word of an answer that the current version lacks."""
        return "progress" in self._class("AnswerFrame").DESCRIPTOR.fields_by_name

    def make(self, message: str, **fields: Any) -> Any:
        made = self._class(message)(**fields)
        if "novelty" in made.DESCRIPTOR.fields_by_name:
            made.novelty = "of which nobody has heard"
        return made

    def read(self, message: str, raw: bytes) -> Any:
        """Message of this version, from its bytes."""
        return self._class(message).FromString(raw)

    def reads(self, message: Message) -> bytes:
        """Bytes of a message as this version reads it: only its known fields, serialised again."""
        read = self._class(message.DESCRIPTOR.name).FromString(message.SerializeToString())
        read.DiscardUnknownFields()
        written = read.SerializeToString(deterministic=True)
        assert isinstance(written, bytes)
        return written

    def call(self, channel: grpc.aio.Channel, name: str) -> Any:
        """One of the service's calls, for a caller of this version."""
        method = self._calls[name]
        begin: Any = channel.unary_stream if method.server_streaming else channel.unary_unary
        if method.client_streaming:
            begin = channel.stream_stream
        asked, answered = self._class(method.input_type.name), self._class(method.output_type.name)
        return begin(
            f"/{_PACKAGE}.PeerService/{name}",
            request_serializer=asked.SerializeToString,
            response_deserializer=answered.FromString,
        )

    @asynccontextmanager
    async def serving(self, port: int, **calls: Callable[..., Any]) -> AsyncIterator[None]:
        """Run a gateway of this version that answers calls with these functions; a stream is an async generator."""
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handlers = {name: self._handler(name, answer) for name, answer in calls.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"{_PACKAGE}.PeerService", handlers),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(0)

    def _handler(self, name: str, answer: Callable[..., Any]) -> Any:
        method = self._calls[name]
        make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
        if method.client_streaming:
            make = grpc.stream_stream_rpc_method_handler
        asked, answered = self._class(method.input_type.name), self._class(method.output_type.name)
        return make(answer, request_deserializer=asked.FromString, response_serializer=answered.SerializeToString)

    def _class(self, message: str) -> Any:
        return GetMessageClass(self._pool.FindMessageTypeByName(f"{_PACKAGE}.{message}"))


def frozen() -> Protocol:
    return Protocol(FileDescriptorProto.FromString((_FROZEN / "peer.binpb").read_bytes()))


def said_by_frozen() -> dict[str, bytes]:
    """Messages that tests/fakes/spoken.py made in that version."""
    told = json.loads((_FROZEN / "peer.json").read_text())
    return {name: bytes.fromhex(text) for name, text in told.items()}


def newer() -> Protocol:
    """Current protocol with additions: every message has a field `novelty`, and a forward's answers one more word,
    `progress`.
    """
    file = FileDescriptorProto()
    peer_pb2.DESCRIPTOR.CopyToProto(file)
    for message in file.message_type:
        optional, text = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.TYPE_STRING
        message.field.add(name="novelty", number=_UNHEARD_OF, label=optional, type=text)
        if message.name == "AnswerFrame":
            message.field.add(name="progress", number=_UNHEARD_OF + 1, label=optional, type=text)
    return Protocol(file)
