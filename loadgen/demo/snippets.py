"""What `nightside demo --serve` prints for trying out a gateway: each piece works when pasted as it stands."""

from __future__ import annotations

import json

from gateway.core.vocabulary import ModelName

_QUESTION = "Why is the sky dark at night?"


def curl_snippet(url: str, model: ModelName) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 20, "stream": True}
    return (
        f"curl -sSiN {url}/v1/chat/completions \\\n  -H 'Content-Type: application/json' \\\n  -d '{json.dumps(body)}'"
    )


def openai_snippet(url: str, model: ModelName) -> str:
    return f"""from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key="unused")
stream = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "{_QUESTION}"}}],
    max_tokens=20,
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()"""
