"""What verl and vLLM need to run without a GPU, so that our tests drive them unmodified. Loaded by their own entry points.

Active only where VERL_PLATFORM=cpu.
"""
