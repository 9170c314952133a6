"""A decode group computed literally by its definition, step after step, as a reference for the model."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadgen.engine.decode_group import DecodeGroupConfig


@dataclass(slots=True, eq=False)
class Work:
    name: str
    rank: int
    prompt: int
    output: int
    transfer_ns: int
    ready_ns: int | None = None
    """Time at which its KV cache has arrived; None until the transfer has begun."""
    generated: int = 0
    runs: bool = False


@dataclass(slots=True)
class SteppedGroup:
    config: DecodeGroupConfig
    now_ns: int = 0
    here: list[Work] = field(default_factory=list)
    """Requests in order of arrival."""
    told: list[tuple[str, str, int]] = field(default_factory=list)
    """Events: request, kind and time."""
    lasts: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    """Begin, end, and tokens read by each rank, of each step."""
    percent: dict[int, int] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    flight: tuple[int, int, tuple[int, ...], list[Work]] | None = None

    def admit(self, work: Work) -> None:
        self.here.append(work)
        self._fetch()

    def drop(self, name: str) -> None:
        self.here = [work for work in self.here if work.name != name]
        self._fetch()

    def lose(self, rank: int) -> None:
        self.here = [work for work in self.here if work.rank != rank]
        self.lost.add(rank)

    def run_until(self, until_ns: int | None) -> None:
        """Run up to and including this time. A request that is admitted afterwards, at the same time, takes part in a
        step that begins then."""
        while (next_ns := self._next_ns()) is not None and (until_ns is None or next_ns <= until_ns):
            if self.flight is None and next_ns > self.now_ns:
                self.now_ns = next_ns
                continue
            if self.flight is None:
                if until_ns == self.now_ns:
                    return
                self._begin()
                continue
            self._end(self.flight)
        if until_ns is not None:
            if self.flight is None and self._may_run() and self.now_ns < until_ns:
                self._begin()
            self.now_ns = until_ns

    def _next_ns(self) -> int | None:
        if self.flight is not None:
            return self.flight[1]
        if self._may_run():
            return self.now_ns
        return min((work.ready_ns for work in self.here if work.ready_ns is not None), default=None)

    def _may_run(self) -> bool:
        return any(work.ready_ns is not None and work.ready_ns <= self.now_ns for work in self.here)

    def _begin(self) -> None:
        for rank in range(self.config.ranks):
            ready = [w for w in self.here if w.rank == rank and w.ready_ns is not None and w.ready_ns <= self.now_ns]
            running = sum(work.runs for work in ready)
            ready.sort(key=lambda work: work.ready_ns or 0)
            for work in [work for work in ready if not work.runs][: self.config.batch_max - running]:
                work.runs = True
        batch = [work for work in self.here if work.runs]
        reads = tuple(
            sum(work.prompt + work.generated for work in batch if work.rank == rank)
            for rank in range(self.config.ranks)
        )
        end_ns = self.now_ns + max(self._lasts_ns(rank, tokens) for rank, tokens in enumerate(reads))
        self.flight = self.now_ns, end_ns, reads, batch

    def _lasts_ns(self, rank: int, tokens: int) -> int:
        if rank in self.lost:
            return 0
        percent = self.percent.get(rank, 100)
        base_ns, token_ns = (max(1, each * percent // 100) for each in (self.config.base_ns, self.config.kv_token_ns))
        return base_ns + tokens * token_ns

    def _end(self, flight: tuple[int, int, tuple[int, ...], list[Work]]) -> None:
        begin_ns, self.now_ns, reads, batch = flight
        self.flight = None
        self.lasts.append((begin_ns, self.now_ns, reads))
        for work in batch:
            if work not in self.here:
                continue
            work.generated += 1
            if work.generated == 1:
                self.told.append((work.name, "first", self.now_ns))
            if work.generated == work.output:
                self.told.append((work.name, "finished", self.now_ns))
                self.here.remove(work)
        self._fetch()

    def _fetch(self) -> None:
        for rank in range(self.config.ranks):
            mine = [work for work in self.here if work.rank == rank]
            held = sum(work.prompt + work.output for work in mine if work.ready_ns is not None)
            for work in mine:
                if work.ready_ns is not None:
                    continue
                if self.config.kv_tokens and held + work.prompt + work.output > self.config.kv_tokens:
                    break
                held += work.prompt + work.output
                work.ready_ns = self.now_ns + work.transfer_ns
