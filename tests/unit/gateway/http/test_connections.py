from __future__ import annotations

import json

from gateway.http import errors
from gateway.http.connections import raw_answer


def test_an_answer_without_a_request_is_whole_and_closes() -> None:
    head, _, body = raw_answer(errors.TOO_MANY_CONNECTIONS).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ") for line in lines)
    assert first == "HTTP/1.1 503 Service Unavailable"
    assert headers["content-length"] == str(len(body))
    assert (headers["connection"], headers["retry-after"]) == ("close", "1")
    assert json.loads(body)["error"]["code"] == "too_many_connections"
