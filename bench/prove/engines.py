"""The engines that the parts open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ajet import EnginePlugin
from ajet.interfaces.progress import Silent
from prove.part import Options


@asynccontextmanager
async def opened(name: str, model: Path, options: Options, dtype: str) -> AsyncIterator[Any]:
    """The started engine of a name, over a model, in a type."""
    plugin: EnginePlugin
    if name == "vllm":
        from ajet_vllm.plugin import VLLMEnginePlugin

        cache = 0.1 if options.reduced else 4.0
        plugin = VLLMEnginePlugin(
            dtype=dtype, kv_cache_gib=cache, options={"enforce_eager": True} if options.reduced else {}
        )
    else:
        from ajet_local.backbone import LocalEnginePlugin

        plugin = LocalEnginePlugin(device=options.device.type, dtype=dtype)
    engine = plugin.build(str(model), 0, Silent())
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()
