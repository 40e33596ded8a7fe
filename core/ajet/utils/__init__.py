"""Helpers that know nothing of training: files, threads, event loops, function signatures, names that are near misses.

Everything else may import them; they import nothing of AgentJet but `ajet.types`.
"""
