"""Emulated tokens, chat template and answers: four bytes are a token, and answers can be predicted.

Pure functions of their arguments: a client can compute a whole answer and compare. There is no real tokenizer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import xxhash

from loadgen.engine.blocks import packed

TOKEN_BYTES = 4
TOKEN_ID_MAX = 2**32 - 1

_WORDS = tuple(f" {a}{b}{c}".encode() for a in "bcdfghjklmnprstv" for b in "aeio" for c in "lnrs")
assert len(_WORDS) == 256
assert all(len(word) == TOKEN_BYTES for word in _WORDS)


class PromptMessage(NamedTuple):
    role: str
    content: str


ANSWER_BEGINS = b"<|assistant|>\n  "
ANSWER_ENDS = b"<|end|>\n"
assert not len(ANSWER_BEGINS) % TOKEN_BYTES
assert not len(ANSWER_ENDS) % TOKEN_BYTES


def chat_turn(role: str, content: str) -> bytes:
    """Text of one message as engines see it, in whole tokens."""
    return _whole_tokens(f"<|{role}|>\n") + _whole_tokens(f"{content}<|end|>\n")


def chat_prompt(messages: Iterable[PromptMessage]) -> bytes:
    """Text of a conversation, ending where the assistant's next answer begins.

    Every piece fills whole tokens, and an earlier answer stands exactly where it was generated, so that a conversation
    with its answer is a true prefix of the next turn.
    """
    return b"".join(chat_turn(role, content) for role, content in messages) + ANSWER_BEGINS


def token_count(text: bytes) -> int:
    return -(-len(text) // TOKEN_BYTES)


def token_ids(text: bytes) -> tuple[int, ...]:
    """One number per token; `text_of` is the inverse, but for the padding of a last, partial token."""
    count = token_count(text)
    return struct.unpack(f"<{count}I", text.ljust(count * TOKEN_BYTES, b"\0"))


def text_of(ids: Sequence[int]) -> bytes:
    """Text behind token ids between 0 and TOKEN_ID_MAX."""
    return struct.pack(f"<{len(ids)}I", *ids)


def continuation(model: str, prompt: bytes, tokens: int) -> bytes:
    """Text that `model` generates after `prompt`: each word follows from all bytes before it.

    The answer to a prompt that ends with the first half of an answer is therefore the second half.
    """
    history = xxhash.xxh3_64(prompt, seed=xxhash.xxh3_64_intdigest(model.encode()))
    words = []
    for _ in range(tokens):
        word = _WORDS[history.intdigest() & 0xFF]
        history.update(word)
        words.append(word)
    return b"".join(words)


def continued_tokens(model: str, prompt: bytes) -> int:
    """Number of tokens at the prompt's end that equal what `model` generates after the tokens before them: the start of
    an answer to be continued. False positives are very rare."""
    if len(prompt) % TOKEN_BYTES or continuation(model, prompt[:-TOKEN_BYTES], 1) != prompt[-TOKEN_BYTES:]:
        return 0
    history = xxhash.xxh3_64(seed=xxhash.xxh3_64_intdigest(model.encode()))
    begins = 0
    for start in range(0, len(prompt), TOKEN_BYTES):
        token = prompt[start : start + TOKEN_BYTES]
        if start == 0 or _WORDS[history.intdigest() & 0xFF] != token:
            begins = start + TOKEN_BYTES
        history.update(token)
    return (len(prompt) - begins) // TOKEN_BYTES


def block_names(text: bytes, *, model: str, cache_salt: str, block_tokens: int) -> bytes:
    """Chained names of the full blocks of a text, packed; texts of other models or other salts share no name."""
    size = block_tokens * TOKEN_BYTES
    name = xxhash.xxh3_64_intdigest(f"{model}\0{cache_salt}".encode())
    names = []
    for start in range(0, len(text) - size + 1, size):
        name = xxhash.xxh3_64_intdigest(text[start : start + size], seed=name)
        names.append(name)
    return packed(names)


def _whole_tokens(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return data.ljust(token_count(data) * TOKEN_BYTES)
