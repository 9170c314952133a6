"""Which calls two engines may share, one reading the prompt and the other one writing the answer, and what the first
one's answer says to the second. Pure; what it hands over is bytes that it does not understand.

The reasons are the engines' own. One that is told of a hand-off for a prompt other than the one that was read stops
with all that runs in it, so whatever might make the two prompts differ, or make two prompts of one, is not shared.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import attrgetter

import msgspec

from gateway.core.value import value
from gateway.core.vocabulary import Connector, LegResult
from gateway.request.answers import fault_of
from gateway.request.bodies import Body, ChatBody, CompletionBody, MessagesBody, ResponsesBody, is_set
from gateway.request.engine_errors import decode
from gateway.request.legs import LegFailure
from gateway.request.side_channels import SideChannel, Stray, stray_in
from gateway.request.sse import events, fields

OUR_PREFIX = "nightside"
"""So begin the names under which engines that run something of ours say something inside a hand-off. No decode engine
is told of it."""
COUNTS_KEY = "nightside_expert_counts"
HANDOFF_BYTES_MAX = 1 << 19
"""Of what a prefill says to its decode: a million tokens in blocks of 16 are some 440 KiB of block numbers."""

_NIXL = frozenset({Connector.NIXL})
_ANY = frozenset(Connector)
TAKERS: dict[type[Body], frozenset[Connector]] = {
    ChatBody: _ANY,
    CompletionBody: _ANY,
    MessagesBody: _NIXL,
    ResponsesBody: _NIXL,
}
"""Over which connectors a call can be handed. vLLM has the fields of a hand-off in all four, but in the newer two no
`min_tokens`, without which its other connectors lose a prefill whose one token ends the answer; SGLang's are known from
OpenAI's older two."""

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
    """Why one engine has to do all of it, in words for whoever asks; empty where two can share it."""
    if type(body) not in TAKERS:
        return "engines take no hand-off of a KV cache for this call"
    if (asked := _asked_of(body)) != _NOTHING_ASKED:  # hardly ever: one look at all of them, and only then at each
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
        return "prompt_logprobs: whoever writes the answer has not read the prompt"
    if is_set(truncated):
        return "truncate_prompt_tokens: what is left of the prompt depends on how much may be answered"
    return ""


def takers_of(body: Body) -> frozenset[Connector]:
    """The connectors over which this call can be handed; none for what has to stay whole."""
    return frozenset() if why_whole(body) else TAKERS[type(body)]


def _why_whole_completion(body: CompletionBody) -> str:
    if is_set(body.prompt_embeds):
        return "prompt_embeds: a prompt of numbers is not handed over"
    if is_set(body.echo):
        return "echo: whoever writes the answer has not read the prompt"
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


# What a prefill answers


@value
class Handoff:
    """What a prefill's answer says to its decode."""

    told: bytes = b""
    """A JSON object, as it came; empty where the two meet by other means."""
    answer: bytes = b""
    """What the prefill answered besides: `assembling.py` goes by it."""
    counts: bytes = b""
    """What it says of its experts, as JSON that nobody has looked at; empty: nothing. It derives from the prompt, and
    goes into no event, log or record."""


class _Prefilled(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw()


_PREFILLED = msgspec.json.Decoder(_Prefilled)
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def handoff_in(
    answer: bytes, connector: Connector, own: SideChannel, on_stray: Callable[[str], None] | None = None
) -> Handoff:
    """What a prefill that answered with success hands on. `own`: where it may lead its decode; `on_stray` is told of a
    host elsewhere. Raises LegFailure where it did nothing of use: the engine is to blame, never the request."""
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
    """Engines are told nothing of what is ours; all else of it stays as it is."""
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
    """Engines report failures in answers that began well, and SGLang's prefill may answer with a stream."""
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
