"""Hosts made of Linux namespaces, with their own address, processes, home directory and sshd.

The hosts share the other files of the machine. `~/dml-study/.venv` of each host is an overlay of
this Python environment, like an image with everything but the project installed. The test process
is outside of the hosts, like a laptop, and reaches them only by ssh.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

HOME_DIRECTORY = "/tmp/home"
PRIVATE_DIRECTORIES = ("/tmp", "/run", "/mnt", "/dev/shm")
"""Directories that each host has for itself; this project and Python may be below one of them."""
REQUIRED_DIRECTORIES = sorted(
    {str(Path(__file__).resolve().parents[2]), sys.prefix, sys.base_prefix}
)
SHARED_DIRECTORY = "/mnt/shared"

_PIP_CONFIG = """\
[global]
no-index = true
[install]
no-build-isolation = false
"""
"""pip must use the installed versions or fail. It reads the last line as "build isolation: false";
with isolation it would download setuptools."""

_INIT_SCRIPT = """\
set -e
export LC_ALL=C
mount --make-rprivate /
mount -t tmpfs none /mnt && mkdir {shared}
mount --bind {folder}/shared {shared}
mkdir -p /mnt/own && mount --bind {folder}/{name} /mnt/own
{keep}
mount -t tmpfs none /dev/shm
mount -t tmpfs none /tmp && chmod 1777 /tmp
mount -t tmpfs none /run && mkdir /run/sshd
{bring_back}
mkdir -p /mnt/image/changes /mnt/image/work
mount -t overlay none {prefix} \
    -o lowerdir={prefix},upperdir=/mnt/image/changes,workdir=/mnt/image/work
cp /mnt/own/pip.conf {prefix}/
mkdir -p {home}/dml-study && ln -s {prefix} {home}/dml-study/.venv
mkdir -p {home}/.ssh && chmod 700 {home} {home}/.ssh
cp /mnt/own/authorized_keys {home}/.ssh/ && chmod 600 {home}/.ssh/authorized_keys
mount --bind /mnt/own/passwd /etc/passwd
hostname {name}
/usr/sbin/sshd -D -e -f /mnt/own/sshd_config 2>/mnt/own/sshd.log &
wait
"""

_SSHD_CONFIG = """\
Port 22
ListenAddress {address}
HostKey /mnt/own/host_key
PasswordAuthentication no
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
PidFile none
MaxStartups 50
MaxSessions 50
"""


def find_missing_requirement() -> str:
    """Return why this machine cannot create hosts, or an empty string if it can."""
    if sys.platform != "linux":
        return f"needs Linux, this is {sys.platform}"
    if os.geteuid() != 0:
        return "needs root to create namespaces"
    tools = ["ip", "unshare", "ssh", "ssh-keygen", "rsync", "mount", "hostname"]
    absent = [tool for tool in tools if shutil.which(tool) is None]
    if not Path("/usr/sbin/sshd").exists():
        absent.append("sshd")
    if absent:
        return f"needs {', '.join(absent)} (openssh-server, iproute2, rsync, util-linux)"
    probe = subprocess.run(
        ["unshare", "-nmpuif", "ip", "link", "add", "name", "br0", "type", "bridge"],
        capture_output=True,
        text=True,
    )
    return f"namespaces are not allowed here: {probe.stderr.strip()}" if probe.returncode else ""


@dataclass
class Host:
    """Host that consists of a network namespace and a first process with its own namespaces."""

    name: str
    address: str
    netns: str
    link: str
    folder: Path
    init: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def disconnect(self) -> None:
        """Disconnect the host from the network; its processes keep running."""
        _run_command("ip", "link", "set", self.link, "down")

    def reconnect(self) -> None:
        """Connect the host to the network again."""
        _run_command("ip", "link", "set", self.link, "up")

    def kill(self) -> None:
        """Kill every process of the host at once, like a power failure."""
        assert self.init is not None
        self.init.kill()  # unshare --kill-child: the namespace's first process dies with it
        self.init.wait()

    def list_processes(self) -> dict[int, str]:
        """Return command lines by process id, without the first process and sshd."""
        namespace = Path(f"/proc/{self.get_first_pid()}/ns/pid").readlink()
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                is_own = Path(f"/proc/{process.pid}/ns/pid").readlink() == namespace
                if is_own and process.pid != self.get_first_pid() and "sshd" not in process.name():
                    found[process.pid] = " ".join(process.cmdline())  # raises for a zombie
        return found

    def find_processes(self, name: str) -> list[int]:
        """Return the ids of the processes whose command lines contain `name`."""
        return [pid for pid, command in self.list_processes().items() if name in command]

    def get_first_pid(self) -> int:
        """Return the id of the first process of the host's namespace."""
        assert self.init is not None
        children = psutil.Process(self.init.pid).children(recursive=True)
        own_namespace = Path("/proc/self/ns/pid").readlink()
        for child in children:
            if Path(f"/proc/{child.pid}/ns/pid").readlink() != own_namespace:
                return int(child.pid)
        raise RuntimeError(f"{self.name} is not running")


@contextlib.contextmanager
def start_hosts(folder: Path, names: Sequence[str]) -> Iterator[tuple[list[Host], Path]]:
    """Start hosts on a new bridge and yield them with their private key; remove them at the end."""
    tag = f"{os.getpid() % 100000}"
    subnet = f"10.213.{os.getpid() % 250}"
    bridge = f"dml{tag}"
    key = folder / "key"
    _run_command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    (folder / "shared").mkdir()
    hosts: list[Host] = []
    _run_command("ip", "link", "add", bridge, "type", "bridge")
    try:
        _run_command("ip", "address", "add", f"{subnet}.254/24", "dev", bridge)
        _run_command("ip", "link", "set", bridge, "up")
        for number, name in enumerate(names, start=1):
            host = Host(
                name=name,
                address=f"{subnet}.{number}",
                netns=f"dml-{tag}-{name}",
                link=f"dml{tag}v{number}",
                folder=folder,
            )
            hosts.append(host)
            _connect_host(host, bridge)
            _start_host(host, key)
        for host in hosts:
            _wait_for_ssh(host)
        yield hosts, key
    finally:
        for host in hosts:
            if host.init is not None:
                host.kill()
            subprocess.run(["ip", "netns", "del", host.netns], capture_output=True)
            subprocess.run(["ip", "link", "del", host.link], capture_output=True)
        _run_command("ip", "link", "del", bridge)


def _connect_host(host: Host, bridge: str) -> None:
    _run_command("ip", "netns", "add", host.netns)
    _run_command("ip", "link", "add", host.link, "type", "veth", "peer", "name", "eth0",
         "netns", host.netns)  # fmt: skip
    _run_command("ip", "link", "set", host.link, "master", bridge, "up")
    inside = ("ip", "-n", host.netns)
    _run_command(*inside, "address", "add", f"{host.address}/24", "dev", "eth0")
    _run_command(*inside, "link", "set", "lo", "up")
    _run_command(*inside, "link", "set", "eth0", "up")
    # Ray determines its address from the default route. Packets cannot leave this bridge.
    _run_command(*inside, "route", "add", "default", "dev", "eth0")


def _start_host(host: Host, key: Path) -> None:
    own = host.folder / host.name
    own.mkdir()
    _run_command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(own / "host_key"))
    shutil.copy(key.with_suffix(".pub"), own / "authorized_keys")
    (own / "pip.conf").write_text(_PIP_CONFIG)
    (own / "sshd_config").write_text(_SSHD_CONFIG.format(address=host.address))
    (own / "passwd").write_text(
        f"root:x:0:0:root:{HOME_DIRECTORY}:/bin/bash\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )
    hidden = [path for path in REQUIRED_DIRECTORIES if path.startswith(PRIVATE_DIRECTORIES)]
    keep = [f"mkdir /mnt/{i} && mount --bind {path} /mnt/{i}" for i, path in enumerate(hidden)]
    back = [f"mkdir -p {path} && mount --bind /mnt/{i} {path}" for i, path in enumerate(hidden)]
    script = _INIT_SCRIPT.format(
        shared=SHARED_DIRECTORY,
        folder=host.folder,
        name=host.name,
        home=HOME_DIRECTORY,
        prefix=sys.prefix,
        keep="\n".join(keep),
        bring_back="\n".join(back),
    )
    (own / "init.sh").write_text(script)
    with (own / "init.log").open("wb") as log:
        host.init = subprocess.Popen(
            ["ip", "netns", "exec", host.netns, "unshare", "--pid", "--mount", "--uts", "--ipc",
             "--fork", "--mount-proc", "--kill-child", "bash", str(own / "init.sh")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "HOME": HOME_DIRECTORY, "LANG": "C.UTF-8"},
            start_new_session=True,
        )  # fmt: skip


def _wait_for_ssh(host: Host) -> None:
    import socket

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((host.address, 22), timeout=1):
            return
        time.sleep(0.1)
    own = host.folder / host.name
    logs = [path.read_text() for path in (own / "init.log", own / "sshd.log") if path.exists()]
    raise RuntimeError(f"{host.name} has no sshd: {' '.join(logs)}")


def _run_command(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
