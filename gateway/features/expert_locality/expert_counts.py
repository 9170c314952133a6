"""Expert counts of a prompt from a prefill worker's plug-in, by layer and expert, packed. Pure.

They come from an engine, so nothing in them is trusted, neither length nor declared shape. They derive from a prompt,
so no error message quotes them.
"""

from __future__ import annotations

import binascii
import zlib
from base64 import b64decode

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from gateway.core.features.expert_locality.artifact import CELLS_MAX, MODEL_LENGTH_MAX

VERSION = 1
ENCODED_BYTES_MAX = 64 << 10
"""Limit of the JSON object. 48 layers of 128 experts are 12 KiB before packing."""
INFLATED_BYTES_MAX = 1 << 20


class BadCounts(ValueError):
    """Error for counts that cannot be used, with the reason."""


class ExpertCounts(Struct, frozen=True):
    counts: npt.NDArray[np.uint16]
    """Number of the prompt's tokens routed to each expert, up to 65,535, as [layers, experts]."""
    model: str
    """Fingerprint of the model, as the plug-in names it."""


class _Told(msgspec.Struct):
    v: int
    layers: int
    experts: int
    counts: str
    model: str = ""
    tokens: int = 0


_TOLD = msgspec.json.Decoder(_Told)


def read_counts(text: bytes) -> ExpertCounts:
    """Read the counts. Raises BadCounts."""
    if len(text) > ENCODED_BYTES_MAX:
        raise BadCounts(f"they are more than {ENCODED_BYTES_MAX >> 10} KiB")
    try:
        told = _TOLD.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadCounts("they are not in the form that is known") from None
    if told.v != VERSION:
        raise BadCounts(f"they are of version {told.v}, not {VERSION}")
    if len(told.model) > MODEL_LENGTH_MAX:
        raise BadCounts("the model's fingerprint is too long")
    packed = unpack_counts(told.counts, told.layers, told.experts, 2)
    return ExpertCounts(np.frombuffer(packed, "<u2").reshape(told.layers, told.experts), told.model)


def unpack_counts(packed: str, layers: int, experts: int, size: int) -> bytes:
    """Unpack numbers of `size` bytes each, by layer and expert. Raises BadCounts. Memory stays within the limits."""
    if layers < 1 or experts < 1 or layers * experts > CELLS_MAX or layers * experts * size > INFLATED_BYTES_MAX:
        raise BadCounts("they are of a shape that no model has")
    inflate = zlib.decompressobj()
    try:
        inflated = inflate.decompress(b64decode(packed, validate=True), layers * experts * size + 1)
    except (binascii.Error, ValueError, zlib.error):
        raise BadCounts("they cannot be unpacked") from None
    if len(inflated) != layers * experts * size or inflate.unconsumed_tail:
        raise BadCounts("there are not as many as are said")
    return inflated
