"""Client without a token that probes the reachable ports of a cluster's host."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path

import grpc

from tests.support.namespace_hosts import Host

SSH_PORT = 22
LISTEN_STATE = "0A"
REQUIRES_TOKEN, NO_RESPONSE, METRICS, OPEN = (
    "requires the token",
    "no response",
    "returns metrics",
    "open",
)
GRPC_METHODS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.InternalKVGcsService/InternalKVKeys",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/FreeObjects",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.rpc.RayletDriver/ClusterInfo",
    "/ray.rpc.ReporterService/GetTraceback",
)
"""A read-only method of every gRPC service of Ray's processes."""


def list_reachable_ports(host: Host) -> set[int]:
    """Return the TCP ports of a host that others can reach, without SSH and loopback."""
    found = set()
    for kind in ("tcp", "tcp6"):
        lines = Path(f"/proc/{host.get_first_pid()}/net/{kind}").read_text().splitlines()[1:]
        for line in lines:
            local, state = line.split()[1], line.split()[3]
            address, port = local.split(":")
            if state == LISTEN_STATE and not _is_loopback(address):
                found.add(int(port, 16))
    return found - {SSH_PORT}


def _is_loopback(address: str) -> bool:
    """Return whether an address of /proc/net, in little-endian words of four bytes, is loopback."""
    words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
    if len(words) == 1:
        return words[0][0] == 127
    text = b"".join(words)
    return text == bytes(15) + b"\1" or (text[:12] == bytes(10) + b"\xff\xff" and text[12] == 127)


def probe_port(address: str, port: int) -> str:
    """Return how a port responds to a client without the token."""
    status, body = _request_http(address, port)
    if status in (401, 403):
        return REQUIRES_TOKEN
    if status == 200:
        return METRICS if body.startswith(b"# HELP") else f"{OPEN}: http {body[:60]!r}"
    codes = {call: _call_grpc(address, port, call) for call in GRPC_METHODS}
    done = [call for call, code in codes.items() if code == grpc.StatusCode.OK]
    if done:
        return f"{OPEN}: {done[0]}"
    return REQUIRES_TOKEN if grpc.StatusCode.UNAUTHENTICATED in codes.values() else NO_RESPONSE


def _request_http(address: str, port: int) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, port, timeout=5)
    try:
        connection.request("GET", "/")
        response = connection.getresponse()
        return response.status, response.read(200)
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def _call_grpc(address: str, port: int, method: str) -> grpc.StatusCode:
    with grpc.insecure_channel(f"{address}:{port}") as channel:
        try:
            channel.unary_unary(method)(b"", timeout=5)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


def probe_ports(host: Host) -> dict[int, str]:
    """Return the responses of all reachable ports of a host to a client without the token."""
    found = {}
    for port in sorted(list_reachable_ports(host)):
        try:
            socket.create_connection((host.address, port), timeout=5).close()
        except OSError:  # the process has ended
            continue
        found[port] = probe_port(host.address, port)
    return found
