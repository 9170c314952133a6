"""Ray cluster as a place to run jobs, for grids too large for one machine. Ray is optional (`pip install
nightside[ray]`) and imported on use.

Nightside's own code is shipped with the jobs; its dependencies must be installed on the cluster. The module knows
nothing of the jobs' content.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mesh.faults import ConfigError

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("gateway", "loadgen", "mesh")
_ANSWER_S = 60
"""Time-out of the health check in seconds; on a busy machine most of it passes while the checking process starts."""
_EXCLUDED = ["**/__pycache__", "**/*.log"]


class RayCluster:
    """Connection to one cluster."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._remote: dict[Callable[[Any], Any], Any] = {}

    @property
    def cores(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, work: Callable[[Any], Any], job: object) -> object:
        if work not in self._remote:
            self._remote[work] = self._ray.remote(num_cpus=1, max_retries=3)(work)
        return self._remote[work].remote(job)

    def first_done(self, tickets: Sequence[object]) -> object:
        done, _ = self._ray.wait(list(tickets), num_returns=1)
        return done[0]

    def result(self, ticket: object) -> Any:
        """Result of a job. Raises the exception of the job itself, without Ray's wrapper."""
        try:
            return self._ray.get(ticket)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error

    def cancel(self, ticket: object) -> None:
        self._ray.cancel(ticket)


@contextmanager
def connected(address: str) -> Iterator[RayCluster]:
    """Connect to a cluster; `address` as for `ray.init`: `auto`, `HOST:PORT` or `ray://HOST:PORT`. Raises
    ConfigError."""
    try:
        ray = importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--ray needs Ray ({error}), which comes with the extra `ray`: pip install 'nightside[ray]'"
        ) from error
    _check_cluster_answers(address)
    environment = {"py_modules": [str(_ROOT / package) for package in _PACKAGES], "excludes": _EXCLUDED}
    try:
        ray.init(address=address, runtime_env=environment, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"--ray {address}: {error}") from error
    try:
        yield RayCluster(ray)
    finally:
        ray.shutdown()


def _check_cluster_answers(address: str) -> None:
    """Check that a cluster answers at the address, because Ray itself would wait for minutes. Raises ConfigError."""
    if address == "auto" or "://" in address:
        return
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_ANSWER_S)  # noqa: S603 - an argument, no shell
    except subprocess.TimeoutExpired:
        raise ConfigError(f"--ray {address}: no answer within {_ANSWER_S} s") from None
    if done.returncode != 0:
        raise ConfigError(f"--ray {address}: no Ray cluster is there (start one with: ray start --head)")
