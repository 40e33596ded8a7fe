"""Capture behind a loopback socket, for subprocesses, other languages and other HTTP clients.

`server.Gateway` listens, finds the session of a request by its key and answers as the in-process hook does. `http_server`,
`connections` and `bodies` bound what a client can ask of it; `metrics` counts; `stopping` ends a server in bounded time.
"""
