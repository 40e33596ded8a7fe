"""Where the time of a test run goes: a table by folder, of pytest's own report.

make test ARGS=--junitxml=build/tests.xml && python tools/test_times.py build/tests.xml
"""

from __future__ import annotations

import sys
from collections import defaultdict
from xml.etree import ElementTree

LONG = 1.0
"""Seconds from which on a test counts as long."""


def main() -> None:
    """Print the table; with a second argument, also so many of the longest tests."""
    times: dict[str, list[float]] = defaultdict(list)
    tests = []
    for case in ElementTree.parse(sys.argv[1]).iter("testcase"):
        seconds, module = float(case.get("time", 0)), str(case.get("classname"))
        times[_folder(module)].append(seconds)
        tests.append((seconds, f"{module.replace('.', '/')}.py::{case.get('name')}"))
    print("| tests | seconds | in tests over 1 s | number | of these |\n|---|---|---|---|---|")
    for folder, found in sorted(times.items(), key=lambda item: -sum(item[1])):
        print(_row(f"`{folder}`", found))
    print(_row("all", [seconds for found in times.values() for seconds in found]))
    for seconds, name in sorted(tests, reverse=True)[: int(sys.argv[2]) if len(sys.argv) > 2 else 0]:
        print(f"{seconds:7.1f}  {name}")


def _row(name: str, found: list[float]) -> str:
    long = [seconds for seconds in found if seconds > LONG]
    return f"| {name} | {sum(found):.0f} | {sum(long):.0f} | {len(found):,} | {len(long):,} |"


def _folder(module: str) -> str:
    parts = module.split(".")
    return "/".join(parts[: 3 if parts[1:2] == ["plugins"] and not parts[2].startswith("test_") else 2])


if __name__ == "__main__":
    main()
