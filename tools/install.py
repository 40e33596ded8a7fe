"""Install packages into the environment of the Python that runs this: with uv, or with pip if uv fails.

    .venv/bin/python tools/install.py ARGUMENTS OF `pip install`

uv takes a tenth of pip's CPU time and prints a line for each large package, also without a terminal. It does not read
pip's configuration, so this passes on the package sources that pip is configured to use.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

PIP = [sys.executable, "-m", "pip"]
PASSED_ON = {
    "find-links": ("UV_FIND_LINKS", ","),
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "no-index": ("UV_NO_INDEX", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
}
"""pip's option: uv's environment variable, and the separator between several values."""


def main() -> None:
    arguments = sys.argv[1:]
    uv = find_uv()
    if uv and install([*uv, "pip", "install", "--python", sys.executable, *arguments], uv_environment()):
        return
    print("uv cannot install this here; using pip, which takes a few minutes longer.", flush=True)
    sys.exit(0 if install([*PIP, "install", "--no-input", "--no-compile", *arguments]) else 1)


def find_uv() -> list[str]:
    """The command of the uv on the PATH, else of the one beside this Python, which is installed if needed; empty if it
    cannot be."""
    if found := shutil.which("uv"):
        return [found]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    own = [sys.executable, "-m", "uv"]
    there = (
        subprocess.run([*own, "--version"], **quiet).returncode == 0
        or subprocess.run([*PIP, "install", "--no-input", "uv"], **quiet).returncode == 0
    )
    return own if there else []


def install(command: list[str], environment: Mapping[str, str] | None = None) -> bool:
    """Run an installer with its output on the terminal; whether it succeeded."""
    return subprocess.run(command, stdin=subprocess.DEVNULL, env=environment).returncode == 0


def uv_environment() -> dict[str, str]:
    """This process's environment, plus uv's variables from pip's configuration unless they are already set."""
    printed = subprocess.run([*PIP, "config", "list"], check=True, capture_output=True, text=True).stdout
    return {**from_pip(printed), **os.environ}


def from_pip(printed: str) -> dict[str, str]:
    """uv's variables for the output of ``pip config list``."""
    found: dict[str, str] = {}
    for line in sorted(printed.splitlines(), key=rank):
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2].removeprefix("default-")
        if name in PASSED_ON:
            variable, separator = PASSED_ON[name]
            found[variable] = separator.join(str(ast.literal_eval(value)).split())
    if "UV_INDEX" in found:
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip does: the best version of all indexes
    return found


def rank(line: str) -> int:
    """Sort key for the order in which pip reads its configuration; later values win: a file's `global.name='value'` and
    `install.name=…`, then the environment's `:env:.name=…`."""
    return 2 * line.startswith(":env:") + line.startswith("install.")


if __name__ == "__main__":
    main()
