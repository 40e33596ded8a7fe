"""``ajet studio``: look at runs in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def studio(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN | FOLDER]", help="A run folder, or a folder with runs below it; default: runs."
        ),
    ] = None,
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

    from ajet.capture.gateway.listening import listen, url_of
    from ajet.cli.layers import tell
    from ajet_studio.library import Library
    from ajet_studio.security import LOOPBACK
    from ajet_studio.serving import StudioServer, warm_up

    library = Library(folder if folder is not None else Path(DEFAULT))
    if host not in LOOPBACK:
        tell(
            f"warning: {host} is not a loopback address: anyone who sees the traffic can read the token; use ssh -L instead."
        )
    token = secrets.token_urlsafe(24)
    with listen(host, port, "the studio") as listening:
        url = f"{url_of(*listening.getsockname()[:2])}/?token={token}"
        print(f"{library.folder} is at {url} (Ctrl-C stops it)", flush=True)
        warm_up()
        if browser:
            _open(url)
        try:
            StudioServer(library, listening, token, frozenset({host})).run()
        finally:
            library.close()


DEFAULT = "runs"
"""Where `ajet run` writes, `run.dir` of a job."""


def _open(url: str) -> None:
    """Open a page if this machine has a display."""
    import os
    import sys
    import webbrowser

    if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(url)
