"""Commands that `nightside demo --serve` prints for trying a gateway: each works when pasted unchanged."""

from __future__ import annotations

import json

from gateway.core.vocabulary import ModelName

_QUESTION = "Why is the sky dark at night?"


def curl_snippet(url: str, model: ModelName) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 20, "stream": True}
    return (
        f"curl -sSiN {url}/v1/chat/completions \\\n  -H 'Content-Type: application/json' \\\n  -d '{json.dumps(body)}'"
    )


def dig_snippet(host: str, port: int, name: str, network: str) -> str:
    return f"dig @{host} -p {port} {name} A +subnet={network} +short"


def openai_snippet(url: str, model: ModelName) -> str:
    return f"""from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key="unused")
messages = [{{"role": "user", "content": "{_QUESTION}"}}]
answer = client.chat.completions.create(model="{model}", messages=messages, max_tokens=20)
print(answer.choices[0].message.content)"""
