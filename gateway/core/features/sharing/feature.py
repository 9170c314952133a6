"""Fair sharing between tenants: requests are counted from when they first wait, and queues are shared by the counts."""

from __future__ import annotations

from gateway.core.config import all_of
from gateway.core.features.sharing.fair_queue import FairOrder, leaves_room
from gateway.core.features.sharing.fair_shares import Charge, FairShares, charge_of
from gateway.core.kernel.config import KernelConfig
from gateway.core.kernel.events import LegEnded
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.requests import LegState, Phase, RequestState
from gateway.core.vocabulary import LegResult, LegRole

_RUN = frozenset({LegResult.COMPLETED, LegResult.CANCELLED, LegResult.FAILED, LegResult.TAKEN_BACK})
"""Results of legs for which an engine may have done some work."""
_NO_CHARGE = "each waiting request has an account"


class Sharing(Feature):
    """Orders the queues and keeps the counts. The feature is on whatever the config says: without fairness between
    tenants, all share one account, which may still leave room."""

    def __init__(self, core: Kernel) -> None:
        self._core = core
        self._shares = FairShares()
        core.waiting.order_by(FairOrder(self._shares, core.placer.known_share))

    def is_on(self) -> bool:
        return True

    def configure(self, config: KernelConfig, now_ns: int, /) -> None:  # noqa: ARG002
        settings = all_of(config)
        self._shares.configure(settings.sharing, settings.tenants)

    def begins(self, now_ns: int, /) -> None:
        shares = self._shares
        shares.now_ns = now_ns
        if now_ns > shares.recent_until_ns:
            shares.begin(now_ns)

    def joined(self, request: RequestState, /) -> None:
        """Count a request as waiting. Its charge is opened when it waits for the first time."""
        charge = request.queue_part
        if charge is None:
            charge = request.queue_part = self._shares.opened(request.profile.tenant)
        assert isinstance(charge, Charge), _NO_CHARGE
        self._shares.joined(charge.account)

    def left(self, request: RequestState, /) -> None:
        charge = request.queue_part
        assert isinstance(charge, Charge), _NO_CHARGE
        self._shares.left(charge.account)

    def before_choice(self, request: RequestState, now_ns: int, /) -> None:  # noqa: ARG002
        """Note whether the request runs only where there is room to spare."""
        request.leaves_room = self._shares.may_yield and leaves_room(self._shares, request)

    def started(self, request: RequestState, /) -> None:
        """Charge the estimate of a request."""
        charge = request.queue_part
        assert isinstance(charge, Charge), _NO_CHARGE
        prompt_tokens = 0 if request.size is None else request.size.prompt_tokens
        self._shares.started(charge, request.profile, prompt_tokens)

    def progressed(self, request: RequestState, output_tokens: int, /) -> None:
        self._shares.progressed(charge_of(request), output_tokens)

    def leg_over(self, request: RequestState, leg: LegState, event: LegEnded, now_ns: int, /) -> None:  # noqa: ARG002
        """Record what the target counted, where an engine may have done some work; what a prefill leg writes is written
        again by the leg that decodes."""
        if event.result not in _RUN or not event.has_reached:
            return
        charge = request.queue_part
        assert isinstance(charge, Charge), _NO_CHARGE
        written = None if leg.role is LegRole.PREFILL else event.output_tokens
        self._shares.ended(charge, event.prompt_tokens, written)

    def forgotten(self, request: RequestState, /) -> None:
        """Close the charge of a request."""
        charge = request.queue_part
        assert isinstance(charge, Charge), _NO_CHARGE
        self._shares.closed(charge)

    def violations(self) -> list[tuple[str, str]]:
        """Check that each open request has an account, that accounts count their waiting requests, that none is lost,
        that their number is bounded, and that no request is charged less than nothing."""
        shares, waiting = self._shares, dict[str, int]()
        found: list[tuple[str, str]] = []
        open_requests = list(self._core.requests.values())
        for request in open_requests:
            charge = request.queue_part
            if not isinstance(charge, Charge):
                found.append(("each open request has an account", request.request_id))
                continue
            if charge.account not in shares:
                found.append(("an account is kept while its tenant is here", charge.account.name))
            if charge.input_tokens < 0 or charge.output_tokens < 0:
                found.append(("no request is charged less than nothing", request.request_id))
            if request.attempts and not (charge.is_counted or request.profile.is_control):
                found.append(("each started request was charged", request.request_id))
            if request.phase is Phase.WAITING:
                waiting[charge.account.name] = waiting.get(charge.account.name, 0) + 1
        told = {each.name: each.waiting for each in shares.waiting.values()}
        if told != waiting:
            found.append(("accounts count those who wait", f"{told}, {waiting} wait"))
        running = sum([request.phase is not Phase.WAITING for request in open_requests])
        if shares.running != running:
            found.append(("what runs is shared out by what runs", f"{shares.running}, not {running}"))
        if shares.size > shares.size_max + len(open_requests):
            found.append(("every map has a bound", f"{shares.size} accounts"))
        return found
