"""The site's bench/README.md shows the results of bench/results."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT, page, tool

PAGE = page("bench/README.md")
script = tool("benchmarks_page")
RESULTS = sorted(path.stem for path in script.RESULTS.glob("*.json"))


def test_every_table_of_the_script_has_a_place_in_the_page() -> None:
    assert re.findall(r"<!-- table: (\w+) -->", PAGE) == list(script.AREAS)


def test_the_site_has_tables_in_the_places_of_their_marks() -> None:
    shown = script.with_tables(PAGE)
    assert "<!-- table:" not in shown
    assert shown.count("|---|") >= len(script.AREAS)


def test_every_result_is_shown() -> None:
    assert sorted({name for area in script.AREAS.values() for name in area.names}) == RESULTS


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_says_when_where_and_by_which_program_it_was_made(name: str) -> None:
    found = script.read(name)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", found.date) and found.machine and found.figures
    program = found.command.split()[0]
    assert program == "make" or (ROOT / program).is_file()


def save(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "bench/save.py", *arguments], cwd=ROOT, capture_output=True, text=True
    )


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A result outside bench/results."""
    return tmp_path / "kept.json"


def test_the_last_line_of_a_benchmark_is_kept_with_its_origin(tmp_path: Path, kept: Path) -> None:
    bench = tmp_path / "bench.py"
    bench.write_text("import sys; print('a table'); print('{\"seed\": ' + sys.argv[2] + '}')")
    ran = save(kept.with_suffix(""), bench, "--seed", "3")
    assert ran.returncode == 0 and ran.stdout.startswith("a table\n"), ran.stderr
    found = script.Result(**json.loads(kept.read_text()))
    assert found.figures == {"seed": 3} and found.command == f"{bench} --seed 3"
    assert found.commit and found.date and "cores" in found.machine


def test_nothing_is_kept_of_a_benchmark_that_fails(tmp_path: Path, kept: Path) -> None:
    bench = tmp_path / "bench.py"
    bench.write_text("print('{}'); raise SystemExit(3)")
    assert save(kept.with_suffix(""), bench).returncode == 3
    assert not kept.exists()


def test_a_benchmark_of_another_machine_is_read_from_its_output(tmp_path: Path, kept: Path) -> None:
    figures = {"device": "a GPU", "ms": 1.5}
    (tmp_path / "output.json").write_text(json.dumps(figures))
    assert save("--read", tmp_path / "output.json", kept.with_suffix(""), "bench/gpu.py").returncode == 0
    found = script.Result(**json.loads(kept.read_text()))
    assert (found.machine, found.figures, found.command) == ("a GPU", figures, "bench/gpu.py")
