"""The image of the tests' sandboxes: Debian, Python, mini-swe-agent and Claude Code, built once for all checkouts.

    .venv-harbor/bin/python -m tests.plugins.harbor.image

No registry of images is asked: debootstrap fetches Debian from the mirror that apt is configured to use, and uv and npm
the agents from the indexes that they are configured to use. Building takes some minutes, so the image is kept in
``$AJET_CACHE``, with a container storage of its own, beside which Podman's configuration lies: what the tests start and
remove is never the user's.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

REPOSITORY = Path(__file__).parents[3]
RELEASE = "bookworm"
PACKAGES = "python3,git,procps,ca-certificates,tmux"
MINI_SWE_AGENT = "mini-swe-agent==2.4.6"
CLAUDE_CODE = (
    f"@anthropic-ai/claude-code-linux-{'arm64' if platform.machine() == 'aarch64' else 'x64'}@2.1.332"
)
NEEDED = ("podman", "podman-compose", "runc", "debootstrap", "npm")

CONTAINERS = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
netns = "host"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
"""
"""runc also takes machines that mount both versions of cgroups."""


def lacking() -> str:
    """Why these tests cannot run here; empty if they can."""
    if sys.platform != "linux":
        return "they need Linux"
    if missing := [program for program in NEEDED if not shutil.which(program, path=with_ours())]:
        return f"they need {', '.join(missing)} on the PATH"
    if not any(
        Path(folder, "podman/catatonit").exists()
        for folder in ("/usr/libexec", "/usr/lib", "/usr/local/libexec")
    ):
        return "they need catatonit, which Podman starts as the first process of a container"
    if os.geteuid():
        return "debootstrap needs root"
    return ""


def configure() -> None:
    """Let every Podman that this process starts use the tests' own storage and configuration."""
    os.environ["PATH"] = with_ours()
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "containers.conf").write_text(CONTAINERS)
    storage = (
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder / "storage"}"\nrunroot = "{folder / "run"}"\n'
    )
    (folder / "storage.conf").write_text(storage)
    os.environ["CONTAINERS_CONF"] = str(folder / "containers.conf")
    os.environ["CONTAINERS_STORAGE_CONF"] = str(folder / "storage.conf")


def with_ours() -> str:
    """The PATH, with the programs of this environment."""
    folders = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(dict.fromkeys([str(Path(sys.executable).parent), *folders]))


def name() -> str:
    """The image's, which differs with what is in it."""
    inside = f"{RELEASE} {PACKAGES} {MINI_SWE_AGENT} {CLAUDE_CODE} {inspect.getsource(fill)}"
    return "localhost/ajet-harbor-tests:" + hashlib.sha256(inside.encode()).hexdigest()[:12]


def cache() -> Path:
    """The folder that keeps storage and image."""
    return Path(os.environ.get("AJET_CACHE") or "~/.cache/ajet").expanduser().resolve() / "harbor-tests"


def build() -> str:
    """The image's name, once it is in the storage."""
    configure()
    image = name()
    with FileLock(cache() / "lock"):
        if subprocess.run(["podman", "image", "exists", image]).returncode:
            with tempfile.TemporaryDirectory(dir=cache()) as folder:
                fill(Path(folder) / "root")
                changes = "--change 'ENV PATH=/usr/local/bin:/usr/bin:/bin' --change 'WORKDIR /app'"
                command = f"tar -C {folder}/root -c . | podman import {changes} - {image}"
                run("bash", "-o", "pipefail", "-c", command)
    return image


def fill(root: Path) -> None:
    """Put Debian and the agents into a folder."""
    run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE, str(root), mirror())
    shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
    (root / "app").mkdir()
    folder = root / "opt/mini-swe-agent"
    install = [sys.executable, str(REPOSITORY / "tools/install.py")]
    run(
        *install,
        "--python-version",
        "3.11",
        "--only-binary",
        ":all:",
        "--target",
        str(folder),
        MINI_SWE_AGENT,
    )
    program = root / "usr/local/bin/mini-swe-agent"
    program.write_text(
        '#!/bin/sh\nPYTHONPATH=/opt/mini-swe-agent exec python3 -m minisweagent.run.mini "$@"\n'
    )
    program.chmod(0o755)
    with tempfile.TemporaryDirectory() as packed:
        run("npm", "pack", "--silent", "--pack-destination", packed, CLAUDE_CODE)
        run("tar", "-x", "-z", "-C", packed, "-f", *map(str, Path(packed).glob("*.tgz")))
        shutil.copy(Path(packed) / "package/claude", root / "usr/local/bin/claude")


def mirror() -> str:
    """The address of the Debian archive that this machine's apt is configured to use."""
    asked = ["apt-get", "indextargets", "--format", "$(COMPONENT) $(REPO_URI)", "Created-By: Packages"]
    lines = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.splitlines()
    return next(
        address for component, _, address in (line.partition(" ") for line in lines) if component == "main"
    )


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    if reason := lacking():
        sys.exit(f"The tests of the plugin harbor cannot run here: {reason}.")
    print(build())
