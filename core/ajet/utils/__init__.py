"""Helpers that do not depend on training: files, threads, event loops, function signatures, similar names.

Everything else may import them; of AgentJet they import only `ajet.types`.
"""
