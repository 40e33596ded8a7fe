"""Which environment variables of `ajet run` the processes of a joined cluster get.

The processes of a cluster that the job starts itself inherit all of them. Those of another cluster have the variables
of their nodes, without the keys of the user.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from ajet.types import ConfigError

FORWARDED = (
    "*_API_KEY",
    "*_BASE_URL",
    "AJET_*",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "FLASH_ATTENTION_DETERMINISTIC",
    "GLOO_*",
    "HCCL_*",
    "HF_ENDPOINT",
    "HF_HUB_DISABLE_*",
    "HF_HUB_OFFLINE",
    "HF_TOKEN",
    "HSA_NO_SCRATCH_RECLAIM",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NCCL_*",
    "NO_PROXY",
    "PYTHONHASHSEED",
    "PYTORCH_*",
    "TOKENIZERS_PARALLELISM",
    "TORCH_*",
    "TRANSFORMERS_OFFLINE",
    "VERL_*",
    "VLLM_*",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
"""Names and patterns of variables that are forwarded without being asked for: keys, proxies, and settings of the
libraries that must be equal on all nodes."""
OF_A_NODE = ("*_HOME", "TORCH_EXTENSIONS_DIR", "VLLM_CACHE_ROOT", "VLLM_HOST_IP", "VLLM_PORT")
"""Variables that `FORWARDED` covers and that each node must have for itself."""


def forwarded(environment: Mapping[str, str], further: Iterable[str]) -> dict[str, str]:
    """The variables of ``environment`` to forward: those of `FORWARDED`, and the names and patterns ``further``. Raises
    ConfigError for a further name that is not set."""
    further = tuple(further)
    for name in further:
        if "*" not in name and name not in environment:
            raise ConfigError(
                f"backbone.verl.environment: {name} is not set where `ajet run` runs; export it there, or remove it."
            )
    return {
        name: value
        for name, value in environment.items()
        if _matches(name, further) or (_matches(name, FORWARDED) and not _matches(name, OF_A_NODE))
    }


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
