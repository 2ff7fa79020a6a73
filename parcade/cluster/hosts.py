"""The hosts of a job: reading a host file and checking it before the job starts."""

from __future__ import annotations

import ipaddress
import re
import socket
from pathlib import Path
from typing import NamedTuple

from parcade.errors import UsageError

# "node1", "node1:4" (MPICH) or "node1 slots=4" (Open MPI).
_LINE = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?::(?P<colon>\S+)|\s+slots\s*=\s*(?P<slots>\S+))?$")


class Host(NamedTuple):
    """A host and the number of ranks it may run."""

    name: str
    slots: int


def read_hosts(path: Path) -> list[Host]:
    """Read a host file: one name or address per line, optionally with ``slots=N`` or ``:N`` (default 1).

    ``#`` starts a comment. Errors: UsageError naming a malformed line, a duplicate host or a name that does
    not resolve.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise UsageError(
            f"host file {path} cannot be read ({reason}); expected one host per line, e.g. node1 slots=4"
        ) from None
    hosts: dict[str, Host] = {}
    for number, line in enumerate(lines, 1):
        line = line.split("#", 1)[0].strip()
        if not line:
            continue
        match = _LINE.match(line)
        slots = (match["colon"] or match["slots"] or "1") if match else ""
        if not slots.isdecimal() or int(slots) < 1:
            raise UsageError(f"host file {path}, line {number}: got {line!r}, expected e.g. node1 slots=4")
        if match["name"] in hosts:
            raise UsageError(
                f"host file {path}, line {number}: {match['name']} is listed twice; "
                "list it once, with all its slots"
            )
        hosts[match["name"]] = Host(match["name"], int(slots))
    if not hosts:
        raise UsageError(f"host file {path} names no host; expected one per line, e.g. node1 slots=4")
    for host in hosts.values():
        try:
            socket.getaddrinfo(host.name, None)
        except (OSError, UnicodeError):
            raise UsageError(
                f"host file {path}: {host.name} does not resolve to an address; check its spelling"
            ) from None
    return list(hosts.values())


def check_slots(hosts: list[Host], ranks: int, path: Path) -> None:
    """Errors: UsageError when ``ranks`` exceeds the hosts' slots."""
    slots = sum(host.slots for host in hosts)
    if ranks > slots:
        raise UsageError(
            f"ranks={ranks} is more than the {slots} slot(s) of {len(hosts)} host(s) in {path}; "
            f"use --ranks {slots} or fewer, or give the hosts more slots"
        )


def most_ranks_on_a_host(hosts: list[Host], ranks: int) -> int:
    """Return the number of ranks on the fullest host when slots are filled in the order of the file."""
    most = 0
    for host in hosts:
        here = min(host.slots, ranks)
        most, ranks = max(most, here), ranks - here
    return most


def interface_name(network_interface: str) -> str:
    """Return the name of a network interface of this host.

    Args:
        network_interface: the interface's name, or a network that contains its address, e.g. 10.0.0.0/24.

    Errors: UsageError listing the existing interfaces.
    """
    import psutil

    addresses = psutil.net_if_addrs()
    if network_interface in addresses:
        return network_interface
    try:
        network = ipaddress.ip_network(network_interface, strict=False)
        for name, found in addresses.items():
            if any(a.family == socket.AF_INET and ipaddress.ip_address(a.address) in network for a in found):
                return name
    except ValueError:
        pass
    raise UsageError(
        f"network interface {network_interface!r} is not on this host, which has "
        f"{', '.join(sorted(addresses))}; use one of them, or a network such as 10.0.0.0/24"
    )


def address_of(interface: str) -> str:
    """Return the IPv4 address of a network interface. Errors: UsageError listing the existing interfaces."""
    import psutil

    addresses = psutil.net_if_addrs()
    for each in addresses.get(interface, ()):
        if each.family == socket.AF_INET:
            return each.address
    raise UsageError(f"interface {interface!r} has no IPv4 address; expected one of {', '.join(addresses)}")


def own_address(network_interface: str = "") -> str | None:
    """Return the IPv4 address at which other hosts reach this one, None if that is not known.

    It is the interface's, or by default the one that the host's name resolves to, unless that is loopback.
    Errors: UsageError for an interface that this host does not have.
    """
    if network_interface:
        return address_of(interface_name(network_interface))
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError:
        return None
    return None if found.startswith("127.") else found
