"""Closing a process group's connections for good.

A gloo group lives as long as anything holds it, and torch's caches hold device meshes, which hold their groups: after
``destroy_process_group()`` its connections may stay open, and peers that wait in a collective wait until their timeout.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path


def open_sockets() -> dict[int, str]:
    """The sockets of this process: file descriptor to what the kernel calls it. Empty where there is no ``/proc``."""
    if sys.platform != "linux":
        return {}
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            target = os.readlink(link)
            if target.startswith("socket:"):
                found[int(link.name)] = target
    return found


def shut_down_since(before: dict[int, str], but_port: int) -> None:
    """End every connection that is not among those ``before``; both its ends are told at once.

    Args:
        but_port: of a server whose connections stay, whichever end is here.
    """
    for number, name in open_sockets().items():
        if before.get(number) == name:
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            listens = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if not listens and but_port not in (connection.getsockname()[1], connection.getpeername()[1]):
                connection.shutdown(socket.SHUT_RDWR)
