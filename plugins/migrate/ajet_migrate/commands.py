"""``ajet config from-earlier`` and ``ajet config from-trinity``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def from_earlier(
    file: Annotated[
        Path, typer.Argument(metavar="OLD.yaml", help="A job file of the earlier AgentJet (0.0.1).")
    ],
) -> None:
    """Print the job file that says the same as one of the earlier AgentJet. Its comments: the keys without a counterpart."""
    from ajet_migrate.earlier.job_file import new_job_file

    print(new_job_file(file), end="")


def from_trinity(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A configuration file of Trinity-RFT.")],
    backbone: Annotated[str, typer.Option(help="The backbone that the job is for.")] = "local",
) -> None:
    """Print the job file that says the same as a configuration file of Trinity-RFT. On stderr: the keys without effect."""
    import yaml

    from ajet import ConfigError
    from ajet.utils.terminal import tell
    from ajet_migrate.job_files import records
    from ajet_trinity_files.files import job_values, trinity_file

    parsed = trinity_file(file, backbone)
    if parsed is None:
        said = "is not a configuration of Trinity-RFT" if file.is_file() else "no such file"
        raise ConfigError(f"{file}: {said}. Name a YAML file that `trinity run --config` takes.")
    values = job_values(parsed, records)
    for line in parsed.warnings():
        tell(line)
    print(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), end="")
