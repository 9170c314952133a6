"""Starts the recovery of gateways that are down. The core does not wait for it, and a failure changes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress

from structlog.typing import FilteringBoundLogger

from controller.config import RecoveryConfig, RecoveryKind
from controller.core.effects import StartRecovery
from controller.lease import Lease, LeaseOver
from gateway.core.vocabulary import GatewayId, RegionName

_SECOND_NS = 1_000_000_000
OUTPUT_BYTES_MAX = 2000
"""Bytes kept of the end of a command's output."""


class Recovery:
    """Recoveries: one at a time for each gateway, and `running_max` at once; others wait."""

    def __init__(
        self,
        config: RecoveryConfig,
        region_of: Callable[[GatewayId], RegionName],
        start: Callable[[Coroutine[None, None, None]], object],
        log: FilteringBoundLogger,
        *,
        lease: Lease,
        on_end: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_end` is called with the result of each that began: `done`, `failed`, `timed_out` or `skipped`."""
        self._config = config
        self._region_of = region_of
        self._lease = lease
        self._start = start
        self._log = log
        self._on_end = on_end
        self._places = asyncio.Semaphore(config.running_max)
        self.under_way: set[GatewayId] = set()

    def configure(self, config: RecoveryConfig) -> None:
        if config.running_max != self._config.running_max:
            self._places = asyncio.Semaphore(config.running_max)
        self._config = config

    def begin(self, order: StartRecovery) -> None:
        if self._config.kind is RecoveryKind.NONE or order.gateway_id in self.under_way:
            return
        self.under_way.add(order.gateway_id)
        self._start(self._recover(order, self._config))

    async def _recover(self, order: StartRecovery, config: RecoveryConfig) -> None:
        try:
            async with self._places:
                await self._recover_if_leading(order, config)
        finally:
            self.under_way.discard(order.gateway_id)

    async def _recover_if_leading(self, order: StartRecovery, config: RecoveryConfig) -> None:
        """Recover if this controller still leads: another leader finds out for itself which gateways are down."""
        try:
            self._lease.check()
        except LeaseOver as error:
            self._log.info("recovery_skipped", gateway=order.gateway_id, reason=str(error))
            return
        act = self._ask_aws if config.kind is RecoveryKind.AWS else self._run
        try:
            result, detail = await act(order, config)
        except Exception as error:  # noqa: BLE001 - a defect in a recovery must not end what else runs
            result, detail = "failed", f"unexpected: {error!r}"
        if result == "done":
            self._log.info("recovery_completed", gateway=order.gateway_id, output=detail)
        elif result == "skipped":
            self._log.info("recovery_skipped", gateway=order.gateway_id, reason=detail)
        else:
            self._log.error("recovery_failed", gateway=order.gateway_id, result=result, reason=detail)
        self._on_end(result)

    async def _ask_aws(self, order: StartRecovery, config: RecoveryConfig) -> tuple[str, str]:
        """Recover by AWS, whose library is imported only here."""
        self._log.info("recovery_started", gateway=order.gateway_id, action=f"aws {config.aws.action}")
        try:
            from controller.aws_recovery import AwsRefused, OutsideAws, recover  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            return "failed", f"{error}: install nightside[aws]"
        try:
            async with asyncio.timeout(config.timeout_ns / _SECOND_NS):
                return "done", await recover(config.aws, order.gateway_id, self._region_of(order.gateway_id))
        except OutsideAws as error:
            return "skipped", str(error)
        except AwsRefused as error:
            return "failed", str(error)
        except TimeoutError:
            return "timed_out", "AWS does not answer"

    async def _run(self, order: StartRecovery, config: RecoveryConfig) -> tuple[str, str]:
        filled = {"{gateway}": order.gateway_id, "{region}": self._region_of(order.gateway_id), "{why}": order.why}
        arguments = [_filled(each, filled) for each in config.command]
        self._log.info("recovery_started", gateway=order.gateway_id, command=arguments[0])
        try:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return "failed", str(error)
        said = bytearray()
        try:
            async with asyncio.timeout(config.timeout_ns / _SECOND_NS):
                await _listen(process, said)
                status = await process.wait()
        except TimeoutError:
            return "timed_out", said.decode(errors="replace")
        finally:
            await _end(process)
        return ("done" if status == 0 else "failed"), f"exit status {status}: {said.decode(errors='replace')}"


def _filled(argument: str, filled: dict[str, str]) -> str:
    return filled.get(argument, argument)


async def _listen(process: asyncio.subprocess.Process, said: bytearray) -> None:
    assert process.stdout is not None, "it was asked for"
    while chunk := await process.stdout.read(4096):
        said += chunk
        del said[:-OUTPUT_BYTES_MAX]


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the process with all that it has started."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
