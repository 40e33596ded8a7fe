"""Install packages into the environment of the Python that runs this: with uv, or with pip where uv fails.

    .venv/bin/python tools/install.py ARGUMENTS OF `pip install`

uv takes a tenth of pip's CPU time and prints a line for each large package, also without a terminal. It does not read
pip's configuration, so this hands on where pip is told to look for packages.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping

PIP = [sys.executable, "-m", "pip"]
UV = [sys.executable, "-m", "uv", "pip"]
HANDED_ON = {
    "find-links": ("UV_FIND_LINKS", ","),
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "no-index": ("UV_NO_INDEX", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
}
"""pip's options: uv's environment variables, and what separates several values in them."""


def main() -> None:
    arguments = sys.argv[1:]
    if has_uv() and install([*UV, "install", "--python", sys.executable, *arguments], uv_environment()):
        return
    print("uv cannot install this here; pip does, which takes a few minutes longer.", flush=True)
    sys.exit(0 if install([*PIP, "install", "--no-input", "--no-compile", *arguments]) else 1)


def has_uv() -> bool:
    """Whether uv is installed beside this Python, or can be."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return (
        subprocess.run([*UV, "--version"], **quiet).returncode == 0
        or subprocess.run([*PIP, "install", "--no-input", "uv"], **quiet).returncode == 0
    )


def install(command: list[str], environment: Mapping[str, str] | None = None) -> bool:
    """Run an installer, its output straight to the user; whether it succeeded."""
    return subprocess.run(command, stdin=subprocess.DEVNULL, env=environment).returncode == 0


def uv_environment() -> dict[str, str]:
    """This process's environment, with pip's configuration in uv's variables, unless these are set already."""
    printed = subprocess.run([*PIP, "config", "list"], check=True, capture_output=True, text=True).stdout
    return {**from_pip(printed), **os.environ}


def from_pip(printed: str) -> dict[str, str]:
    """uv's variables for the configuration that ``pip config list`` printed."""
    found: dict[str, str] = {}
    for line in sorted(printed.splitlines(), key=rank):
        place, _, value = line.partition("=")
        name = place.rpartition(".")[2].removeprefix("default-")
        if name in HANDED_ON:
            variable, separator = HANDED_ON[name]
            found[variable] = separator.join(str(ast.literal_eval(value)).split())
    if "UV_INDEX" in found:
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # pip takes the best version of all indexes
    return found


def rank(line: str) -> int:
    """The order in which pip reads its configuration, where the later value wins: a file's `global.name='value'` and
    `install.name=…`, then the environment's `:env:.name=…`."""
    return 2 * line.startswith(":env:") + line.startswith("install.")


if __name__ == "__main__":
    main()
