"""Reads just enough of a request to route it: model, limits, who it belongs to, and its prefix as hashes.

The body itself is never changed, and what is taken from it is never text: hashes, counts and names only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import uuid4

import msgspec
from xxhash import xxh3_64_hexdigest

from gateway.callers import ClientKey
from gateway.config import ID_PATTERN, MODEL_NAME_LENGTH_MAX
from gateway.core.prefix_chain import prefix_chain, prefix_salt
from gateway.core.vocabulary import (
    PREFIX_HASH_BYTES,
    ModelName,
    RequestId,
    RequestProfile,
    TenantName,
)
from gateway.http.errors import (
    INVALID_FIELD,
    INVALID_JSON,
    INVALID_TENANT,
    MODEL_NOT_FOUND,
    UNSUPPORTED_FIELD,
    ClientFault,
)
from gateway.http.settings import HttpSettings
from gateway.legs import Headers

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
REQUEST_ID_HEADER = "x-request-id"
TENANT_HEADER = "x-nightside-tenant"
DEFAULT_TENANT = TenantName("default")

_ENGINE_HEADERS = ("accept", "content-type", "traceparent", "tracestate", "user-agent", "x-session-id")
"""All that an engine gets to see of a client's headers: neither credentials nor anything that steers the engine."""
_SESSION_BLOCKS = 4
"""Without a hint, requests that begin with the same blocks are taken for one session."""
_ABSENT = (b"", b"null")


class _Body(msgspec.Struct):
    """What chat and completions have in common. Raw fields are skipped over, not decoded."""

    model: str
    stream: bool | None = None
    max_tokens: int | None = None
    user: str | None = None
    session_id: str | None = None
    cache_salt: str | None = None
    kv_transfer_params: msgspec.Raw = msgspec.Raw()
    ec_transfer_params: msgspec.Raw = msgspec.Raw()
    bootstrap_host: msgspec.Raw = msgspec.Raw()
    bootstrap_port: msgspec.Raw = msgspec.Raw()
    bootstrap_room: msgspec.Raw = msgspec.Raw()


class _ChatBody(_Body):
    messages: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    max_completion_tokens: int | None = None

    def prompt_parts(self) -> list[memoryview]:
        return _present(self.tools, self.messages)

    def output_tokens_max(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class _CompletionBody(_Body):
    prompt: msgspec.Raw = msgspec.Raw()

    def prompt_parts(self) -> list[memoryview]:
        return _present(self.prompt)

    def output_tokens_max(self) -> int | None:
        return self.max_tokens


_DECODERS: dict[str, msgspec.json.Decoder[_ChatBody] | msgspec.json.Decoder[_CompletionBody]] = {
    CHAT_PATH: msgspec.json.Decoder(_ChatBody, strict=False),
    COMPLETIONS_PATH: msgspec.json.Decoder(_CompletionBody, strict=False),
}
_HANDED_OVER = ("kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room")
"""What a router tells two engines about moving a KV cache. From a client's hand it can bring an engine down."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, by key and headers."""

    request_id: RequestId
    tenant: TenantName
    session_hints: tuple[str, str]
    """The headers for a session and for a user; empty where absent."""
    key: ClientKey | None = None
    """None where the gateway asks for none."""

    def may_use(self, model: ModelName) -> bool:
        return self.key is None or self.key.may_use(model)


def read_caller(
    headers: Mapping[str, str], request_id: RequestId, settings: HttpSettings, key: ClientKey | None = None
) -> Caller:
    """Raises ClientFault. The tenant is the key's; only behind something that sets the header does that one count."""
    tenant = headers.get(TENANT_HEADER, "") if settings.trust_tenant_header else ""
    if tenant and ID_PATTERN.fullmatch(tenant) is None:
        raise ClientFault(INVALID_TENANT)
    hints = (headers.get("x-session-id", ""), headers.get("x-user-id", ""))
    own = DEFAULT_TENANT if key is None else key.tenant
    return Caller(request_id, TenantName(tenant) if tenant else own, hints, key)


def choose_request_id(headers: Mapping[str, str]) -> RequestId:
    """The client's own id if it is short and plain, else a fresh one."""
    wanted = headers.get(REQUEST_ID_HEADER, "")
    return RequestId(wanted) if ID_PATTERN.fullmatch(wanted) else fresh_request_id()


def fresh_request_id() -> RequestId:
    return RequestId(uuid4().hex)


def read_profile(path: str, body: bytes, caller: Caller, settings: HttpSettings) -> RequestProfile:
    """Raises ClientFault."""
    document = _decode(path, body)
    if not 0 < len(document.model) <= MODEL_NAME_LENGTH_MAX or not document.model.isprintable():
        raise ClientFault(INVALID_FIELD, f"model is 1 to {MODEL_NAME_LENGTH_MAX} printable characters", "model")
    for name in _HANDED_OVER:
        if bytes(getattr(document, name)) not in _ABSENT:
            raise ClientFault(UNSUPPORTED_FIELD, name, name)
    model = ModelName(document.model)
    if not caller.may_use(model):
        raise ClientFault(MODEL_NOT_FOUND, f"the model `{model}` does not exist for this key", "model")
    salt = prefix_salt(model, caller.tenant, document.cache_salt)
    prefix, prompt_bytes = prefix_chain(
        salt,
        document.prompt_parts(),
        block_bytes=settings.prefix_block_bytes,
        blocks_max=settings.prefix_blocks_max,
    )
    return RequestProfile(
        request_id=caller.request_id,
        model=model,
        tenant=caller.tenant,
        prompt_bytes=prompt_bytes,
        prefix=prefix,
        prefix_block_bytes=settings.prefix_block_bytes,
        session_key=_session_key(document, caller, prefix, salt),
        stream=bool(document.stream),
        output_tokens_max=document.output_tokens_max(),
        process=None if caller.key is None else caller.key.process,
    )


def engine_headers(headers: Mapping[str, str], request_id: RequestId) -> Headers:
    kept = tuple((name, headers[name]) for name in _ENGINE_HEADERS if name in headers)
    return (*kept, (REQUEST_ID_HEADER, request_id))


def _decode(path: str, body: bytes) -> _ChatBody | _CompletionBody:
    try:
        return _DECODERS[path].decode(body)
    except msgspec.ValidationError as error:
        raise ClientFault(INVALID_FIELD, str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ClientFault(INVALID_JSON, str(error)) from error


def _present(*parts: msgspec.Raw) -> list[memoryview]:
    views = [memoryview(part) for part in parts]
    return [view for view in views if len(view) > len(b"null") or bytes(view) not in _ABSENT]


def _session_key(document: _ChatBody | _CompletionBody, caller: Caller, prefix: bytes, salt: bytes) -> str:
    """A hash: the same for the same session, and nothing that a journal or a log would rather not hold."""
    session, user = caller.session_hints
    hint = session or document.session_id or document.user or user
    if hint:
        return xxh3_64_hexdigest(f"{caller.tenant}\0{hint}".encode("utf-8", "surrogatepass"))
    first_blocks = prefix[: _SESSION_BLOCKS * PREFIX_HASH_BYTES]
    if first_blocks:
        return first_blocks[-PREFIX_HASH_BYTES:].hex()
    return xxh3_64_hexdigest(b"\0".join((salt, *document.prompt_parts())))
