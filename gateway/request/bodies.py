"""Request bodies of the API's calls, as far as they matter for routing. Text is skipped over, never decoded.

A body with a field that only a gateway may send to an engine is refused: from a client it could stop an engine, make it
read another request's cache, or take another request's id. Bodies from peers are read here too, by the same rules.
"""

from __future__ import annotations

from enum import StrEnum
from operator import attrgetter
from typing import ClassVar

import msgspec

from gateway.core.vocabulary import MODEL_NAME_LENGTH_MAX, NO_HINTS, Hints
from gateway.request import engine_api
from gateway.request.nvext import hints_in, without_nvext

_NOTHING = msgspec.Raw()
_UNSET = (b"", b"null", b"false")
_UNSET_BYTES_MAX = max(map(len, _UNSET))
_ATTRIBUTION = b"x-anthropic-billing-header"
"""Marker of a line with which some clients begin their system prompt; it differs in every request, and engines drop
it."""
_ATTRIBUTION_WITHIN_BYTES = 128
_ATTRIBUTED_BYTES_MAX = 256 * 1024
"""Largest system prompt that is parsed to leave that line out, in bytes ..."""
_ATTRIBUTED_BLOCKS_MAX = 64
"""... and in blocks; a larger one is indexed with the line."""
_XARGS_BYTES_MAX = 64 * 1024
"""Limit of `vllm_xargs`, since each of its names is checked."""


class BodyFaultKind(StrEnum):
    """Kind of body fault, by the error code that the client receives."""

    INVALID_JSON = "invalid_json"
    INVALID_FIELD = "invalid_field"
    UNSUPPORTED_FIELD = "unsupported_parameter"


INVALID_JSON, INVALID_FIELD, UNSUPPORTED_FIELD = BodyFaultKind


class BodyFault(Exception):
    """Error for a body that must not reach an engine. Each edge words it for its own protocol."""

    def __init__(self, kind: BodyFaultKind, detail: str, param: str | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.param = param


class _Reserved(msgspec.Struct, kw_only=True):
    """Fields that engines know and clients may not set."""

    # Hand-off of a KV cache between engines
    kv_transfer_params: msgspec.Raw = _NOTHING
    ec_transfer_params: msgspec.Raw = _NOTHING
    bootstrap_host: msgspec.Raw = _NOTHING
    bootstrap_port: msgspec.Raw = _NOTHING
    bootstrap_room: msgspec.Raw = _NOTHING
    disagg_prefill_dp_rank: msgspec.Raw = _NOTHING
    # Choice of a part of an engine
    data_parallel_rank: msgspec.Raw = _NOTHING
    routed_dp_rank: msgspec.Raw = _NOTHING
    # Id of a request inside the engine; a response takes its id, too
    request_id: msgspec.Raw = _NOTHING
    rid: msgspec.Raw = _NOTHING
    # Return of routed experts, which are megabytes
    routed_experts_prompt_start: msgspec.Raw = _NOTHING
    routed_experts_start_len: msgspec.Raw = _NOTHING
    return_routed_experts: msgspec.Raw = _NOTHING
    # Loading of weights or code
    lora_path: msgspec.Raw = _NOTHING
    custom_logit_processor: msgspec.Raw = _NOTHING


RESERVED_FIELDS = _Reserved.__struct_fields__
_reserved_of = attrgetter(*RESERVED_FIELDS)
_NONE_RESERVED = (_NOTHING,) * len(RESERVED_FIELDS)


class Body(_Reserved, kw_only=True):
    """Fields common to all calls."""

    fills_prefix_cache: ClassVar[bool] = True

    model: str
    stream: bool | None = None
    user: str | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None
    cache_salt: str | msgspec.UnsetType | None = msgspec.UNSET
    extra_key: str | None = None
    priority: msgspec.Raw = _NOTHING
    vllm_xargs: msgspec.Raw = _NOTHING
    nvext: msgspec.Raw = _NOTHING
    """Extensions of NVIDIA Dynamo's, which no engine is sent."""

    def prompt_parts(self) -> list[memoryview]:
        """Parts of the body that engines run inference on, in the order in which they are combined."""
        raise NotImplementedError

    def output_tokens_max(self) -> int | None:
        return None

    @property
    def streams(self) -> bool:
        return False

    @property
    def session_hint(self) -> str:
        return self.session_id or self.prompt_cache_key or self.user or ""

    @property
    def salt(self) -> str | None:
        """Client's own cache salt, from either engine's field for it."""
        salt = None if self.cache_salt is msgspec.UNSET else self.cache_salt
        return salt if self.extra_key is None else f"{salt or ''}\0{self.extra_key}"

    @property
    def names_cache_salt(self) -> bool:
        return self.cache_salt is not msgspec.UNSET

    @property
    def names_priority(self) -> bool:
        return is_set(self.priority)

    @property
    def followed_response_id(self) -> str | None:
        return None

    @property
    def stores_response(self) -> bool:
        return False

    def hints(self) -> Hints:
        """Hints that the body gives. Raises BodyFault."""
        if not self.nvext:
            return NO_HINTS
        try:
            return hints_in(self.nvext)
        except msgspec.ValidationError as error:
            raise BodyFault(INVALID_FIELD, f"nvext: {error}", "nvext") from error

    def without_extensions(self, body: bytes) -> bytes:
        """Return the body that this was read from without its extensions. Raises BodyFault."""
        if not self.nvext:
            return body
        rest = without_nvext(body, self.nvext)
        if rest is None:
            raise BodyFault(INVALID_FIELD, "nvext: the body has more than four members of this name", "nvext")
        return rest

    def check(self) -> None:
        """Check the call's own rules. Raises BodyFault for options that the gateway cannot support."""


class _Generating(Body, kw_only=True):
    tools: msgspec.Raw = _NOTHING
    max_tokens: int | None = None
    # Fields that decide whether prefill and decode may run on two engines: see `handoffs.py`
    n: msgspec.Raw = _NOTHING
    best_of: msgspec.Raw = _NOTHING
    use_beam_search: msgspec.Raw = _NOTHING
    prompt_logprobs: msgspec.Raw = _NOTHING
    truncate_prompt_tokens: msgspec.Raw = _NOTHING

    def output_tokens_max(self) -> int | None:
        return self.max_tokens

    @property
    def streams(self) -> bool:
        return bool(self.stream)


class ChatBody(_Generating, kw_only=True):
    messages: msgspec.Raw = _NOTHING
    max_completion_tokens: int | None = None

    def prompt_parts(self) -> list[memoryview]:
        return _present(self.tools, self.messages)

    def output_tokens_max(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionBody(_Generating, kw_only=True):
    prompt: msgspec.Raw = _NOTHING
    prompt_embeds: msgspec.Raw = _NOTHING
    echo: msgspec.Raw = _NOTHING

    def prompt_parts(self) -> list[memoryview]:
        return _present(self.prompt)


class ResponsesBody(_Generating, kw_only=True):
    input: msgspec.Raw = _NOTHING
    instructions: msgspec.Raw = _NOTHING
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    background: bool | None = None
    conversation: msgspec.Raw = _NOTHING
    truncation: msgspec.Raw = _NOTHING

    def prompt_parts(self) -> list[memoryview]:
        return _present(self.tools, self.instructions, self.input)

    def output_tokens_max(self) -> int | None:
        return self.max_output_tokens

    @property
    def followed_response_id(self) -> str | None:
        return self.previous_response_id

    @property
    def stores_response(self) -> bool:
        return self.store is not False

    def check(self) -> None:
        if self.background:
            why = "background: a request lives as long as its client's connection, so there is nothing to come back to"
            raise BodyFault(UNSUPPORTED_FIELD, why, "background")
        if is_set(self.conversation):
            why = "conversation: engines keep none; use previous_response_id"
            raise BodyFault(UNSUPPORTED_FIELD, why, "conversation")


class _Metadata(msgspec.Struct):
    user_id: str | None = None


class MessagesBody(_Generating, kw_only=True):
    system: msgspec.Raw = _NOTHING
    messages: msgspec.Raw = _NOTHING
    metadata: _Metadata | None = None

    def prompt_parts(self) -> list[memoryview]:
        return _present(self.tools, *_without_attribution(self.system), self.messages)

    @property
    def session_hint(self) -> str:
        return (self.metadata and self.metadata.user_id) or super().session_hint


class CountTokensBody(MessagesBody, kw_only=True):
    """Body of a call that runs no inference, so nothing is cached or streamed."""

    fills_prefix_cache: ClassVar[bool] = False

    @property
    def streams(self) -> bool:
        return False


class EmbeddingsBody(Body, kw_only=True):
    input: msgspec.Raw = _NOTHING
    messages: msgspec.Raw = _NOTHING

    def prompt_parts(self) -> list[memoryview]:
        return _present(self.input, self.messages)


class RerankBody(Body, kw_only=True):
    query: msgspec.Raw = _NOTHING
    documents: msgspec.Raw = _NOTHING

    def prompt_parts(self) -> list[memoryview]:
        return _present(self.query, self.documents)


class ScoreBody(Body, kw_only=True):
    """Body of a score call; the fields of the pairs have several names."""

    text_1: msgspec.Raw = _NOTHING
    data_1: msgspec.Raw = _NOTHING
    query: msgspec.Raw = _NOTHING
    queries: msgspec.Raw = _NOTHING
    text_2: msgspec.Raw = _NOTHING
    data_2: msgspec.Raw = _NOTHING
    items: msgspec.Raw = _NOTHING
    documents: msgspec.Raw = _NOTHING

    def prompt_parts(self) -> list[memoryview]:
        first = (self.text_1, self.data_1, self.query, self.queries)
        return _present(*first, self.text_2, self.data_2, self.items, self.documents)


class TokenizeBody(Body, kw_only=True):
    """Prompt or conversation; no inference runs, so nothing is cached."""

    fills_prefix_cache: ClassVar[bool] = False

    prompt: msgspec.Raw = _NOTHING
    content: msgspec.Raw = _NOTHING
    """Name of a prompt in llama.cpp's API."""
    messages: msgspec.Raw = _NOTHING

    def prompt_parts(self) -> list[memoryview]:
        return _present(self.prompt, self.content, self.messages)


class DetokenizeBody(Body, kw_only=True):
    fills_prefix_cache: ClassVar[bool] = False

    tokens: msgspec.Raw = _NOTHING

    def prompt_parts(self) -> list[memoryview]:
        return _present(self.tokens)


_BODIES: dict[str, type[Body]] = {
    engine_api.CHAT_PATH: ChatBody,
    engine_api.COMPLETIONS_PATH: CompletionBody,
    engine_api.RESPONSES_PATH: ResponsesBody,
    engine_api.MESSAGES_PATH: MessagesBody,
    engine_api.COUNT_TOKENS_PATH: CountTokensBody,
    engine_api.EMBEDDINGS_PATH: EmbeddingsBody,
    **dict.fromkeys(engine_api.RERANK_PATHS, RerankBody),
    **dict.fromkeys(engine_api.SCORE_PATHS, ScoreBody),
    engine_api.TOKENIZE_PATH: TokenizeBody,
    engine_api.DETOKENIZE_PATH: DetokenizeBody,
}
_DECODERS = {path: msgspec.json.Decoder(body, strict=False) for path, body in _BODIES.items()}
_XARGS = msgspec.json.Decoder(dict[str, msgspec.Raw])
assert set(_BODIES) == set(engine_api.POSTED_PATHS)


def read_body(path: str, raw: bytes, *, passes_priority: bool) -> Body:
    """Read and check a body. Raises BodyFault."""
    body = _decode(path, raw)
    if _reserved_of(body) != _NONE_RESERVED:  # rare: one comparison for all, then a check of each
        _check_reserved(body)
    if body.priority is not _NOTHING and body.names_priority and not passes_priority:
        raise BodyFault(UNSUPPORTED_FIELD, "priority: the engines here serve in order of arrival", "priority")
    if not 0 < len(body.model) <= MODEL_NAME_LENGTH_MAX or not body.model.isprintable():
        raise BodyFault(INVALID_FIELD, f"model is 1 to {MODEL_NAME_LENGTH_MAX} printable characters", "model")
    if body.vllm_xargs is not _NOTHING:
        _check_xargs(body.vllm_xargs)
    body.check()
    return body


def _decode(path: str, raw: bytes) -> Body:
    try:
        return _DECODERS[path].decode(raw)
    except msgspec.ValidationError as error:
        raise BodyFault(INVALID_FIELD, str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BodyFault(INVALID_JSON, str(error)) from error


def _check_reserved(body: Body) -> None:
    for name in RESERVED_FIELDS:
        if is_set(getattr(body, name)):
            raise BodyFault(UNSUPPORTED_FIELD, f"{name}: only gateways tell engines this", name)


def _check_xargs(raw: msgspec.Raw) -> None:
    """Refuse reserved names in extra arguments, which an engine merges with its own; unknown shapes are left to the
    engine."""
    if not is_set(raw):
        return
    if len(memoryview(raw)) > _XARGS_BYTES_MAX:
        raise BodyFault(INVALID_FIELD, f"vllm_xargs: at most {_XARGS_BYTES_MAX >> 10} KiB", "vllm_xargs")
    try:
        names = _XARGS.decode(raw)
    except msgspec.DecodeError:
        return
    for name in names:
        if name in RESERVED_FIELDS:
            raise BodyFault(UNSUPPORTED_FIELD, f"vllm_xargs.{name}: only gateways tell engines this", "vllm_xargs")


def is_set(raw: msgspec.Raw) -> bool:
    """Return true if the member is present and neither null nor false."""
    return raw is not _NOTHING and (len(view := memoryview(raw)) > _UNSET_BYTES_MAX or bytes(view) not in _UNSET)


def _present(*parts: msgspec.Raw) -> list[memoryview]:
    views = [memoryview(part) for part in parts if part is not _NOTHING]
    return [view for view in views if len(view) > len(b"null") or bytes(view) not in (b"", b"null")]


def _without_attribution(system: msgspec.Raw) -> list[msgspec.Raw]:
    view = memoryview(system)
    if len(view) > _ATTRIBUTED_BYTES_MAX or _ATTRIBUTION not in bytes(view[: 2 * _ATTRIBUTION_WITHIN_BYTES]):
        return [system]
    try:
        blocks = msgspec.json.decode(system, type=list[msgspec.Raw])
    except msgspec.DecodeError:
        return [system]
    if len(blocks) > _ATTRIBUTED_BLOCKS_MAX:
        return [system]
    return [block for block in blocks if _ATTRIBUTION not in bytes(memoryview(block)[:_ATTRIBUTION_WITHIN_BYTES])]
