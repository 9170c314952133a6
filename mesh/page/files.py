"""Serves the files of the operators' page to browsers. They lie in this package, are read once, and hold nothing that
needs a token: the page requests its data by itself.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from aiohttp import web
from msgspec import Struct

from mesh.admin_server import open_to_all

_FOLDER = Path(__file__).parent / "assets"
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self' data:",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",  # text can never become markup: the browser itself refuses
    "trusted-types 'none'",
)
HEADERS = {
    "content-security-policy": "; ".join(_POLICY),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # revalidated each time, and sent again only after a change
}


class _File(Struct, frozen=True):
    body: bytes
    kind: str
    tag: str


def _read(path: Path) -> _File:
    body = path.read_bytes()
    return _File(body, _KINDS[path.suffix], sha256(body).hexdigest()[:20])


def _path_of(file: Path) -> str:
    return "/" if file.name == "index.html" else f"/page/{file.name}"


_FILES = {_path_of(file): _read(file) for file in sorted(_FOLDER.iterdir()) if file.suffix in _KINDS}
PAGE_PATHS = frozenset(_FILES)
"""Paths that are open to every caller of the address."""


@open_to_all
async def _give(request: web.Request) -> web.Response:
    file = _FILES[request.path]
    known = request.if_none_match or ()
    if any(each.value in (file.tag, "*") for each in known):
        answer = web.Response(status=304, headers=HEADERS)
    else:
        answer = web.Response(body=file.body, headers={**HEADERS, "content-type": file.kind})
    answer.etag = file.tag
    return answer


def add_files(app: web.Application) -> None:
    for path in PAGE_PATHS:
        app.router.add_get(path, _give)
