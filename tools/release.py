"""Builds wheels and source distributions of AgentJet and its plugins from the last commit; the version is that of the newest tag.

    python tools/release.py            # into dist/

On the commit of the tag v0.3.0 the version is 0.3.0; five commits later, 0.3.1.dev5. The sources have the version 0.0.0
everywhere, also where one distribution requires another one, so that only a tag makes a release.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dunamai import Version

ROOT = Path(__file__).resolve().parents[1]
UNRELEASED = "0.0.0"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--output", type=Path, default=ROOT / "dist", help="the folder, which is emptied first"
    )
    options = parser.parse_args()
    version = newest(ROOT)
    shutil.rmtree(options.output, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        export(Path(folder))
        sources = distributions(Path(folder))
        for source in sources:
            prepare(source, version, Path(folder) / "LICENSE")
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda source: build(source, options.output.resolve()), sources))
    print(*sorted(path.name for path in options.output.iterdir()), sep="\n")


def newest(repository: Path) -> str:
    """The version of the last commit of a repository, by its newest tag such as v0.3.0."""
    return Version.from_git(path=repository).serialize(bump=True, metadata=False)


def git(*arguments: str) -> bytes:
    """What git prints in the repository."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def export(folder: Path) -> None:
    """Write the files of the last commit; uncommitted changes are left out."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", "HEAD"))) as archive:
        archive.extractall(folder, filter="data")


def distributions(root: Path) -> list[Path]:
    """The folders of AgentJet and its plugins."""
    return [root, *sorted(path.parent for path in root.glob("plugins/*/pyproject.toml"))]


def prepare(source: Path, version: str, license: Path) -> None:
    """Give a distribution its version and the licence's text."""
    project = source / "pyproject.toml"
    project.write_text(released(project.read_text(encoding="utf-8"), version), encoding="utf-8")
    if not (source / license.name).exists():
        shutil.copy(license, source)


def released(project: str, version: str) -> str:
    """A pyproject.toml with this version of AgentJet for itself and in its requirements."""
    ours = project.replace(f'version = "{UNRELEASED}"', f'version = "{version}"')
    return ours.replace(f'=={UNRELEASED}"', f'=={version}"')


def build(source: Path, output: Path) -> None:
    """Build one distribution; its wheel is built from its source distribution."""
    # The time of the commit in the archives: the same commit gives the same bytes.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct").decode().strip()}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(output), str(source)]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise SystemExit(f"{source.name}: {done.stdout}")


if __name__ == "__main__":
    main()
