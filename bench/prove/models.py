"""Writes the models of the other parts."""

from __future__ import annotations

from typing import Any

from prove.part import Options, main, make_models


def run(options: Options) -> dict[str, Any]:
    """The size of the larger model's files."""
    make_models(options)
    size = sum(file.stat().st_size for file in options.large.glob("*.safetensors"))
    return {"gib": round(size / 2**30, 3)}


if __name__ == "__main__":
    main(run, __doc__)
