"""Hostile names of models, tenants, replicas, regions and peers, for every place where the operators' page shows one:
one case per line. Each must stay text, and be legible as what it is.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NameCase:
    name: str
    text: str
    shown: str = ""
    """Text that the page must show instead; empty where it is the name itself."""

    @property
    def told(self) -> str:
        return self.shown or self.text


_RUN = "window.owned=1"
# fmt: off
NAME_CASES = (
    NameCase("an element of script", f"<script>{_RUN}</script>"),
    NameCase("the end of one, and another", f"</script><script>{_RUN}</script>"),
    NameCase("an image that is not there", f"<img src=x onerror={_RUN}>"),
    NameCase("a drawing", f"<svg onload={_RUN}><animate onbegin={_RUN} attributeName=x dur=1s>"),
    NameCase("a frame", f"<iframe srcdoc='<script>parent.{_RUN}</script>'></iframe>"),
    NameCase("a frame of a script", f"<iframe src=javascript:parent.{_RUN}>"),
    NameCase("a template", f"<template><script>{_RUN}</script></template>"),
    NameCase("another base", "<base href=https://evil.example.net/>"),
    NameCase("a style", "<style>body{display:none}</style>"),
    NameCase("a link", "<a href=javascript:window.owned=1>here</a>"),
    NameCase("a URL of a script", "javascript:window.owned=1"),
    NameCase("a URL of data", "data:text/html,<script>parent.owned=1</script>"),
    NameCase("a form", "<form action=https://evil.example.net/><input name=token></form>"),
    NameCase("a comment that does not end", "<!--"),
    NameCase("the end of a text area and of a title", f"</textarea></title><script>{_RUN}</script>"),
    NameCase("a double quote and a handler", f'" autofocus onfocus="{_RUN}'),
    NameCase("a single quote and a handler", f"' autofocus onfocus='{_RUN}"),
    NameCase("backticks", f"`${{{_RUN}}}`x"),
    NameCase("a template of another kind", f"{{{{constructor.constructor('{_RUN}')()}}}}"),
    NameCase("entities", f"&lt;script&gt;{_RUN}&lt;/script&gt;"),
    NameCase("the end of an event", "x\n\nevent: sections\ndata: {\"who\": 1}\n\n"),
    NameCase("the end of JSON", '"}],"who":{"kind":"gateway","name":"evil"},"x":[{"y":"'),
    NameCase("a name of Python's and JavaScript's", "__proto__"),
    NameCase("another one", "constructor"),
    NameCase("one of each object", "hasOwnProperty"),
    NameCase("one of each function", "toString"),
    NameCase("one of each promise", "then"),
    NameCase("letters that turn around", "evil\u202elleW\u202c", "evil\\u{202e}lleW\\u{202c}"),
    NameCase("letters set apart", "\u2066evil\u2069", "\\u{2066}evil\\u{2069}"),
    NameCase("a space of no width", "us\u200b-1", "us\\u{200b}-1"),
    NameCase("nothing but what is not seen", "\u200b\u2060\ufeff", "\\u{200b}\\u{2060}\\u{feff}"),
    NameCase("tags that are not seen", "x\U000e0041\U000e0042", "x\\u{e0041}\\u{e0042}"),
    NameCase("controls", "\x00\x07\x1b[2Jx", "\\u{0}\\u{7}\\u{1b}[2Jx"),
    NameCase("an end of a line that is none of ours", "a\u2028b\u2029c", "a\\u{2028}b\\u{2029}c"),
    NameCase("letters of another way of writing", "\u05d0\u05d1\u05d2 (US)"),
    NameCase("a thousand marks on one letter", "a" + "\u0301" * 1000),
    NameCase("100,000 letters", "a" * 100_000, "a" * 1000),
    NameCase("100,000 letters of another plane", "\U0001f600" * 50_000, "\U0001f600" * 500),
    NameCase("nothing", " "),
)
# fmt: on
