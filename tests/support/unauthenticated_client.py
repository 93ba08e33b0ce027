"""What does a host of a cluster say to someone on its network who has no token?"""

from __future__ import annotations

import http.client
import socket
from pathlib import Path

import grpc

from tests.cluster.hosts import Host

SSH = 22
LISTENING = "0A"
ASKS, SILENT, NUMBERS, OPEN = "asks for the token", "says nothing", "gives metrics", "open"
CALLS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.InternalKVGcsService/InternalKVKeys",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/FreeObjects",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.rpc.RayletDriver/ClusterInfo",
    "/ray.rpc.ReporterService/GetTraceback",
)
"""A harmless call of every service that Ray's processes offer to others."""


def listening(host: Host) -> set[int]:
    """TCP ports of a host that others can reach: not those of its loopback."""
    found = set()
    for kind in ("tcp", "tcp6"):
        lines = Path(f"/proc/{host.first()}/net/{kind}").read_text().splitlines()[1:]
        for line in lines:
            local, state = line.split()[1], line.split()[3]
            address, port = local.split(":")
            if state == LISTENING and not _is_loopback(address):
                found.add(int(port, 16))
    return found - {SSH}


def _is_loopback(address: str) -> bool:
    """Of an address as /proc writes it: words of four bytes, each the wrong way round."""
    words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
    if len(words) == 1:
        return words[0][0] == 127
    text = b"".join(words)
    return text == bytes(15) + b"\1" or (text[:12] == bytes(10) + b"\xff\xff" and text[12] == 127)


def answer(address: str, port: int) -> str:
    """What a port says to someone without the token."""
    status, body = _ask_http(address, port)
    if status in (401, 403):
        return ASKS
    if status == 200:
        return NUMBERS if body.startswith(b"# HELP") else f"{OPEN}: http {body[:60]!r}"
    codes = {call: _call(address, port, call) for call in CALLS}
    done = [call for call, code in codes.items() if code == grpc.StatusCode.OK]
    if done:
        return f"{OPEN}: {done[0]}"
    return ASKS if grpc.StatusCode.UNAUTHENTICATED in codes.values() else SILENT


def _ask_http(address: str, port: int) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, port, timeout=5)
    try:
        connection.request("GET", "/")
        response = connection.getresponse()
        return response.status, response.read(200)
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def _call(address: str, port: int, method: str) -> grpc.StatusCode:
    with grpc.insecure_channel(f"{address}:{port}") as channel:
        try:
            channel.unary_unary(method)(b"", timeout=5)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


def answers(host: Host) -> dict[int, str]:
    """Every port of a host that others can reach, and what it says to a stranger."""
    found = {}
    for port in sorted(listening(host)):
        try:
            socket.create_connection((host.address, port), timeout=5).close()
        except OSError:  # ended since
            continue
        found[port] = answer(host.address, port)
    return found
