"""Requests that this gateway makes of itself, without a connection: the answer is collected, within a bound."""

from __future__ import annotations

from collections.abc import Callable

from gateway.http1.server import Exchange


class LocalExchange(Exchange):
    """One request whose whole body is at hand. Its maker is called once when the answer is over, and calls `left` to
    give the request up."""

    __slots__ = (
        "_answer",
        "_answer_bytes",
        "_answer_bytes_max",
        "_on_over",
        "is_too_large",
        "lines",
        "status",
        "was_cut",
    )

    def __init__(self, target: str, body: bytes, *, answer_bytes_max: int, on_over: Callable[[], None]) -> None:
        """`answer_bytes_max` bounds the answer's body; a longer one is dropped."""
        super().__init__(None)
        self.method = "POST"
        self.target = target.encode()
        self.headers["content-type"] = "application/json"
        self.headers["content-length"] = str(len(body))
        self.status = 0
        """Status of the answer; 0 until it begins."""
        self.lines = ""
        """Header lines of the answer."""
        self.is_too_large = False
        self.was_cut = False
        """True if the answer broke off after it had begun."""
        self._answer: list[bytes] = []
        self._answer_bytes = 0
        self._answer_bytes_max = answer_bytes_max
        self._on_over = on_over
        self.add(body)
        self.body_is_over()

    @property
    def is_closing(self) -> bool:
        return self.is_over

    def answer(self) -> bytes:
        """Body of the answer."""
        return b"".join(self._answer)

    def start(self, status: int, lines: str, *, has_length: bool) -> None:  # noqa: ARG002 - nothing is framed here
        assert not self.has_begun, "an answer begins once"
        self.has_begun = True
        self.status = status
        self.lines = lines

    def write(self, data: bytes) -> bool:
        self._answer_bytes += len(data)
        if self._answer_bytes > self._answer_bytes_max:
            self.is_too_large = True
            self._answer.clear()
        else:
            self._answer.append(data)
        return True

    def finish(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._on_over()

    def abort(self) -> None:
        self.was_cut = True
        self.finish()
