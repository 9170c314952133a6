"""Makes hosts out of Linux network namespaces, each with one TUN device to the emulated network, and removes them.

A host has a network of its own and shares everything else with this machine. It must never leave a namespace or one of
its processes behind, nor touch those of other programs.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from loadgen.hosts.shapes import Site
from loadgen.hosts.wire import NETWORK

DEVICE = "wan0"
_PREFIX = "nightside-wan-"
_TUN = Path("/dev/net/tun")
_FOLDER = Path("/run/netns")
_FILES = Path("/etc/netns")
"""Folder of the files that each namespace's programs see in place of those in /etc."""
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_COMMAND_S = 20.0
_LOCK = Path("/run/nightside-wan.lock")
"""File in a folder that only root writes in: in a shared one, another user's link would lead elsewhere."""


class HostsUnavailable(Exception):
    """Machine that does not permit hosts of this kind; the message says what is missing."""


def address_of(number: int, host: int = 1) -> str:
    """Address of the one host of a site; `host`: 1 for its own, others for further addresses of it."""
    return f"{NETWORK[0]}.{NETWORK[1]}.{number}.{host}"


def network_of_site(number: int) -> str:
    return f"{NETWORK[0]}.{NETWORK[1]}.{number}.0/24"


def namespace_of(site: Site) -> str:
    return _PREFIX + site


@contextmanager
def namespaces(sites: Mapping[Site, int], name_servers: Mapping[Site, str] | None = None) -> Iterator[None]:
    """Make a namespace for each site, by its number; programs that run there ask the site's name server, if it has one.
    What an earlier run has left is removed first, and all processes in them are killed at the end. Raises
    HostsUnavailable."""
    check_machine()
    with _alone():
        _remove_all()
        try:
            for site, number in sites.items():
                _make(site, number)
            for site, address in (name_servers or {}).items():
                _set_name_server(site, address)
            yield
        finally:
            _remove_all()


def check_machine() -> None:
    """Raises HostsUnavailable unless this machine has all that is needed."""
    missing = []
    if sys.platform != "linux":
        missing.append("Linux, which has network namespaces")
    elif os.geteuid() != 0:
        missing.append("root's rights, by which namespaces are made")
    if shutil.which("ip") is None:
        missing.append("the program `ip` (Debian package iproute2)")
    if not _TUN.exists():
        missing.append(f"the device {_TUN}, by which packets are carried")
    if missing:
        raise HostsUnavailable(f"hosts of their own need {'; '.join(missing)}")


def add_address(site: Site, address: str) -> None:
    """Give the site's host a further address. Raises HostsUnavailable."""
    _ip("-n", namespace_of(site), "addr", "add", f"{address}/24", "dev", DEVICE)


def command_on(site: Site) -> tuple[str, ...]:
    """Begin of a command line that runs a program on the site's host."""
    return (_program(), "netns", "exec", namespace_of(site))


def processes_on(site: Site) -> list[int]:
    """Process ids on the site's host."""
    return [int(each) for each in _ip("netns", "pids", namespace_of(site)).split()]


def signal_all_on(site: Site, number: signal.Signals) -> int:
    """Send a signal to every process on the host; returns how many there were."""
    pids = processes_on(site)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(pids)


@contextmanager
def on_host(site: Site) -> Iterator[None]:
    """Have this thread make sockets and open devices on the site's host. The block must not wait. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        other = os.open(_FOLDER / namespace_of(site), os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.setns(other, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"the network namespace of {site} cannot be entered")
        finally:
            os.close(other)
        try:
            yield
        finally:
            if libc.setns(own, _CLONE_NEWNET):
                os.abort()  # sockets made later would be on the wrong host
    finally:
        os.close(own)


def socket_on(site: Site, family: int, kind: int, protocol: int) -> socket.socket:
    """Socket on the site's host. Raises OSError."""
    with on_host(site):
        return socket.socket(family, kind, protocol)


def open_device(site: Site) -> int:
    """File descriptor of the site's device, which does not block. Raises OSError."""
    with on_host(site):
        device = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22s", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI, b""))
    return device


@contextmanager
def _alone() -> Iterator[None]:
    """Hold the lock of this machine's hosts: two runs at a time would remove each other's."""
    with _LOCK.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise HostsUnavailable("another run has hosts on this machine; wait for its end") from error
        yield


def _make(site: Site, number: int) -> None:
    name = namespace_of(site)
    _ip("netns", "add", name)
    inside = ("-n", name)
    _ip(*inside, "link", "set", "lo", "up")
    _ip(*inside, "tuntap", "add", "dev", DEVICE, "mode", "tun")
    _ip(*inside, "addr", "add", f"{address_of(number)}/24", "dev", DEVICE)
    _ip(*inside, "link", "set", DEVICE, "mtu", "1500", "up")
    _ip(*inside, "route", "add", f"{NETWORK[0]}.{NETWORK[1]}.0.0/16", "dev", DEVICE)


def _set_name_server(site: Site, address: str) -> None:
    """Write the file that `ip netns exec` shows to the site's programs as the system's."""
    folder = _FILES / namespace_of(site)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "resolv.conf").write_text(f"nameserver {address}\noptions timeout:1 attempts:2\n")


def _remove_all() -> None:
    """Kill all processes in namespaces of these hosts, and remove the namespaces. Raises HostsUnavailable for those
    that could not be removed, once all others are."""
    faults = []
    for name in [each.split()[0] for each in _ip("netns", "list").splitlines() if each.startswith(_PREFIX)]:
        try:
            signal_all_on(name.removeprefix(_PREFIX), signal.SIGKILL)
            shutil.rmtree(_FILES / name, ignore_errors=True)
            _ip("netns", "del", name)
        except HostsUnavailable as fault:
            faults.append(str(fault))
    with suppress(OSError):
        _FILES.rmdir()
    if faults:
        raise HostsUnavailable("; ".join(faults))


def _program() -> str:
    return str(shutil.which("ip"))


def _ip(*arguments: str) -> str:
    """Output of `ip`, which a Ctrl-C does not reach: it ends what it has begun. Raises HostsUnavailable with its
    message."""
    try:
        done = subprocess.run(  # noqa: S603 - names are this module's own
            [_program(), *arguments],
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostsUnavailable(f"ip {' '.join(arguments)}: {error}") from error
    if done.returncode:
        raise HostsUnavailable(f"ip {' '.join(arguments)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
