"""Surrounds a program with bubblewrap: no network but the gateway, no files but its own, no other processes.

The sandbox has a network of its own. In it, a few lines of Python listen at the gateway's port, hand the listening socket to this
process and become the program. What connects there is relayed from here to the gateway, so nothing else can be reached and no
further process is needed. All processes in the sandbox die with its first one.

Root builds the sandbox as root, so that it may show what only root may look up, and without a user namespace, which many machines
refuse. The program then becomes an unused user without capabilities (`ajet_commands.privileges`).
"""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ajet.interfaces.workflow import EpisodeEndpoint
from ajet.utils.threads import to_its_end
from ajet_commands.privileges import filter_of_calls, give, unused_id

IN_SANDBOX = Path("/tmp/ajet-episode")
"""Where a program finds the folders of its episode."""
_PROGRAM = "bwrap"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS = (
    "alternatives ca-certificates group hosts java* ld.so.cache ld.so.conf ld.so.conf.d localtime mime.types nsswitch.conf passwd "
    "pki/ca-trust pki/tls/certs protocols python3 services ssl/certs ssl/openssl.cnf"
)
"""What is visible of /etc."""
_INSTALLED = ("bin", "lib", "lib64", "libexec", "pyvenv.cfg")
"""What is visible of the folder in which a program is installed."""
_TMP = 1 << 30
"""Bytes of the sandbox's /tmp, and of its /dev/shm: both are in memory."""
_LONGEST_FIRST_LINE = 4096
_MOST_CONNECTIONS = 256
"""Of one sandbox to the gateway, at once."""
_MOST_TASKS = 4096
"""Processes and threads that the kernel lets a sandbox have. The user, or the user namespace, is its own, so no others count."""
_BECOME = """
import os, resource, socket, sys
owner = int(sys.argv[1])
if owner:
    import ctypes
    libc = ctypes.CDLL(None)
    for capability in range(64):
        libc.prctl(24, capability, 0, 0, 0)
    os.setgroups([])
    os.setresgid(owner, owner, owner)
    os.setresuid(owner, owner, owner)
    libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
for kind, limit in ((resource.RLIMIT_NPROC, int(sys.argv[2])), (resource.RLIMIT_CORE, 0)):
    hard = resource.getrlimit(kind)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, limit))
"""
"""Gives up root and its capabilities, and takes the limits."""
_LISTEN = """
port, channel, *command = sys.argv[3:]
listening = socket.create_server(("127.0.0.1", int(port)), backlog=128)
with socket.socket(fileno=int(channel)) as channel:
    socket.send_fds(channel, [b"."], [listening.fileno()])
    channel.recv(1)
os.write(1, b"\\n")
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.exit(f"{command[0]}: {error.strerror}")
"""
"""Becomes the command when the socket has been taken. Python closes its sockets at exec. An empty line on stdout says which process
is the program."""


@dataclass(frozen=True, slots=True)
class Sandboxed:
    """A command in a sandbox."""

    command: Sequence[str]
    pass_fds: Sequence[int]


def check_sandbox() -> None:
    """Raise ValueError with the remedy if this machine has no bubblewrap that works."""
    if reason := _unusable():
        raise ValueError(reason)


@functools.cache
def _unusable() -> str:
    if shutil.which(_PROGRAM) is None:
        return (
            "the sandbox bubblewrap needs the program bwrap. Install it (Debian and Ubuntu: apt-get install bubblewrap), or set "
            "sandbox: none, in which the agent's commands can do what you can"
        )
    try:
        with _filtered() as filtered:
            python = [os.path.realpath(sys.executable), "-I", "-S", "-c", _BECOME]
            everything = ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--"]
            owner = unused_id()
            tried = subprocess.run(
                [*_walls(owner, filtered), *everything, *python, str(owner or 0), str(_MOST_TASKS)],
                capture_output=True,
                text=True,
                pass_fds=[filtered],
            )
    except ValueError as error:
        return str(error)
    if tried.returncode == 0:
        return ""
    return (
        f"bubblewrap does not work here: {tried.stderr.strip()[-300:]}. Allow namespaces (in a container: user namespaces or "
        "CAP_SYS_ADMIN), or set sandbox: none, in which the agent's commands can do what you can"
    )


@asynccontextmanager
async def sandboxed(
    command: Sequence[str],
    folder: Path,
    writable: Mapping[Path, Path],
    readable: Sequence[Path],
    endpoint: EpisodeEndpoint,
) -> AsyncIterator[Sandboxed]:
    """A block in which the command can be run. It runs in ``folder``, sees ``readable`` at their own paths and each of ``writable``
    at the one that is given for it, and reaches the gateway at the port of ``endpoint`` on 127.0.0.1. Where root calls this,
    ``writable`` is given to the user that the command becomes."""
    url = urlsplit(endpoint.base_url)
    port = url.port or (443 if url.scheme == "https" else 80)
    owner = unused_id()
    if owner is not None:
        for path in writable:
            await to_its_end(functools.partial(give, path, owner))
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs, _filtered() as filtered:
        python = os.path.realpath(sys.executable)
        shown = [*_system(), *_read_only([*installation(command[0]), *installation(python), *readable])]
        walls = [*_walls(owner, filtered), *shown, "--proc", "/proc", "--dev", "/dev", *_tmp("/dev/shm")]
        for path, seen in writable.items():
            walls += [*_above(seen), "--bind", str(path), str(seen)]
        walls += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(folder), "--"]
        inner = [python, "-I", "-S", "-c", _BECOME + _LISTEN, str(owner or 0), str(_MOST_TASKS)]
        inner += [str(port), str(theirs.fileno()), *command]
        async with _relayed(ours, url.hostname or "127.0.0.1", port):
            yield Sandboxed([*walls, *inner], [theirs.fileno(), filtered])


def _walls(owner: int | None, filtered: int) -> list[str]:
    """bubblewrap with namespaces and a filter of system calls, which it reads from a descriptor."""
    walls = [
        _PROGRAM,
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-uts",
        "--unshare-cgroup-try",
    ]
    if owner is None:
        walls += ["--unshare-user"]
    walls += ["--cap-drop", "ALL"]
    if owner is not None:
        walls += [word for name in ("SETUID", "SETGID", "SETPCAP") for word in ("--cap-add", f"CAP_{name}")]
    return [*walls, "--die-with-parent", "--hostname", "sandbox", "--seccomp", str(filtered)]


@contextmanager
def _filtered() -> Iterator[int]:
    """A descriptor from which the filter of system calls can be read. Raises ValueError."""
    filtered = filter_of_calls()
    reader, writer = os.pipe()
    try:
        with open(writer, "wb") as file:
            file.write(filtered)
        yield reader
    finally:
        os.close(reader)


def _tmp(path: str) -> list[str]:
    return ["--perms", "1777", "--size", str(_TMP), "--tmpfs", path]


def inside(endpoint: EpisodeEndpoint) -> EpisodeEndpoint:
    """The endpoint as a program in the sandbox reaches it."""
    url = urlsplit(endpoint.base_url)
    port = f":{url.port}" if url.port else ""
    return endpoint._replace(base_url=url._replace(netloc=f"127.0.0.1{port}").geturl())


def installation(program: str) -> list[Path]:
    """Where a program and its libraries are: the folders of the place in which it, or what its link leads to, is installed, and
    nothing else of that place, which may be a home; for a script, also those of its interpreter. A program that is in no ``bin``
    is a file of its own."""
    places: list[Path] = []
    programs = [each for each in (program, _interpreter(program)) if each]
    for path in map(Path, dict.fromkeys([*programs, *map(os.path.realpath, programs)])):
        within = path.parent.name == "bin"
        places += [path.parent.parent / name for name in _INSTALLED] if within else [path]
    return [path for path in places if path.exists()]


def _interpreter(program: str) -> str | None:
    """The program that runs a script, as its first line says, such as the Python of a virtual environment, which may be a link out
    of it."""
    try:
        with open(program, "rb") as file:
            first = file.readline(_LONGEST_FIRST_LINE).decode(errors="replace")
    except OSError:
        return None
    named = first.removeprefix("#!").split() if first.startswith("#!") else []
    if named and os.path.basename(named[0]) == "env":
        return next((shutil.which(word) for word in named[1:] if not word.startswith("-")), None)
    return named[0] if named else None


def _system() -> list[str]:
    words = ["--tmpfs", "/", *_tmp("/tmp")]
    for path in _SYSTEM:
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            words += ["--ro-bind", path, path]
    return words + _read_only([path for name in _SETTINGS.split() for path in Path("/etc").glob(name)])


def _read_only(paths: Sequence[Path]) -> list[str]:
    """The arguments that show these paths; a link is shown as such, with its target beside it."""
    words: list[str] = []
    for path in dict.fromkeys(paths):
        if path.exists() and not any(Path(path).is_relative_to(system) for system in _SYSTEM):
            words += [*_above(path), "--ro-bind", os.path.realpath(path), str(path)]
    return words


def _above(path: Path) -> list[str]:
    """The folders above a path, which every user may enter; bubblewrap would make them for root alone."""
    return [word for folder in reversed(Path(path).parents[:-1]) for word in ("--dir", str(folder))]


@asynccontextmanager
async def _relayed(channel: socket.socket, host: str, port: int) -> AsyncIterator[None]:
    """A block in which connections to the socket that comes through the channel are connected to the gateway."""
    relaying = asyncio.ensure_future(_relay(channel, host, port))
    try:
        yield
    finally:
        relaying.cancel()
        await asyncio.gather(relaying, return_exceptions=True)


async def _relay(channel: socket.socket, host: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(channel, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(channel)
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if not descriptors:
        return  # the sandbox could not be built, and says why
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        if len(connections) >= _MOST_CONNECTIONS:
            writer.close()
            return
        connections.add(task)
        try:
            await _joined(reader, writer, host, port)
        except asyncio.CancelledError:
            pass  # asyncio of Python 3.11 would print it as an error
        finally:
            connections.discard(task)

    server = await asyncio.start_server(connected, sock=socket.socket(fileno=descriptors[0]))
    await loop.sock_sendall(channel, b".")
    try:
        await server.serve_forever()
    finally:
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    """Carry the bytes of a connection to the gateway and back, until one side ends."""
    try:
        back, forth = await asyncio.open_connection(host, port)
    except OSError:
        writer.close()
        return
    ways = [asyncio.ensure_future(_carry(reader, forth)), asyncio.ensure_future(_carry(back, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        writer.close()
        forth.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
