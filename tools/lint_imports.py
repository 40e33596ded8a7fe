"""Check who may import whom.

    python tools/lint_imports.py            check
    python tools/lint_imports.py --write    write the list of modules anew, and check the rest

import-linter checks the contracts of pyproject.toml, in which `ajet_*` is every package of plugins/. Then this program checks what
plugins import of the core beside the public packages: the modules that `core_modules.toml` lists for each, no more and no fewer.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
EVERY = '"ajet_*"'
LIST = Path(__file__).with_name("core_modules.toml")
PUBLIC = ("ajet.interfaces", "ajet.testing", "ajet.environments")
WIDTH = 136


def main() -> None:
    """Check both; the exit code is 1 if one of them fails."""
    packages = sorted(folder.name for folder in ROOT.glob("plugins/*/ajet_*"))
    keeps_contracts = check_contracts(packages)
    imported = core_modules(packages)
    if "--write" in sys.argv[1:]:
        write(imported)
    faults = list(compared(imported, tomllib.loads(LIST.read_text(encoding="utf-8"))))
    print("\n".join(faults) or "Plugins import the modules of the core that tools/core_modules.toml lists.")
    sys.exit(bool(faults) or not keeps_contracts)


def check_contracts(packages: Iterable[str]) -> bool:
    """Write the contracts with all names, and whether import-linter finds them kept."""
    names = ", ".join(f'"{package}"' for package in packages)
    contracts = ROOT / "build" / "contracts.toml"
    contracts.parent.mkdir(exist_ok=True)
    contracts.write_text(
        (ROOT / "pyproject.toml").read_text(encoding="utf-8").replace(EVERY, names), encoding="utf-8"
    )
    program = Path(sys.executable).with_name("lint-imports")
    return (
        subprocess.run([program, "--no-cache", "--config", contracts], cwd=ROOT, check=False).returncode == 0
    )


def core_modules(packages: Iterable[str]) -> dict[str, list[str]]:
    """What each package imports of the core beside the public packages, without the leading `ajet.`."""
    # A cache goes by times and has hidden changes.
    graph = grimp.build_graph("ajet", *packages, cache_dir=None)
    found: dict[str, set[str]] = {}
    for importer in graph.modules:
        package = importer.partition(".")[0]
        for module in graph.find_modules_directly_imported_by(importer) if package != "ajet" else ():
            if module.startswith("ajet.") and not is_public(module):
                found.setdefault(package, set()).add(module.removeprefix("ajet."))
    return {package: sorted(found[package]) for package in sorted(found)}


def is_public(module: str) -> bool:
    """Whether every plugin may import it, also one of another author."""
    return any(module == package or module.startswith(f"{package}.") for package in PUBLIC)


def compared(imported: Mapping[str, Iterable[str]], listed: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """A line for every module that only one of both has."""
    for package in sorted(imported.keys() | listed.keys()):
        has, may = set(imported.get(package, ())), set(listed.get(package, ()))
        for module in sorted(has - may):
            yield (
                f"{package} imports ajet.{module}, which tools/core_modules.toml does not list for it. "
                f"Use {', '.join(('ajet', *PUBLIC))}; if that cannot be, list it."
            )
        for module in sorted(may - has):
            yield f"{package} does not import ajet.{module}; remove it from tools/core_modules.toml."


def write(imported: Mapping[str, Iterable[str]]) -> None:
    """The list below its own first lines, which stay: a line or more for each folder of the core."""
    lines = [line for line in LIST.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    for package, modules in imported.items():
        lines += ["", f"{package} = ["]
        for _, of_folder in groupby(modules, key=lambda module: module.partition(".")[0]):
            lines += wrapped([f'"{module}",' for module in of_folder])
        lines.append("]")
    LIST.write_text("\n".join(lines) + "\n", encoding="utf-8")


def wrapped(words: Iterable[str]) -> Iterator[str]:
    """Indented lines of at most `WIDTH` characters."""
    line = "   "
    for word in words:
        if len(line) + 1 + len(word) > WIDTH:
            yield line
            line = "   "
        line += f" {word}"
    yield line


if __name__ == "__main__":
    main()
