"""Hosts made of namespaces: their own address, processes, home, temporary files and sshd.

They share the machine's files otherwise, and each has this Python environment, with changes of its
own, as `~/dml-study/.venv`: an image with all but the project itself installed. This process is
outside, like a laptop; it reaches them by ssh alone.
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

HOME = "/tmp/home"
OWN = ("/tmp", "/run", "/mnt", "/dev/shm")
"""Folders of which each host has its own; this project and Python may be below one of them."""
NEEDED = sorted({str(Path(__file__).resolve().parents[2]), sys.prefix, sys.base_prefix})
SHARED = "/mnt/shared"

_PIP = """\
[global]
no-index = true
[install]
no-build-isolation = false
"""
"""Nothing can be fetched: pip has to find every version it wants here, or fail. (pip reads the last
line as "build isolation: false"; it would fetch setuptools anew.)"""

_INIT = """\
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

_SSHD = """\
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


def missing() -> str:
    """Why hosts cannot be made here; empty when they can."""
    if sys.platform != "linux":
        return f"needs Linux, this is {sys.platform}"
    if os.geteuid() != 0:
        return "needs root, to make namespaces"
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
    """One host: a network namespace and a process that is its first."""

    name: str
    address: str
    netns: str
    link: str
    folder: Path
    init: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def cut(self) -> None:
        """Take the host off the network; its processes go on."""
        _run("ip", "link", "set", self.link, "down")

    def mend(self) -> None:
        """Put the host back on the network."""
        _run("ip", "link", "set", self.link, "up")

    def kill(self) -> None:
        """End every process of the host at once, as a power cut does."""
        assert self.init is not None
        self.init.kill()  # unshare --kill-child: the namespace's first process dies with it
        self.init.wait()

    def processes(self) -> dict[int, str]:
        """What runs on the host besides its first process and sshd: command lines by number."""
        space = Path(f"/proc/{self.first()}/ns/pid").readlink()
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                mine = Path(f"/proc/{process.pid}/ns/pid").readlink() == space
                if mine and process.pid != self.first() and "sshd" not in process.name():
                    found[process.pid] = " ".join(process.cmdline())  # raises for a zombie
        return found

    def running(self, name: str) -> list[int]:
        """Processes of the host in whose command lines a word stands."""
        return [number for number, command in self.processes().items() if name in command]

    def first(self) -> int:
        """The process that is the first of its namespace."""
        assert self.init is not None
        children = psutil.Process(self.init.pid).children(recursive=True)
        space = Path("/proc/self/ns/pid").readlink()
        for child in children:
            if Path(f"/proc/{child.pid}/ns/pid").readlink() != space:
                return int(child.pid)
        raise RuntimeError(f"{self.name} is not running")


@contextlib.contextmanager
def hosts(folder: Path, names: Sequence[str]) -> Iterator[tuple[list[Host], Path]]:
    """Hosts on a bridge of their own, and the private key that opens them; all gone afterwards."""
    tag = f"{os.getpid() % 100000}"
    subnet = f"10.213.{os.getpid() % 250}"
    bridge = f"dml{tag}"
    key = folder / "key"
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    (folder / "shared").mkdir()
    made: list[Host] = []
    _run("ip", "link", "add", bridge, "type", "bridge")
    try:
        _run("ip", "address", "add", f"{subnet}.254/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for number, name in enumerate(names, start=1):
            host = Host(
                name=name,
                address=f"{subnet}.{number}",
                netns=f"dml-{tag}-{name}",
                link=f"dml{tag}v{number}",
                folder=folder,
            )
            made.append(host)
            _connect(host, bridge)
            _start(host, key)
        for host in made:
            _await_ssh(host)
        yield made, key
    finally:
        for host in made:
            if host.init is not None:
                host.kill()
            subprocess.run(["ip", "netns", "del", host.netns], capture_output=True)
            subprocess.run(["ip", "link", "del", host.link], capture_output=True)
        _run("ip", "link", "del", bridge)


def _connect(host: Host, bridge: str) -> None:
    _run("ip", "netns", "add", host.netns)
    _run("ip", "link", "add", host.link, "type", "veth", "peer", "name", "eth0",
         "netns", host.netns)  # fmt: skip
    _run("ip", "link", "set", host.link, "master", bridge, "up")
    inside = ("ip", "-n", host.netns)
    _run(*inside, "address", "add", f"{host.address}/24", "dev", "eth0")
    _run(*inside, "link", "set", "lo", "up")
    _run(*inside, "link", "set", "eth0", "up")
    # Ray asks which address it would use towards the world; nothing is ever sent there, and
    # nothing would get further than this bridge.
    _run(*inside, "route", "add", "default", "dev", "eth0")


def _start(host: Host, key: Path) -> None:
    own = host.folder / host.name
    own.mkdir()
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(own / "host_key"))
    shutil.copy(key.with_suffix(".pub"), own / "authorized_keys")
    (own / "pip.conf").write_text(_PIP)
    (own / "sshd_config").write_text(_SSHD.format(address=host.address))
    (own / "passwd").write_text(
        f"root:x:0:0:root:{HOME}:/bin/bash\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )
    hidden = [path for path in NEEDED if path.startswith(OWN)]
    keep = [f"mkdir /mnt/{i} && mount --bind {path} /mnt/{i}" for i, path in enumerate(hidden)]
    back = [f"mkdir -p {path} && mount --bind /mnt/{i} {path}" for i, path in enumerate(hidden)]
    script = _INIT.format(
        shared=SHARED,
        folder=host.folder,
        name=host.name,
        home=HOME,
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
            env={"PATH": os.environ["PATH"], "HOME": HOME, "LANG": "C.UTF-8"},
            start_new_session=True,
        )  # fmt: skip


def _await_ssh(host: Host) -> None:
    import socket

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((host.address, 22), timeout=1):
            return
        time.sleep(0.1)
    own = host.folder / host.name
    logs = [path.read_text() for path in (own / "init.log", own / "sshd.log") if path.exists()]
    raise RuntimeError(f"{host.name} has no sshd: {' '.join(logs)}")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
