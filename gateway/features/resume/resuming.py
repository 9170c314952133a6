"""Requests for the rest of a broken answer, and the answers that cannot be resumed. Pure.

The rest of any call is asked for as a chat whose last message is to be continued, or as a completion with a longer
prompt, since all engines support these. Unaffected members stay as the client wrote them, byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway.core.placement.prefix_chain import extended_chain
from gateway.core.vocabulary import HintKind, Hints, RequestProfile
from gateway.request import engine_api
from gateway.request.answer_events import Said
from gateway.request.bodies import Body, BodyFault, is_set, read_body
from gateway.request.kept_answer import NoRemainder
from gateway.request.legs import OutboundRequest

Members = dict[str, msgspec.Raw]

_TRUE, _FALSE = msgspec.Raw(b"true"), msgspec.Raw(b"false")
_COMPLETION_TOKENS_DEFAULT = 16
"""Default of vLLM for a missing limit; llama.cpp has none."""
_QUOTE, _BRACKET = b'"', b"["

_SEVERAL = "several answers, of which the rest would be one"
_FORMED = "a form that the rest alone has not"
_COUNTED = "what was said of the tokens before would be missing"
_NOT_A_TEXT = "the prompt is not one text"
REFUSED: Mapping[str, str] = {
    "best_of": _SEVERAL,
    "use_beam_search": _SEVERAL,
    "logprobs": _COUNTED,
    "top_logprobs": _COUNTED,
    "prompt_logprobs": _COUNTED,
    "echo": _NOT_A_TEXT,
    "suffix": _NOT_A_TEXT,
    "prompt_embeds": _NOT_A_TEXT,
    "truncate_prompt_tokens": "what is left of the prompt depends on how much may be answered",
    "structured_outputs": _FORMED,
    "guided_json": _FORMED,
    "guided_regex": _FORMED,
    "guided_choice": _FORMED,
    "guided_grammar": _FORMED,
    "json_schema": _FORMED,
    "grammar": _FORMED,
    "regex": _FORMED,
    "ebnf": _FORMED,
    "structural_tag": _FORMED,
    "functions": "tools: what was called before is not known to the rest",
    "modalities": "more than text",
    "audio": "more than text",
}
"""Members of a body that prevent resuming, and why."""
_NONE = (b"[]", b"{}", b'""')
_HARMLESS = {"best_of": (b"1",), "top_logprobs": (b"0",)}
_ONE = (b"null", b"1")
_CHOICES_LEFT_OPEN = (b"null", b'"auto"', b'"none"')
_EMPTY = (b"null", b"[]", b"{}", b"0", b"false")


class _Format(msgspec.Struct):
    type: str = "text"


class _Text(msgspec.Struct):
    format: _Format | None = None


class _Part(msgspec.Struct):
    type: str = ""
    text: str | None = None


class _Turn(msgspec.Struct):
    role: str = ""
    content: str | list[_Part] | None = None
    type: str = "message"


class _RawTurn(msgspec.Struct):
    role: str = ""
    content: msgspec.Raw = msgspec.Raw()


class ResumeRequest(Struct, frozen=True):
    """Request for the missing rest of a broken answer."""

    outbound: OutboundRequest
    said: Said
    wants_usage: bool
    """True if the client gets token counts, in an event of their own or in the last one, depending on the API."""
    is_full: bool = False
    """True if the token limit was reached and only the finish is missing. Engines generate at least one token; that one
    is dropped."""


def rest_of(request: OutboundRequest, said: Said, *, prefix_blocks_max: int) -> ResumeRequest:
    """Return the rest of `request`, which is as the client sent it. Raises NoRemainder."""
    try:
        members: Members = msgspec.json.decode(request.body, type=dict[str, msgspec.Raw])
        body = read_body(request.path, request.body, passes_priority=True)
        _check(members)
        wants_usage = True
        match request.path:
            case engine_api.CHAT_PATH:
                path, rest = engine_api.COMPLETIONS_PATH, _rest_of_chat_in_ids(members, said)
                if rest is None:
                    path, rest = request.path, _rest_of_chat(members, said)
                wants_usage = _wants_usage(members)
            case engine_api.COMPLETIONS_PATH:
                path, rest = request.path, _rest_of_completion(members, said)
                wants_usage = _wants_usage(members)
            case engine_api.MESSAGES_PATH:
                path, rest = engine_api.CHAT_PATH, _rest_of_messages(members, said)
            case engine_api.RESPONSES_PATH:
                path, rest = engine_api.CHAT_PATH, _rest_of_response(members, said)
            case _:
                raise NoRemainder("no call whose answer goes on")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BodyFault) as error:
        raise NoRemainder("its body has a shape that is not known here") from error
    profile = _profile_of_rest(request.profile, body, said, prefix_blocks_max=prefix_blocks_max)
    outbound = replace(request, profile=profile, path=path, body=msgspec.json.encode(rest), stores_response=False)
    most = request.profile.output_tokens_max
    return ResumeRequest(outbound, said, wants_usage, is_full=most is not None and said.tokens >= most)


def _hints_of_rest(hints: Hints, said: Said) -> Hints:
    if not hints.output_tokens:
        return hints
    return hints.with_changes({HintKind.OUTPUT_TOKENS: max(0, hints.output_tokens - said.tokens)})


def _profile_of_rest(profile: RequestProfile, body: Body, said: Said, *, prefix_blocks_max: int) -> RequestProfile:
    """Return the profile of the rest. Its chain of prefix hashes equals that of the conversation's next turn up to the
    end of the answer so far, if the client formats that turn as bodies are formatted here."""
    parts = body.prompt_parts()
    tail = _escaped(said.text)
    if parts and bytes(parts[-1][:1]) == _BRACKET:
        tail = b',{"role":"assistant","content":"%b"}]' % tail
    prefix = extended_chain(
        profile.prefix, parts, tail, block_bytes=profile.prefix_block_bytes, blocks_max=prefix_blocks_max
    )
    most = profile.output_tokens_max
    return replace(
        profile,
        prefix=prefix,
        prompt_bytes=profile.prompt_bytes + len(tail),
        output_tokens_max=None if most is None else _left(most, said),
        appends=True,
        hints=_hints_of_rest(profile.hints, said),
    )


# Checks for all calls


def _check(members: Members) -> None:
    for name, why in REFUSED.items():
        if name in members and is_set(members[name]) and bytes(members[name]) not in _HARMLESS.get(name, _NONE):
            raise NoRemainder(f"{name}: {why}")
    if bytes(members.get("n", _ONE[1])) not in _ONE:
        raise NoRemainder(f"n: {_SEVERAL}")
    if bytes(members.get("tool_choice", _CHOICES_LEFT_OPEN[0])) not in _CHOICES_LEFT_OPEN and "tools" in members:
        raise NoRemainder("tool_choice: a call that has to be made")
    form = members.get("response_format")
    if form is not None and is_set(form) and msgspec.json.decode(form, type=_Format).type != "text":
        raise NoRemainder(f"response_format: {_FORMED}")


def _wants_usage(members: Members) -> bool:
    options = members.get("stream_options")
    if options is None or not is_set(options):
        return False
    return is_set(msgspec.json.decode(options, type=dict[str, msgspec.Raw]).get("include_usage", _FALSE))


def _left(most: int, said: Said) -> int:
    return max(1, most - said.tokens)


def _limit(members: Members, said: Said, *names: str) -> None:
    """Lower the token limits by the tokens already generated. Invalid limits were refused by the first engine."""
    for name in names:
        raw = members.get(name)
        if raw is not None and is_set(raw):
            members[name] = _number(_left(msgspec.json.decode(raw, type=int, strict=False), said))
    least = members.get("min_tokens")
    if least is not None and is_set(least):
        members["min_tokens"] = _number(max(0, msgspec.json.decode(least, type=int, strict=False) - said.tokens))


def _number(number: int) -> msgspec.Raw:
    return msgspec.Raw(b"%d" % number)


def _escaped(text: str) -> bytes:
    """Text as it stands between the quotes of a JSON string."""
    return msgspec.json.encode(text)[1:-1]


# Chat


def _rest_of_chat(members: Members, said: Said) -> Members:
    raw = bytes(members["messages"]).strip()
    turns = msgspec.json.decode(raw, type=list[msgspec.Raw])
    if not turns:
        raise NoRemainder("messages: there are none")
    last = msgspec.json.decode(turns[-1], type=_RawTurn)
    if is_set(members.get("continue_final_message", _FALSE)):
        messages = _continued(turns, said)
    elif last.role == "assistant":
        raise NoRemainder("messages: the last one is an assistant's already")
    elif bytes(members.get("add_generation_prompt", _TRUE)) not in (b"true", b"null"):
        raise NoRemainder("add_generation_prompt: false, so that no turn was begun")
    else:
        messages = b'%b,{"role":"assistant","content":"%b"}]' % (raw[:-1], _escaped(said.text))
    rest = members | {"messages": msgspec.Raw(messages)}
    _limit(rest, said, "max_tokens", "max_completion_tokens")
    return rest | _CONTINUES


_OF_CHAT_ALONE = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "max_completion_tokens",
        "messages",
        "parallel_tool_calls",
        "tool_choice",
        "tools",
    }
)


def _rest_of_chat_in_ids(members: Members, said: Said) -> Members | None:
    """Return the rest as a completion in token ids, which is exact, if an engine reported the ids of the whole prompt
    and answer and the request has a token limit and no tools: a completion has another default limit and no tool
    parser. None: continue as text."""
    if not said.token_ids or not said.prompt_token_ids or bytes(members.get("tools", b"null")) not in _EMPTY:
        return None
    limit = members.get("max_completion_tokens", members.get("max_tokens"))
    if limit is None or not is_set(limit):
        return None
    rest: Members = {name: raw for name, raw in members.items() if name not in _OF_CHAT_ALONE}
    rest["prompt"] = msgspec.Raw(msgspec.json.encode(said.prompt_token_ids + said.token_ids))
    rest["max_tokens"] = limit
    _limit(rest, said, "max_tokens")
    return rest


_CONTINUES: Members = {"add_generation_prompt": _FALSE, "continue_final_message": _TRUE}


def _continued(turns: list[msgspec.Raw], said: Said) -> bytes:
    """Append the answer so far to the last message, which the client already had continued."""
    last: Members = msgspec.json.decode(turns[-1], type=dict[str, msgspec.Raw])
    content = bytes(last.get("content", b"null"))
    if not content.startswith(_QUOTE):
        raise NoRemainder("messages: what is continued is not one text")
    last["content"] = msgspec.Raw(content[:-1] + _escaped(said.text) + _QUOTE)
    return msgspec.json.encode([*turns[:-1], last])


# Completions


def _rest_of_completion(members: Members, said: Said) -> Members:
    if "max_tokens" not in members and said.tokens < _COMPLETION_TOKENS_DEFAULT:
        raise NoRemainder("max_tokens: engines differ in what they take for none")
    rest = members | {"prompt": msgspec.Raw(_grown(bytes(members["prompt"]).strip(), said))}
    _limit(rest, said, "max_tokens")
    return rest


def _grown(prompt: bytes, said: Said) -> bytes:
    if said.token_ids and said.prompt_token_ids:
        return msgspec.json.encode(said.prompt_token_ids + said.token_ids)
    if prompt.startswith(_QUOTE):
        return prompt[:-1] + _escaped(said.text) + _QUOTE
    items = msgspec.json.decode(prompt, type=list[msgspec.Raw])
    if len(items) == 1 and bytes(items[0])[:1] in (_QUOTE, _BRACKET):
        return _grown(bytes(items[0]), said)
    if not items or bytes(items[0])[:1] in (_QUOTE, _BRACKET):
        raise NoRemainder(f"prompt: {_SEVERAL}")
    if not said.token_ids:
        raise NoRemainder("prompt: it is token ids, and the engine told none of its answer")
    return prompt[:-1] + b"," + msgspec.json.encode(said.token_ids)[1:]


# Messages, as a chat

_NOT_OF_A_CHAT = frozenset({"system", "messages", "metadata", "tools", "tool_choice", "thinking", "stop_sequences"})
_USAGE = msgspec.Raw(b'{"include_usage":true}')
_ATTRIBUTION = "x-anthropic-billing-header"


def _rest_of_messages(members: Members, said: Said) -> Members:
    if bytes(members.get("tools", b"null")) not in _EMPTY:
        raise NoRemainder("tools: more than text")
    thinking = members.get("thinking")
    if thinking is not None and is_set(thinking) and msgspec.json.decode(thinking, type=_Format).type != "disabled":
        raise NoRemainder("thinking: more than text")
    turns = msgspec.json.decode(members["messages"], type=list[_Turn])
    if not turns or turns[-1].role == "assistant":
        raise NoRemainder("messages: the last one is an assistant's already")
    chat = [_chat_turn(each.role, each.content, "text") for each in turns]
    system = members.get("system")
    if system is not None and is_set(system):
        told = msgspec.json.decode(system, type=str | list[_Part])
        text = told if isinstance(told, str) else "".join(_text_of(part, "text") for part in told if _counts(part))
        chat.insert(0, {"role": "system", "content": text})
    return _chat(members, chat, said, dropped=_NOT_OF_A_CHAT, stop=members.get("stop_sequences"))


def _counts(part: _Part) -> bool:
    return not (part.text or "").startswith(_ATTRIBUTION)


def _chat_turn(role: str, content: str | list[_Part] | None, *kinds: str) -> dict[str, object]:
    if content is None:
        raise NoRemainder("a turn without a text")
    if isinstance(content, str):
        return {"role": role, "content": content}
    texts = [_text_of(part, *kinds) for part in content]
    if len(texts) == 1:
        return {"role": role, "content": texts[0]}
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}


def _text_of(part: _Part, *kinds: str) -> str:
    if part.type not in kinds or part.text is None:
        raise NoRemainder("a part of a turn that is no text")
    return part.text


def _chat(
    members: Members,
    chat: list[dict[str, object]],
    said: Said,
    *,
    dropped: frozenset[str],
    stop: msgspec.Raw | None = None,
) -> Members:
    rest: Members = {name: raw for name, raw in members.items() if name not in dropped}
    chat.append({"role": "assistant", "content": said.text})
    rest["messages"] = msgspec.Raw(msgspec.json.encode(chat))
    if stop is not None and is_set(stop):
        rest["stop"] = stop
    _limit(rest, said, "max_tokens")
    return rest | _CONTINUES | {"stream": _TRUE, "stream_options": _USAGE}


# Responses, as a chat

_OF_RESPONSES = frozenset(
    {
        "background",
        "conversation",
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "parallel_tool_calls",
        "previous_response_id",
        "prompt",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "truncation",
    }
)


def _rest_of_response(members: Members, said: Said) -> Members:
    if bytes(members.get("store", b"null")) != b"false":
        raise NoRemainder("store: a stored response stays with the engine that made it")
    for name in ("previous_response_id", "prompt", "reasoning", "tools", "include"):
        if bytes(members.get(name, b"null")) not in _EMPTY:
            raise NoRemainder(f"{name}: more than text")
    if bytes(members.get("truncation", b"null")) not in (b"null", b'"disabled"'):
        raise NoRemainder(f"truncation: {REFUSED['truncate_prompt_tokens']}")
    text = members.get("text")
    form = None if text is None or not is_set(text) else msgspec.json.decode(text, type=_Text).format
    if form is not None and form.type != "text":
        raise NoRemainder(f"text: {_FORMED}")
    told = msgspec.json.decode(members["input"], type=str | list[_Turn])
    turns = [_Turn("user", told)] if isinstance(told, str) else told
    if not turns or turns[-1].role == "assistant" or any(turn.type != "message" for turn in turns):
        raise NoRemainder("input: an item that is no message, or an assistant's at its end")
    chat = [_chat_turn(each.role, each.content, "input_text", "output_text", "text") for each in turns]
    instructions = members.get("instructions")
    if instructions is not None and is_set(instructions):
        chat.insert(0, {"role": "system", "content": msgspec.json.decode(instructions, type=str)})
    limit = members.get("max_output_tokens")
    limited = members if limit is None else members | {"max_tokens": limit}
    return _chat(limited, chat, said, dropped=_OF_RESPONSES)
