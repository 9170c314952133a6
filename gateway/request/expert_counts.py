"""What a prefill worker's plug-in says of the experts that read a prompt: counts by layer and expert, packed. Pure.

It comes from an engine, so nothing of it is believed: not its length, nor what it says of itself. It derives from a
prompt: no fault quotes it.
"""

from __future__ import annotations

import binascii
import zlib
from base64 import b64decode

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.core.decode.locality.artifact import CELLS_MAX, MODEL_LENGTH_MAX
from gateway.core.value import value

VERSION = 1
ENCODED_BYTES_MAX = 64 << 10
"""Of the JSON object. 48 layers of 128 experts are 12 KiB before they are packed."""
INFLATED_BYTES_MAX = 1 << 20


class BadCounts(ValueError):
    """No counts that can be used, in words."""


@value
class ExpertCounts:
    counts: npt.NDArray[np.uint16]
    """[layers, experts]: how many of the prompt's tokens each was picked for, up to 65,535."""
    model: str
    """A fingerprint, in the plug-in's words."""


class _Told(msgspec.Struct):
    v: int
    layers: int
    experts: int
    counts: str
    model: str = ""
    tokens: int = 0


_TOLD = msgspec.json.Decoder(_Told)


def read_counts(text: bytes) -> ExpertCounts:
    """Raises BadCounts."""
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
    """Numbers of so many bytes each, by layer and expert. Raises BadCounts. It never holds more than it may."""
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
