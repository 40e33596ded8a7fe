"""``ajet studio``: look at runs in a browser."""

from __future__ import annotations

from typing import Annotated

import typer


def studio(
    what: Annotated[
        str,
        typer.Argument(
            metavar="[RUN | FOLDER | STORE]",
            help="A run folder, a folder with runs below it, or the store of `ajet online` (a file or URL).",
        ),
    ] = "runs",
    port: Annotated[int, typer.Option(help="Port; 0 means a free one.", min=0, max=65535)] = 8300,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but a loopback address is open to the network.")
    ] = "127.0.0.1",
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser if there is a display.")
    ] = True,
) -> None:
    """Show runs in a browser: curves, episodes, tokens, also while they run."""
    import secrets
    from contextlib import closing

    from ajet.capture.gateway.listening import listen, url_of
    from ajet.utils.terminal import tell
    from ajet_studio.library import open_library
    from ajet_studio.security import LOOPBACK
    from ajet_studio.serving import StudioServer, warm_up

    library = open_library(what)
    if host not in LOOPBACK:
        tell(
            f"warning: {host} is not a loopback address: anyone who sees the traffic can read the token; use ssh -L instead."
        )
    token = secrets.token_urlsafe(24)
    with closing(library), listen(host, port, "the studio") as listening:
        url = f"{url_of(*listening.getsockname()[:2])}/?token={token}"
        print(f"{library.name} is at {url} (Ctrl-C stops it)", flush=True)
        warm_up()
        if browser:
            _open(url)
        StudioServer(library, listening, token, frozenset({host})).run()


def _open(url: str) -> None:
    """Open a page if this machine has a display."""
    import os
    import sys
    import webbrowser

    if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(url)
