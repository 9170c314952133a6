"""Hand-offs of a KV cache from a prefill to a decode worker: the calls that two engines may share, and the hand-off in
a prefill's answer. Pure; the hand-off is bytes that it does not interpret.

The rules follow from the engines. One that gets a hand-off for a prompt other than the one prefilled stops with all its
requests, so a call is not shared if anything might make the two prompts differ or split a prompt in several.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import attrgetter

import msgspec
from msgspec import Struct

from gateway.core.vocabulary import Connector, LegResult
from gateway.request.answers import fault_of
from gateway.request.bodies import Body, ChatBody, CompletionBody, MessagesBody, ResponsesBody, is_set
from gateway.request.engine_errors import decode
from gateway.request.legs import LegFailure
from gateway.request.side_channels import SideChannel, Stray, stray_in
from gateway.request.sse import events, fields

OUR_PREFIX = "nightside"
"""Prefix of the names that Nightside's engine plug-ins use inside a hand-off. They are never sent to a decode
engine."""
COUNTS_KEY = "nightside_expert_counts"
HANDOFF_BYTES_MAX = 1 << 19
"""Limit of a hand-off: a million tokens in blocks of 16 have some 440 KiB of block numbers."""

_NIXL = frozenset({Connector.NIXL})
_ANY = frozenset(Connector)
TAKERS: dict[type[Body], frozenset[Connector]] = {
    ChatBody: _ANY,
    CompletionBody: _ANY,
    MessagesBody: _NIXL,
    ResponsesBody: _NIXL,
}
"""Connectors over which a call can be handed off. vLLM has hand-off fields in all four APIs, but the newer two lack
`min_tokens`, without which its other connectors lose a prefill whose one token ends the answer; SGLang's fields are
known from OpenAI's older two."""

_SINGLE = (b"", b"null", b"1")
_ONE_TEXT = re.compile(rb'\[\s*"[^"\\]*(?:\\.[^"\\]*)*"\s*\]', re.DOTALL)
_ONE_LIST = re.compile(rb"\[\s*\[[^][]*\]\s*\]")
_BRACKET = ord("[")
_BATCH = re.compile(rb'\[\s*["\[]')
_TOOLS_BYTES_MAX = 1 << 20


class _Tool(msgspec.Struct):
    type: str = "function"


_TOOLS = msgspec.json.Decoder(list[_Tool])


_asked_of = attrgetter("n", "best_of", "use_beam_search", "prompt_logprobs", "truncate_prompt_tokens")
_NOTHING_ASKED = _asked_of(ChatBody(model=""))


def why_whole(body: Body) -> str:
    """Reason why one engine has to run the whole call, for error messages; empty if two can share it."""
    if type(body) not in TAKERS:
        return "engines take no hand-off of a KV cache for this call"
    if (asked := _asked_of(body)) != _NOTHING_ASKED:  # rare: one comparison for all, then a check of each
        why = _why_whole_as_asked(*asked)
        if why:
            return why
    if isinstance(body, CompletionBody):
        return _why_whole_completion(body)
    if isinstance(body, ResponsesBody):
        return _why_whole_response(body)
    return ""


def _why_whole_as_asked(
    n: msgspec.Raw, best_of: msgspec.Raw, beam: msgspec.Raw, logprobs: msgspec.Raw, truncated: msgspec.Raw
) -> str:
    if bytes(n) not in _SINGLE or bytes(best_of) not in _SINGLE or is_set(beam):
        return "n, best_of, use_beam_search: several answers cannot share one KV cache that was handed over"
    if is_set(logprobs):
        return "prompt_logprobs: the decode engine has not read the prompt"
    if is_set(truncated):
        return "truncate_prompt_tokens: what is left of the prompt depends on how much may be answered"
    return ""


def takers_of(body: Body) -> frozenset[Connector]:
    """Connectors over which this call can be handed off; empty if one engine has to run it whole."""
    return frozenset() if why_whole(body) else TAKERS[type(body)]


def _why_whole_completion(body: CompletionBody) -> str:
    if is_set(body.prompt_embeds):
        return "prompt_embeds: a prompt of numbers is not handed over"
    if is_set(body.echo):
        return "echo: the decode engine has not read the prompt"
    prompt = memoryview(body.prompt)
    if (
        prompt
        and prompt[0] == _BRACKET
        and _BATCH.match(prompt)
        and not (_ONE_TEXT.fullmatch(prompt) or _ONE_LIST.fullmatch(prompt))
    ):
        return "prompt: several prompts in one request cannot be handed over"
    return ""


def _why_whole_response(body: ResponsesBody) -> str:
    if body.stores_response or body.followed_response_id is not None:
        return "store, previous_response_id: a stored response stays with the engine that made it; send store: false"
    if is_set(body.truncation) and bytes(body.truncation) != b'"disabled"':
        return "truncation: what is left of the prompt depends on how much may be answered"
    if is_set(body.tools) and not _are_functions(body.tools):
        return "tools: an engine that runs tools itself reads more than the prompt"
    return ""


def _are_functions(tools: msgspec.Raw) -> bool:
    if len(memoryview(tools)) > _TOOLS_BYTES_MAX:
        return False
    try:
        return all(tool.type == "function" for tool in _TOOLS.decode(tools))
    except msgspec.DecodeError:
        return False


# Prefill answers


class Handoff(Struct, frozen=True):
    """Hand-off in a prefill's answer, and the rest of the answer."""

    told: bytes = b""
    """JSON object, unchanged except for removed plug-in members; empty if the two engines use another channel."""
    answer: bytes = b""
    """Rest of the prefill's answer, which `assembling.py` uses."""
    counts: bytes = b""
    """Expert counts as unchecked JSON; empty: none. They derive from the prompt and must not appear in any event, log
    or record."""


class _Prefilled(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw()


_PREFILLED = msgspec.json.Decoder(_Prefilled)
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def handoff_in(
    answer: bytes, connector: Connector, own: SideChannel, on_stray: Callable[[str], None] | None = None
) -> Handoff:
    """Return the hand-off in a successful prefill's answer. `own`: addresses to which the prefill worker may direct its
    decode worker; `on_stray` is called with any other host. Raises LegFailure if the answer is unusable, which is the
    engine's fault, never the request's."""
    _check_soundness(answer)
    if not connector.is_sequential:
        return Handoff()
    try:
        told = memoryview(_PREFILLED.decode(answer).kv_transfer_params)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LegFailure(LegResult.FAILED, "the prefill's answer is no JSON object") from error
    if len(told) > HANDOFF_BYTES_MAX:
        raise LegFailure(LegResult.FAILED, f"the prefill hands over more than {HANDOFF_BYTES_MAX >> 10} KiB")
    if bytes(told[:1]) != b"{":
        raise LegFailure(LegResult.FAILED, "the prefill hands nothing over: its answer has no kv_transfer_params")
    handed = bytes(told)
    rest = answer.replace(handed, b"null", 1)
    if OUR_PREFIX.encode() not in handed and b"\\u" not in handed:
        handoff = Handoff(handed, rest)
    else:
        handoff = Handoff(*_apart(handed, rest))
    stray = _stray(handoff.told, own)
    if stray is not None:
        if stray.host and on_stray is not None:
            on_stray(stray.host)
        raise LegFailure(LegResult.FAILED, f"the prefill leads its decode elsewhere: {stray.why}")
    return handoff


def _stray(handed: bytes, own: SideChannel) -> Stray | None:
    try:
        return stray_in(handed, own)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LegFailure(LegResult.FAILED, "the prefill's kv_transfer_params are no JSON object") from error


def _apart(handed: bytes, rest: bytes) -> tuple[bytes, bytes, bytes]:
    """Split off the plug-in members, which decode engines must not get; all others stay unchanged."""
    try:
        members = _MEMBERS.decode(handed)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LegFailure(LegResult.FAILED, "the prefill's kv_transfer_params are no JSON object") from error
    kept = [
        b"%b:%b" % (msgspec.json.encode(name), bytes(raw))
        for name, raw in members.items()
        if not name.startswith(OUR_PREFIX)
    ]
    if len(kept) == len(members):
        return handed, rest, b""
    return b"{%b}" % b",".join(kept), rest, bytes(members.get(COUNTS_KEY, msgspec.Raw()))


def _check_soundness(answer: bytes) -> None:
    """Raise LegFailure for an error inside an answer with a success status. SGLang's prefill may answer with a
    stream."""
    for payload in _payloads(answer):
        document = decode(payload)
        fault = fault_of(document, payload, is_error=False)
        if fault is not None:
            result = LegResult.BUSY if fault.code in (429, 503) else LegResult.FAILED
            raise LegFailure(result, f"the prefill: {fault.detail}")
        if not isinstance(document, dict):
            raise LegFailure(LegResult.FAILED, "the prefill's answer is no JSON object")


def _payloads(answer: bytes) -> list[bytes]:
    if not answer.lstrip().startswith((b"data:", b"event:", b":")):
        return [answer]
    told = [fields(event)[1] for event in events(answer)]
    return [payload for payload in told if payload is not None and not payload.startswith(b"[DONE]")]
