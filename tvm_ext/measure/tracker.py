"""TVM's RPC tracker as its clients see it: what servers it knows, and the loan of a free one."""

from __future__ import annotations

import socket
import struct
from collections import Counter
from typing import Any, NamedTuple

from tvm.rpc import base

from tvm_ext.errors import FleetError

ANSWER_S = 5.0
"""A tracker answers at once; one that does not within this many seconds is not there."""


class Loan(NamedTuple):
    """A server that waits for whoever shows it `match_key`."""

    host: str
    port: int
    match_key: str

    @property
    def address(self) -> str:
        """`host:port`, by which a device is told from others."""
        return f"{self.host}:{self.port}"


class Tracker:
    """One connection to a tracker, usable as a context manager. Every call raises OSError once the
    tracker has gone, or if it does not answer in time."""

    def __init__(self, address: str) -> None:
        """Raises FleetError for an address that is none, OSError if no tracker is there."""
        self._socket = socket.create_connection(split_address(address), ANSWER_S)
        try:
            self._socket.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            (magic,) = struct.unpack("<i", base.recvall(self._socket, 4))
            if magic != base.RPC_TRACKER_MAGIC:
                raise OSError("something else answers there")
        except OSError:
            self.close()
            raise

    def servers(self) -> dict[str, set[str]]:
        """The addresses of all servers, free or busy, by key."""
        found: dict[str, set[str]] = {}
        _, summary = self._ask(ANSWER_S, base.TrackerCode.SUMMARY)
        for server in summary["server_info"]:
            key = server["key"].removeprefix("server:")
            found.setdefault(key, set()).add(":".join(map(str, server["addr"])))
        return found

    def borrow(self, key: str, patience_s: float) -> Loan:
        """The next free server of the key; TimeoutError if none is free within `patience_s`. Give
        the connection up then: the tracker would answer later."""
        _, loan = self._ask(patience_s, base.TrackerCode.REQUEST, key, "", 1)
        return Loan(*loan)

    def close(self) -> None:
        """Ends the connection, and what was asked over it."""
        self._socket.close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, patience_s: float, *words: Any) -> Any:
        self._socket.settimeout(patience_s)
        base.sendjson(self._socket, list(words))
        return base.recvjson(self._socket)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`. Raises FleetError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise FleetError(
            f"tracker {address!r}: is not host:port; give its address, such as 192.168.1.5:9190"
        )
    return host, int(port)


def check_tracker(address: str) -> dict[str, set[str]]:
    """The servers that a tracker knows, by key. Raises FleetError if no tracker is there."""
    try:
        with Tracker(address) as tracker:
            return tracker.servers()
    except OSError as error:
        port = split_address(address)[1]
        raise FleetError(
            f"tracker {address}: no answer ({error.strerror or error}); start one there with "
            f"python -m tvm_ext.serve --start-tracker --port {port}"
        ) from error


def check_fleet(address: str, key: str) -> set[str]:
    """The servers of one key, at least one. Raises FleetError."""
    servers = check_tracker(address)
    if key in servers:
        return servers[key]
    counts = Counter({known: len(addresses) for known, addresses in servers.items()})
    has = ", ".join(f"{known} ({count})" for known, count in sorted(counts.items())) or "none"
    raise FleetError(
        f"tracker {address}: has no server of key {key!r}, servers by key: {has}; start one on the "
        f"device with python -m tvm_ext.serve --tracker {address} --key {key}"
    )
