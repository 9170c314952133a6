"""A machine that permits no hosts of their own says what it lacks; it is never passed over."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from loadgen.hosts.namespaces import HostsUnavailable, address_of, check_machine, namespace_of, network_of_site


def test_without_rights_and_program_the_reasons_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(HostsUnavailable, match=r"root's rights.*; the program `ip` \(Debian package iproute2\)"):
        check_machine()


def test_another_system_than_linux_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(HostsUnavailable, match="need Linux, which has network namespaces"):
        check_machine()


def test_each_site_has_an_address_and_a_network() -> None:
    assert (address_of(7), network_of_site(7)) == ("10.77.7.1", "10.77.7.0/24")
    assert namespace_of("us-east-1") == "nightside-wan-us-east-1"
