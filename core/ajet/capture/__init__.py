"""Capture: LLM requests of any client are answered by our engine and recorded.

`hook` patches the HTTP clients' ``send``; `context` says which episode a call belongs to; `wires` turn
a request into a chat and an answer into the wire's JSON; `session` answers and records one episode.
"""
