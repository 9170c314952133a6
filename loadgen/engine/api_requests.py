"""Parsing of requests to the emulated engine, with errors in vLLM's wording.

It checks and never changes a request; a refusal has the status and body that a real engine gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loadgen.engine.fields import (
    ApiError,
    Fields,
    bad_value,
    cache_salt_of,
    invalid,
    json_body,
    served_model,
    text_of_content,
)
from loadgen.engine.tokens import TOKEN_ID_MAX, PromptMessage, chat_prompt, text_of, token_count
from loadgen.engine.tools import Tool, chosen_tool
from loadgen.engine.vocabulary import Endpoint

_COMPLETION_TOKENS_DEFAULT = 16
CHOICES_MAX = 256
"""Maximum of prompts times samples of each."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One checked request for tokens."""

    endpoint: Endpoint
    model: str
    prompt: bytes
    output_tokens_max: int | None
    """Maximum of output tokens in the request; None: limited by the context only."""
    ignore_eos: bool
    stream: bool
    cache_salt: str
    tool: Tool | None = None
    """Tool to call instead of answering with text."""
    output_tokens_min: int = 0
    include_usage: bool = True
    """True if a stream ends with a usage event; the client decides where its API lets it."""
    continuous_usage: bool = False
    return_token_ids: bool = False
    schema: dict[str, Any] | None = None
    """JSON schema that the answer must follow."""
    further_prompts: tuple[bytes, ...] = ()
    """Prompts of a completion request after the first."""
    samples: int = 1
    """Answers to each prompt."""
    index: int = 0
    """Number of this choice among all choices of the request."""
    said_tokens: int = 0
    """Tokens at the prompt's end that are the beginning of the answer, to be continued."""


def parse_generation(endpoint: Endpoint, content_type: str, body: bytes, served: tuple[str, ...]) -> GenerationRequest:
    """Parse a chat or completion request; without a model, the first served one is used. Raises ApiError for what a
    real engine refuses before it counts tokens."""
    fields = json_body(content_type, body)
    stream = fields.flag("stream")
    is_chat = endpoint is Endpoint.CHAT
    continued = _continued(fields) if is_chat else b""
    prompts = [_chat_prompt(fields, continued)] if is_chat else _completion_prompts(fields)
    include_usage = _stream_option(fields, "include_usage", stream=stream)
    request = GenerationRequest(
        endpoint=endpoint,
        prompt=prompts[0],
        further_prompts=tuple(prompts[1:]),
        samples=_samples(fields, len(prompts)),
        schema=schema_in(fields.object("response_format"), "json_schema"),
        output_tokens_max=_output_tokens_max(endpoint, fields),
        output_tokens_min=fields.integer("min_tokens", at_least=0) or 0,
        ignore_eos=fields.flag("ignore_eos"),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and _stream_option(fields, "continuous_usage_stats", stream=stream),
        cache_salt=cache_salt_of(fields),
        return_token_ids=fields.flag("return_token_ids"),
        model=served_model(fields, served),
        tool=_tool_to_call(fields) if is_chat else None,
        said_tokens=token_count(continued),
    )
    check_sampling(fields)
    return request


def check_least(request: GenerationRequest) -> None:
    """Refuse a minimum of output tokens above the maximum. Raises ApiError."""
    most = request.output_tokens_max
    if most is not None and request.output_tokens_min > most:
        least = request.output_tokens_min
        message = f"min_tokens must be less than or equal to max_tokens={most}, got {least}."
        raise bad_value("min_tokens", least, message)


def check_length(request: GenerationRequest, prompt_tokens: int, context_tokens_max: int) -> None:
    """Refuse a request that the context cannot hold. Raises ApiError."""
    asked = request.output_tokens_max
    if asked is not None and asked > context_tokens_max:
        raise bad_value(
            "max_tokens",
            asked,
            f"max_tokens={asked} cannot be greater than max_model_len={context_tokens_max}. "
            "Please request fewer output tokens.",
        )
    if prompt_tokens >= context_tokens_max:
        raise bad_value(
            "input_tokens",
            context_tokens_max + 1,
            f"This model's maximum context length is {context_tokens_max} tokens. However, your prompt contains at "
            f"least {context_tokens_max + 1} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
        )
    if asked is not None and prompt_tokens + asked > context_tokens_max:
        raise bad_value(
            "input_tokens",
            prompt_tokens,
            f"This model's maximum context length is {context_tokens_max} tokens. However, you requested {asked} "
            f"output tokens and your prompt contains {prompt_tokens} input tokens, for a total of "
            f"{prompt_tokens + asked} tokens. Please reduce the length of the input prompt or the number of requested "
            "output tokens.",
        )


def check_sampling(fields: Fields) -> None:
    temperature = fields.value("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        raise bad_value("temperature", float(temperature), f"temperature must be non-negative, got {temperature:.1f}.")


def _samples(fields: Fields, prompts: int) -> int:
    samples = fields.integer("n", at_least=1) or 1
    if samples * prompts > CHOICES_MAX:
        raise bad_value("n", samples, f"{prompts} prompts and n={samples} are more than {CHOICES_MAX} choices.")
    return samples


def schema_in(form: Fields | None, wrapper: str | None) -> dict[str, Any] | None:
    """JSON schema that an answer must follow, or None. `wrapper`: the member that contains the schema."""
    kind = None if form is None else form.value("type")
    if form is None or kind in (None, "text"):
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise bad_value("response_format", kind, "response_format.type is text, json_object or json_schema.")
    described = form if wrapper is None else form.object(wrapper)
    schema = None if described is None else described.object("schema")
    if schema is None:
        raise invalid("response_format", "missing", "Field required", form.members)
    return schema.members


def _output_tokens_max(endpoint: Endpoint, fields: Fields) -> int | None:
    names = ("max_completion_tokens", "max_tokens") if endpoint is Endpoint.CHAT else ("max_tokens",)
    for name in names:
        tokens = fields.integer(name, at_least=1)
        if tokens is not None:
            return tokens
    return None if endpoint is Endpoint.CHAT else _COMPLETION_TOKENS_DEFAULT


def _stream_option(fields: Fields, name: str, *, stream: bool) -> bool:
    options = fields.value("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise invalid("stream_options", "model_attributes_type", "Input should be a valid dictionary", options)
    if not stream:
        raise bad_value("stream_options", options, "Stream options can only be defined when `stream=True`.")
    return Fields(options).flag(name)


def _chat_prompt(fields: Fields, continued: bytes) -> bytes:
    messages = messages_of(fields)
    return chat_prompt(messages[:-1]) + continued if continued else chat_prompt(messages)


def _continued(fields: Fields) -> bytes:
    """Text of the last message, if the answer is to continue it; else empty. Raises ApiError."""
    if not fields.flag("continue_final_message"):
        return b""
    if fields.value("add_generation_prompt") is not False:
        told = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        raise bad_value("continue_final_message", True, told)
    last = messages_of(fields)[-1]
    return last.content.encode("utf-8", "surrogatepass")


def messages_of(fields: Fields) -> list[PromptMessage]:
    if fields.value("messages") is None:
        raise invalid("messages", "missing", "Field required", fields.members)
    return [PromptMessage(each.text("role"), text_of_content(each.members)) for each in fields.objects("messages")]


def _tool_to_call(fields: Fields) -> Tool | None:
    functions = [function for each in fields.objects("tools") if (function := each.object("function"))]
    tools = [Tool(each.text("name"), schema_of(each, "parameters")) for each in functions]
    choice = fields.value("tool_choice")
    named = Fields(choice).object("function") if isinstance(choice, dict) else None
    return chosen_tool(tools, must_call=choice == "required", name=named.text("name") if named else None)


def schema_of(tool: Fields, name: str) -> dict[str, Any]:
    schema = tool.object(name)
    return {} if schema is None else schema.members


def _completion_prompts(fields: Fields) -> list[bytes]:
    """Prompts of a completion request: one or several, each text or token ids."""
    prompt = fields.value("prompt")
    several = isinstance(prompt, list) and bool(prompt) and all(isinstance(each, str | list) for each in prompt)
    return [_completion_prompt(each) for each in (prompt if several else [prompt])]


def _completion_prompt(prompt: Any) -> bytes:
    if isinstance(prompt, str):
        text = prompt.encode("utf-8", "surrogatepass")
    elif isinstance(prompt, list) and all(is_token_id(item) for item in prompt):
        text = text_of(prompt)
    else:
        raise invalid("prompt", "string_type", "Input should be text, token ids, or a list of either", prompt)
    if not text:
        raise ApiError(
            400, "BadRequestError", "Either prompt or prompt_embeds must be provided and non-empty.", "prompt"
        )
    return text


def is_token_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= TOKEN_ID_MAX
