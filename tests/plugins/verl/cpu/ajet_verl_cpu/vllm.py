"""Loaded by vLLM in its engine and worker processes (entry point group ``vllm.general_plugins``)."""

from __future__ import annotations

import os


def register() -> None:
    """Keep the weights of linear layers where `load_weights` finds them.

    vLLM's CPU build packs them for oneDNN and leaves an empty parameter without a ``weight_loader``, so that
    verl's first synchronisation of weights would fail, and the job hang.
    """
    if os.environ.get("VERL_PLATFORM") == "cpu":
        import vllm._custom_ops

        vllm._custom_ops._supports_onednn = False
