"""Extras that an engine is asked for, by what its dialect can tell."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.config.targets import Dialect
from gateway.core.kernel.effects import StartLeg
from gateway.core.vocabulary import Extra, LegRole
from gateway.engines.endpoints import ReplicaEndpoint
from gateway.request.body_edits import BodySetting
from gateway.request.extras import ask_for
from gateway.request.legs import OutboundRequest

_TOLD_BY = {
    Extra.USAGE: frozenset({Dialect.VLLM, Dialect.SGLANG, Dialect.LLAMACPP}),
    Extra.TOKEN_IDS: frozenset({Dialect.VLLM}),
}
"""Dialects whose engines report an extra when asked, with no other effect than is known. Other dialects are not
asked."""


def asked_of(
    endpoint: ReplicaEndpoint, extras: Iterable[Extra], request: OutboundRequest
) -> tuple[list[BodySetting], tuple[Extra, ...]]:
    """Return the settings of a stream's body that ask for the extras that this engine tells, and which of them."""
    wanted = [extra for extra in extras if endpoint.dialect in _TOLD_BY[extra]]
    return ask_for(wanted, request.path, request.body) if wanted else ([], ())


def asked_of_decode(
    endpoint: ReplicaEndpoint, order: StartLeg, request: OutboundRequest
) -> tuple[list[BodySetting], tuple[Extra, ...]]:
    """Ask a decode worker for the length of its answer, where the client did not: predictors learn from it."""
    if order.role is not LegRole.DECODE or not request.profile.stream:
        return [], ()
    return asked_of(endpoint, (Extra.USAGE,), request)
