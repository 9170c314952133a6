"""Frames of a peer's answer to a forward, for fakes that speak as a peer: one word each. A stream numbers them."""

from __future__ import annotations

from gateway.core.kernel.effects import EndRequest
from gateway.core.vocabulary import RefusalReason
from gateway.peers import codec
from gateway.request.legs import LegHead, RequestSummary
from protos.mesh.v1 import peer_pb2 as pb


def accepted() -> pb.AnswerFrame:
    return pb.AnswerFrame(accepted=pb.Accepted())


def refused(reason: RefusalReason, detail: str) -> pb.AnswerFrame:
    return pb.AnswerFrame(refused=codec.refusal_to_pb(reason, detail))


def head(told: LegHead) -> pb.AnswerFrame:
    frame = pb.AnswerFrame()
    codec.write_head(frame.head, told)
    return frame


def data(piece: bytes) -> pb.AnswerFrame:
    return pb.AnswerFrame(data=piece)


def ended(end: EndRequest, summary: RequestSummary) -> pb.AnswerFrame:
    return pb.AnswerFrame(ended=codec.end_to_pb(end, summary))
