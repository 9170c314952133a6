"""Reads as much of a request as routing needs: model, limits, owner, and its prefix as hashes.

The body is left unchanged but for the name of an aliased model, and only hashes, counts and names are taken from it,
never text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from os import urandom

from msgspec.structs import replace
from xxhash import xxh3_64_hexdigest

from gateway.config.content import ContentConfig
from gateway.core.placement.prefix_chain import prefix_chain, prefix_salt
from gateway.core.response_key import response_key
from gateway.core.vocabulary import (
    NO_HINTS,
    PREFIX_HASH_BYTES,
    Category,
    Hints,
    ModelName,
    PlaceRule,
    RequestId,
    RequestProfile,
    ServiceClass,
    TenantName,
)
from gateway.door.errors import (
    CLASS_NOT_ALLOWED,
    INVALID_CLASS,
    INVALID_CONTENT,
    INVALID_FIELD,
    INVALID_HEADER,
    INVALID_JSON,
    INVALID_TENANT,
    MODEL_NOT_FOUND,
    TENANT_NOT_ALLOWED,
    UNSUPPORTED_FIELD,
    ClientFault,
    ErrorKind,
)
from gateway.door.hints import HINT_HEADERS, NO_HINTS_GIVEN, hints_in
from gateway.door.settings import HttpSettings
from gateway.http1.server import Headers as HttpHeaders
from gateway.request.bodies import Body, BodyFault, BodyFaultKind, read_body
from gateway.request.callers import ClientKey
from gateway.request.content import NOTHING_READ, ContentReader
from gateway.request.engine_api import ENGINE_HEADERS, REQUEST_ID_HEADER
from gateway.request.handoffs import takers_of
from gateway.request.header_values import to_text
from gateway.request.legs import CacheSalt, Headers
from gateway.request.media import Media, MediaTokens, media_in
from gateway.request.model_names import ModelNames, body_for
from gateway.request.promises import NO_PROMISES, Promises
from gateway.request.trace_context import TRACEPARENT, TRACESTATE
from mesh.values import ID_PATTERN, parse_duration_ns

TENANT_HEADER = "x-nightside-tenant"
CONTENT_HEADER = "x-nightside-content"
"""Header that names the kind of the prompt, for clients that know it: the prompt is not classified then."""
CLASS_HEADER = "x-nightside-class"
DEADLINE_HEADER = "x-nightside-deadline"
"""Header with the client's time limit for the whole answer, such as 30s."""
_CLASSES = {str(each): each for each in ServiceClass}
_CATEGORIES = {str(each): each for each in Category}
DEFAULT_TENANT = TenantName("default")

_FAULT_KINDS: dict[BodyFaultKind, ErrorKind] = {
    BodyFaultKind.INVALID_JSON: INVALID_JSON,
    BodyFaultKind.INVALID_FIELD: INVALID_FIELD,
    BodyFaultKind.UNSUPPORTED_FIELD: UNSUPPORTED_FIELD,
}
_OWN_NAMES = ModelNames()
_AS_ASSUMED = MediaTokens(ContentConfig)
_IN_LINES = frozenset({TRACEPARENT, TRACESTATE})
_SESSION_BLOCKS = 4
"""Leading blocks of the prefix that identify a session, if the client gives no hint."""
_COUNT_MAX = 2**31
_SHOWN_MAX = 40
_FAULT_MAX = 120


class ParsedRequest:
    """Request that a client posted, as read by the gateway."""

    __slots__ = ("asked_model", "body", "cache_salt", "media", "profile", "stores_response")

    def __init__(
        self,
        profile: RequestProfile,
        body: bytes,
        *,
        asked_model: str,
        stores_response: bool,
        cache_salt: CacheSalt | None,
        media: Media | None,
    ) -> None:
        self.profile = profile
        self.body = body
        """Body as the client sent it, but for the model's name where the client used an alias."""
        self.asked_model = asked_model
        """Alias that the client used; empty if it named the model itself."""
        self.stores_response = stores_response
        self.cache_salt = cache_salt
        self.media = media
        """Media parts of the prompt; None if there are none."""


class Caller:
    """Identity and wishes of the client, by key and headers."""

    __slots__ = (
        "category",
        "hints",
        "is_patient",
        "keeps_yielding",
        "key",
        "patience_ns",
        "request_id",
        "service_class",
        "session_hints",
        "tenant",
    )

    def __init__(
        self,
        request_id: RequestId,
        tenant: TenantName,
        session_hints: tuple[str, str],
        *,
        key: ClientKey | None = None,
        category: Category | None = None,
        service_class: ServiceClass | None = None,
        patience_ns: int | None = None,
        hints: Mapping[str, int] = NO_HINTS_GIVEN,
        keeps_yielding: bool = False,
        is_patient: bool = False,
    ) -> None:
        self.request_id = request_id
        self.tenant = tenant
        self.session_hints = session_hints
        """Values of the headers for a session and for a user; empty where absent."""
        self.key = key
        """Key that the client showed; None where the gateway needs none."""
        self.category = category
        """Kind of the prompt, if the client names it."""
        self.service_class = service_class
        """Service class that the client asks for; None if it names none."""
        self.patience_ns = patience_ns
        """Nanoseconds that the client allows for the whole answer; None if it sets no limit."""
        self.hints = hints
        """Hints that the headers give, by field."""
        self.keeps_yielding = keeps_yielding
        """True for a line of a batch; see `RequestProfile`."""
        self.is_patient = is_patient
        """True for a line of a batch that has time to spare."""

    @property
    def process(self) -> PlaceRule | None:
        """Restriction that the key adds to the policy's rule."""
        return None if self.key is None else self.key.process

    def may_use(self, model: ModelName, *, asked: ModelName | None = None) -> bool:
        """True if the key allows the model. `asked`: the alias by which the client asked; a key that names the alias
        allows it, too."""
        return self.key is None or self.key.may_use(model) or (asked is not None and self.key.may_use(asked))


def read_caller(
    headers: Mapping[str, str], request_id: RequestId, settings: HttpSettings, key: ClientKey | None = None
) -> Caller:
    """Read a client's identity and headers. Raises ClientFault. The tenant is the key's. A tenant header counts only
    where the gateway trusts it and, where there are keys, with a key that allows it: other clients could choose the
    rules that they are held to."""
    session, user = headers.get("x-session-id", ""), headers.get("x-user-id", "")
    hints = (session and to_text(session), user and to_text(user))
    own = DEFAULT_TENANT if key is None else key.tenant
    named = _tenant_named_in(headers) if settings.trust_tenant_header else None
    if named is not None and named != own and key is not None and not key.may_name_tenant:
        raise ClientFault(TENANT_NOT_ALLOWED)
    return Caller(
        request_id,
        named or own,
        hints,
        key=key,
        category=_category_named(headers[CONTENT_HEADER]) if CONTENT_HEADER in headers else None,
        service_class=_class_named(headers[CLASS_HEADER]) if CLASS_HEADER in headers else None,
        patience_ns=_patience_named(headers[DEADLINE_HEADER]) if DEADLINE_HEADER in headers else None,
        hints=NO_HINTS_GIVEN if HINT_HEADERS.isdisjoint(headers) else hints_in(headers),
    )


def _class_named(told: str) -> ServiceClass:
    named = _CLASSES.get(told.strip().lower())
    if named is None:
        raise ClientFault(INVALID_CLASS, f"it is one of {', '.join(_CLASSES)}, not {told[:_SHOWN_MAX]!r}", CLASS_HEADER)
    return named


def _patience_named(told: str) -> int:
    try:
        return parse_duration_ns(told.strip())
    except ValueError as error:
        raise ClientFault(INVALID_HEADER, f"{error}"[:_FAULT_MAX], DEADLINE_HEADER) from error


def _served_as(caller: Caller, model: ModelName, promises: Promises) -> ServiceClass:
    """Service class of the request. A client may ask for a lower class than its key or tenant has, never for a higher
    one: what was promised is also a bound."""
    promised = None if caller.key is None else caller.key.service_class
    promised = promised or promises.of_tenant(caller.tenant)
    named = caller.service_class
    if named is None:
        return promised or promises.of_model(model) or ServiceClass.INTERACTIVE
    if promised is not None and named.rank < promised.rank:
        raise ClientFault(CLASS_NOT_ALLOWED, f"it is {promised}", CLASS_HEADER)
    return named


def _category_named(named: str) -> Category:
    category = _CATEGORIES.get(named.strip().lower())
    if category is None:
        raise ClientFault(INVALID_CONTENT, f"it is one of {', '.join(_CATEGORIES)}", CONTENT_HEADER)
    return category


def _tenant_named_in(headers: Mapping[str, str]) -> TenantName | None:
    tenant = headers.get(TENANT_HEADER, "")
    if tenant and ID_PATTERN.fullmatch(tenant) is None:
        raise ClientFault(INVALID_TENANT)
    return TenantName(tenant) if tenant else None


def choose_request_id(headers: Mapping[str, str]) -> RequestId:
    """Request id of the client if it is short and plain, else a fresh one."""
    wanted = headers.get(REQUEST_ID_HEADER, "")
    return RequestId(wanted) if ID_PATTERN.fullmatch(wanted) else fresh_request_id()


def fresh_request_id() -> RequestId:
    return RequestId(urandom(16).hex())


def read_request(
    path: str,
    raw: bytes,
    caller: Caller,
    settings: HttpSettings,
    names: ModelNames = _OWN_NAMES,
    *,
    contents: ContentReader | None = None,
    promises: Promises = NO_PROMISES,
    media_tokens: MediaTokens = _AS_ASSUMED,
) -> ParsedRequest:
    """Parse a posted request. `contents` classifies prompts, `promises` gives the service class of requests that name
    none, and `media_tokens` estimates media parts. Raises ClientFault."""
    body = _read_body(path, raw, settings)
    asked = ModelName(body.model)
    followed = body.followed_response_id
    follows = "" if followed is None else response_key(caller.tenant, followed)
    meant = tuple(filter(partial(caller.may_use, asked=asked), names.stands_for(asked)))
    if not meant:
        raise ClientFault(MODEL_NOT_FOUND, f"the model `{asked}` does not exist for this key", "model")
    process, own_salt, domain = caller.process, body.salt, settings.cache_salts.domain(caller.tenant)
    model = names.resolved(asked, meant, caller.tenant, process, follows)
    salt = prefix_salt(model, domain, own_salt)
    blocks_max = settings.prefix_blocks_max if body.fills_prefix_cache else 0
    block_bytes = settings.prefix_block_bytes
    media = media_in(body, raw, model, media_tokens)
    parts: Sequence[bytes | memoryview] = body.prompt_parts() if media is None else media.pieces
    prefix, prompt_bytes = prefix_chain(salt, parts, block_bytes=block_bytes, blocks_max=blocks_max)
    content = None if contents is None else contents.read(body, model, caller.tenant, caller.category)
    content = content or NOTHING_READ
    hints, sent = NO_HINTS, raw
    if caller.hints or body.nvext:
        hints, sent = _hints_of(caller, body, raw)
    profile = RequestProfile(
        request_id=caller.request_id,
        model=model,
        tenant=caller.tenant,
        prompt_bytes=prompt_bytes if media is None else media.prompt_bytes,
        prefix=prefix,
        prefix_block_bytes=block_bytes,
        session_key=_session_key(body.session_hint, parts, caller, prefix, salt),
        stream=body.streams,
        output_tokens_max=_plausible(body.output_tokens_max()),
        follows=follows,
        process=process,
        connectors=takers_of(body),
        category=content.category,
        text_bytes=content.text_bytes,
        extra_prompt_tokens=content.extra_tokens,
        service_class=_served_as(caller, model, promises),
        sent_bytes=0 if media is None else media.sent_bytes,
        hints=hints,
        keeps_yielding=caller.keeps_yielding,
        is_patient=caller.is_patient,
    )
    salted = settings.cache_salts.salt(domain, own_salt, body)
    return ParsedRequest(
        profile,
        sent if model == asked else body_for(sent, model),
        asked_model="" if model == asked else asked,
        stores_response=body.stores_response,
        cache_salt=salted,
        media=media,
    )


def control_profile(response_id: str, caller: Caller, settings: HttpSettings, *, stream: bool) -> RequestProfile:
    """Profile of a call about a stored response: no model, no prompt, and one possible target."""
    key = response_key(caller.tenant, response_id)
    return replace(unread_profile(caller, settings), session_key=key, stream=stream, follows=key, is_control=True)


def unread_profile(caller: Caller, settings: HttpSettings) -> RequestProfile:
    """Profile of a request whose body has not been read."""
    return RequestProfile(
        request_id=caller.request_id,
        model=ModelName(""),
        tenant=caller.tenant,
        prompt_bytes=0,
        prefix=b"",
        prefix_block_bytes=settings.prefix_block_bytes,
        session_key=caller.request_id,
        stream=False,
        process=caller.process,
    )


def engine_headers(headers: HttpHeaders, request_id: RequestId) -> Headers:
    """Headers for the engine, byte for byte as the client sent them. The lines of a trace header are one list (RFC
    9110, section 5.3), so that two traceparents are invalid. Of any other header the first line counts."""
    kept = [(name, headers[name]) for name in ENGINE_HEADERS if name in headers]
    if headers.repeated is not None:
        kept = [(name, ",".join(headers.getall(name)) if name in _IN_LINES else text) for name, text in kept]
    kept.append((REQUEST_ID_HEADER, request_id))
    return tuple(kept)


def _read_body(path: str, raw: bytes, settings: HttpSettings) -> Body:
    try:
        return read_body(path, raw, passes_priority=settings.pass_priority)
    except BodyFault as fault:
        raise ClientFault(_FAULT_KINDS[fault.kind], fault.detail, fault.param) from fault


def _hints_of(caller: Caller, body: Body, raw: bytes) -> tuple[Hints, bytes]:
    """Hints of a request, of which headers count first, and the body without them."""
    try:
        return body.hints().with_changes(caller.hints), body.without_extensions(raw)
    except BodyFault as fault:
        raise ClientFault(_FAULT_KINDS[fault.kind], fault.detail, fault.param) from fault


def _plausible(tokens: int | None) -> int | None:
    """Limit on output tokens; None for an implausible one, which is left to the engine to refuse."""
    return tokens if tokens is not None and 0 <= tokens <= _COUNT_MAX else None


def _session_key(hint: str, parts: Sequence[bytes | memoryview], caller: Caller, prefix: bytes, salt: bytes) -> str:
    """Hash that is the same for the same session; it is safe to keep in journals and logs."""
    session, user = caller.session_hints
    hint = session or hint or user
    if hint:
        return xxh3_64_hexdigest(f"{caller.tenant}\0{hint}".encode("utf-8", "surrogatepass"))
    first_blocks = prefix[: _SESSION_BLOCKS * PREFIX_HASH_BYTES]
    if first_blocks:
        return first_blocks[-PREFIX_HASH_BYTES:].hex()
    return xxh3_64_hexdigest(b"\0".join((salt, *parts)))
