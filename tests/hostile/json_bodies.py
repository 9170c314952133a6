"""Bodies that two parsers may read differently, and the expected status of each: one case per line.

`status` is the client's status where an engine parses as vLLM and SGLang do: `json.loads`, where the last of two equal
keys counts, then pydantic. The tests' engine answers 422 to a body that it cannot parse. Of each request that reaches
it, it must have read the values that the gateway decided by, and no field that only gateways may set.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
EMBEDDINGS = "/v1/embeddings"


@dataclass(frozen=True, slots=True)
class JsonCase:
    name: str
    body: bytes
    status: int
    path: str = CHAT


def chat(more: str = "", *, model: str = '"llama"') -> bytes:
    """A valid request with further members."""
    return f'{{"model": {model}, "messages": [{{"role": "user", "content": "hi"}}]{more}}}'.encode()


def said(content: bytes) -> bytes:
    """A valid request with this in place of the user's message, quotes included."""
    return b'{"model": "llama", "messages": [{"role": "user", "content": ' + content + b"}]}"


def nested(depth: int) -> bytes:
    return said(b"[" * depth + b"]" * depth)


_GOOD = chat()
_TEXT = _GOOD.decode()
_LONG_DIGITS = "9" * 5000
_MANY_KEYS = "".join(f', "k{number}": {number}' for number in range(20_000))

# fmt: off
JSON_CASES = (
    # Duplicate keys: the last one counts, for gateway and engine
    JsonCase("two models, the last is served", chat(', "model": "llama"', model='"nobody"'), 200),
    JsonCase("two models, the first is served", chat(', "model": "nobody"'), 404),
    JsonCase("three models", chat(', "model": "nobody", "model": "llama"'), 200),
    JsonCase("a model and none", chat(', "model": null'), 400),
    JsonCase("a model in disguise, the last is served", chat(', "m\\u006fdel": "llama"', model='"nobody"'), 200),
    JsonCase("a model in disguise, the first is served", chat(', "\\u006dodel": "nobody"'), 404),
    JsonCase("a model in capitals", chat(', "MODEL": "nobody", "Model": "nobody"'), 200),
    JsonCase("a model with a space", chat(', "model ": "nobody"'), 200),
    JsonCase("a model with a zero", chat(', "model\\u0000": "nobody"'), 200),
    JsonCase("streams twice, at last not", chat(', "stream": true, "stream": false'), 200),
    JsonCase("streams twice, at last it does", chat(', "stream": false, "stream": true'), 200),
    JsonCase("two limits", chat(', "max_tokens": 1, "max_tokens": 99'), 200),
    JsonCase("messages twice", chat(', "messages": []'), 200),
    JsonCase("a reserved field, then none", chat(', "kv_transfer_params": {"a": 1}, "kv_transfer_params": null'), 200),
    JsonCase("no reserved field, then one", chat(', "kv_transfer_params": null, "kv_transfer_params": {"a": 1}'), 400),
    JsonCase("two followed responses", b'{"model": "llama", "input": "x", "previous_response_id": "a", "previous_response_id": "b"}', 404, RESPONSES),
    JsonCase("a followed response, then none", b'{"model": "llama", "input": "x", "previous_response_id": "a", "previous_response_id": null}', 200, RESPONSES),
    JsonCase("a followed response by the name of null", b'{"model": "llama", "input": "x", "previous_response_id": "null"}', 404, RESPONSES),
    JsonCase("a followed response without a name", b'{"model": "llama", "input": "x", "previous_response_id": ""}', 404, RESPONSES),
    JsonCase("a followed response in another call", chat(', "previous_response_id": "a"'), 200),
    JsonCase("a followed response in disguise", b'{"model": "llama", "input": "x", "previous_response\\u005fid": "a"}', 404, RESPONSES),
    JsonCase("a followed response that is a number", b'{"model": "llama", "input": "x", "previous_response_id": 5}', 400, RESPONSES),
    # Reserved fields: an engine may read them in any spelling
    JsonCase("a reserved field", chat(', "kv_transfer_params": {"remote_host": "evil"}'), 400),
    JsonCase("a reserved field in disguise", chat(', "kv_transfer_param\\u0073": {"a": 1}'), 400),
    JsonCase("a reserved field in other disguise", chat(', "\\u0072\\u0069\\u0064": "x"'), 400),
    JsonCase("a reserved field that is empty", chat(', "kv_transfer_params": {}'), 400),
    JsonCase("a reserved field that is zero", chat(', "data_parallel_rank": 0'), 400),
    JsonCase("a reserved field that is an empty text", chat(', "rid": ""'), 400),
    JsonCase("a reserved field that is null", chat(', "rid": null'), 200),
    JsonCase("a reserved field that is false", chat(', "return_routed_experts": false'), 200),
    JsonCase("a reserved field with blanks around null", chat(', "rid" : \n\t null '), 200),
    JsonCase("a reserved field in extra arguments", chat(', "vllm_xargs": {"kv_transfer_params": "x"}'), 400),
    JsonCase("a reserved field in extra arguments, in disguise", chat(', "vllm_xargs": {"\\u0072id": "x"}'), 400),
    JsonCase("extra arguments twice", chat(', "vllm_xargs": {}, "vllm_xargs": {"rid": "x"}'), 400),
    JsonCase("extra arguments that are a list", chat(', "vllm_xargs": [{"rid": "x"}]'), 422),
    JsonCase("a LoRA from anywhere", chat(', "lora_path": "/etc/passwd"'), 400),
    JsonCase("code to run", chat(', "custom_logit_processor": "gASV"'), 400),
    JsonCase("a priority", chat(', "priority": -1'), 400),
    JsonCase("a request id", chat(', "request_id": "someone-elses"'), 400),
    # Numbers
    JsonCase("a limit of 2**64", chat(', "max_tokens": 18446744073709551616'), 200),
    JsonCase("a limit of 2**63", chat(', "max_tokens": 9223372036854775808'), 200),
    JsonCase("a limit of 5,000 digits", chat(f', "max_tokens": {_LONG_DIGITS}'), 400),
    JsonCase("a seed of 5,000 digits", chat(f', "seed": {_LONG_DIGITS}'), 422),
    JsonCase("a negative limit", chat(', "max_tokens": -1'), 200),
    JsonCase("a limit with a fraction", chat(', "max_tokens": 1.5'), 400),
    JsonCase("a limit with a fraction of nothing", chat(', "max_tokens": 16.0'), 200),
    JsonCase("a limit with an exponent", chat(', "max_tokens": 1e2'), 200),
    JsonCase("a limit beyond all numbers", chat(', "max_tokens": 1e999'), 400),
    JsonCase("a limit in quotes", chat(', "max_tokens": "16"'), 200),
    JsonCase("a limit in quotes, with an exponent", chat(', "max_tokens": "1e2"'), 422),
    JsonCase("a limit in quotes, with a fraction", chat(', "max_tokens": "16.0"'), 200),
    JsonCase("a limit in quotes that is null", chat(', "max_tokens": "null"'), 422),
    JsonCase("a limit that is an empty text", chat(', "max_tokens": ""'), 400),
    JsonCase("a limit that is true", chat(', "max_tokens": true'), 400),
    JsonCase("a limit of minus nothing", chat(', "max_tokens": -0'), 200),
    JsonCase("NaN", chat(', "temperature": NaN'), 400),
    JsonCase("Infinity", chat(', "temperature": -Infinity'), 400),
    JsonCase("a temperature beyond all numbers", chat(', "temperature": 1e999'), 200),
    JsonCase("a number with a plus", chat(', "temperature": +1'), 400),
    JsonCase("a number with zeros before it", chat(', "seed": 007'), 400),
    JsonCase("a number in hex", chat(', "seed": 0x10'), 400),
    JsonCase("a number without its digits", chat(', "seed": 1.'), 400),
    JsonCase("a number without its beginning", chat(', "seed": .5'), 400),
    JsonCase("a number with an underscore", chat(', "seed": 1_0'), 400),
    # Booleans
    JsonCase("streams in quotes", chat(', "stream": "true"'), 200),
    JsonCase("streams as one", chat(', "stream": 1'), 200),
    JsonCase("streams as zero", chat(', "stream": 0'), 200),
    JsonCase("streams as one in quotes", chat(', "stream": "1"'), 200),
    JsonCase("streams in quotes and capitals", chat(', "stream": "TRUE"'), 200),
    JsonCase("streams as null in quotes", chat(', "stream": "null"'), 422),
    JsonCase("streams as a fraction", chat(', "stream": 1.0'), 400),
    JsonCase("streams as yes", chat(', "stream": "yes"'), 400),
    JsonCase("streams as two", chat(', "stream": 2'), 400),
    JsonCase("streams in capitals", chat(', "stream": True'), 400),
    JsonCase("streams as a list", chat(', "stream": [true]'), 400),
    # Strings
    JsonCase("half a character, escaped", said(b'"\\ud83d"'), 400),
    JsonCase("two halves, the wrong way round", said(b'"\\ude00\\ud83d"'), 400),
    JsonCase("a whole character, escaped", said(b'"\\ud83d\\ude00"'), 200),
    JsonCase("half a character in the model", chat(model='"llama\\ud83d"'), 400),
    JsonCase("half a character in a name of a session", chat(', "user": "\\ud83d"'), 400),
    JsonCase("what is not UTF-8", said(b'"\xff\xfe"'), 422),
    JsonCase("half a character in UTF-8", said(b'"\xed\xa0\xbd"'), 200),
    JsonCase("UTF-8 that is too long", said(b'"\xc0\xaf"'), 422),
    JsonCase("what is not UTF-8 in the model", b'{"model": "\xff", "messages": []}', 400),
    JsonCase("what is not UTF-8 in a key", b'{"model": "llama", "messages": [], "\xff": 1}', 422),
    JsonCase("a zero, escaped", said(b'"a\\u0000b"'), 200),
    JsonCase("a zero", said(b'"a\0b"'), 400),
    JsonCase("a line break", said(b'"a\nb"'), 400),
    JsonCase("an escape that is none", said(b'"\\x41"'), 400),
    JsonCase("an escape that stops", said(b'"\\u00"'), 400),
    JsonCase("text in single quotes", b"{'model': 'llama', 'messages': []}", 400),
    JsonCase("keys without quotes", b'{model: "llama", messages: []}', 400),
    JsonCase("a model in other letters", chat(model='"llаma"'), 404),
    JsonCase("a model that turns round", chat(model='"\\u202eamall"'), 400),
    JsonCase("a model with a line break", chat(model='"llama\\nlevel=error"'), 400),
    JsonCase("an empty model", chat(model='""'), 400),
    JsonCase("a model of 100,000 letters", chat(model=f'"{"a" * 100_000}"'), 400),
    JsonCase("a model that is a number", chat(model="5"), 400),
    JsonCase("a model that is a list", chat(model='["llama"]'), 400),
    # Documents
    JsonCase("nothing", b"", 400),
    JsonCase("null", b"null", 400),
    JsonCase("a list", b"[" + _GOOD + b"]", 400),
    JsonCase("a text", json.dumps(_TEXT).encode(), 400),
    JsonCase("blanks", b" \n\t", 400),
    JsonCase("blanks around it", b" \r\n\t" + _GOOD + b" \r\n\t", 200),
    JsonCase("another blank around it", b"\x0c" + _GOOD, 400),
    JsonCase("a blank of another script", "\N{NO-BREAK SPACE}".encode() + _GOOD, 400),
    JsonCase("a byte order mark", b"\xef\xbb\xbf" + _GOOD, 400),
    JsonCase("UTF-16", _TEXT.encode("utf-16"), 400),
    JsonCase("UTF-16 without a mark", _TEXT.encode("utf-16-le"), 400),
    JsonCase("UTF-16, the other way", _TEXT.encode("utf-16-be"), 400),
    JsonCase("UTF-32", _TEXT.encode("utf-32"), 400),
    JsonCase("UTF-7", _TEXT.encode("utf-7").replace(b"{", b"+AHs-"), 400),
    JsonCase("something behind it", _GOOD + b"x", 400),
    JsonCase("a zero behind it", _GOOD + b"\0", 400),
    JsonCase("two of them", _GOOD + _GOOD, 400),
    JsonCase("two lines of them", _GOOD + b"\n" + chat(model='"nobody"'), 400),
    JsonCase("a comment", chat(' /* , "model": "nobody" */'), 400),
    JsonCase("a comment to the end of the line", b"// x\n" + _GOOD, 400),
    JsonCase("a comma too many", chat(","), 400),
    JsonCase("a comma too few", chat(' "stream": true'), 400),
    JsonCase("it stops", _GOOD[:-1], 400),
    JsonCase("it stops within a text", said(b'"abc'), 400),
    JsonCase("a bracket of the other kind", _GOOD[:-1] + b"]", 400),
    JsonCase("a form", b"model=llama&messages=hi", 400),
    JsonCase("YAML", b"model: llama\nmessages: []\n", 400),
    JsonCase("MessagePack", b"\x82\xa5model\xa5llama\xa8messages\x90", 400),
    # Sizes
    JsonCase("100 levels", nested(100), 200),
    JsonCase("100,000 levels", nested(100_000), 400),
    JsonCase("100,000 levels of objects", said(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), 400),
    JsonCase("100,000 levels that never end", said(b"[" * 100_000), 400),
    JsonCase("100,000 levels in extra arguments", chat(f', "vllm_xargs": {{"a": {"[" * 100_000}{"]" * 100_000}}}'), 400),
    JsonCase("20,000 keys", chat(_MANY_KEYS), 200),
    JsonCase("20,000 extra arguments", chat(f', "vllm_xargs": {{{_MANY_KEYS[2:]}}}'), 400),
    # Other calls
    JsonCase("a prompt in numbers", b'{"model": "llama", "prompt": [1, 2, 3]}', 200, COMPLETIONS),
    JsonCase("prompts of both kinds", b'{"model": "llama", "prompt": [1, "a", [2], null]}', 200, COMPLETIONS),
    JsonCase("a background answer", b'{"model": "llama", "input": "x", "background": true}', 400, RESPONSES),
    JsonCase("a background answer in quotes", b'{"model": "llama", "input": "x", "background": "true"}', 400, RESPONSES),
    JsonCase("a background answer, at last", b'{"model": "llama", "input": "x", "background": false, "background": 1}', 400, RESPONSES),
    JsonCase("a conversation", b'{"model": "llama", "input": "x", "conversation": "c"}', 400, RESPONSES),
    JsonCase("metadata that is a list", b'{"model": "llama", "messages": [], "metadata": []}', 400, MESSAGES),
    JsonCase("a billing header without an end", b'{"model": "llama", "messages": [], "system": "x-anthropic-billing-header', 400, MESSAGES),
    JsonCase("a system prompt of numbers", b'{"model": "llama", "messages": [], "system": [1, "x-anthropic-billing-header", null]}', 200, MESSAGES),
    JsonCase("a salt that is a number", chat(', "cache_salt": 5'), 400),
    JsonCase("an input that is no text", b'{"model": "llama", "input": {"a": NaN}}', 400, EMBEDDINGS),
)
# fmt: on
