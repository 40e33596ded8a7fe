"""The web server of the studio: addresses to the functions of the ``view_*`` modules, and answers as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ajet import AjetError
from ajet.chat.messages import REF
from ajet.rollout.image_folder import image_file
from ajet_studio import feedback, live, view_episodes, view_rejudged, view_runs, view_search, view_tokens
from ajet_studio.answers import RefusedView, error, json_answer, number, wrong
from ajet_studio.library import Library
from ajet_studio.opened import OpenRun
from ajet_studio.security import App, Guarded

PAGE = Path(__file__).parent / "page"
PAGES = ("/", "/compare", "/run", "/step", "/group", "/episode", "/versus", "/search")
MOST_BODY = 8 << 20
MOST_COMPARED = 6
"""Runs that a page follows; as many as it compares."""
log = logging.getLogger("ajet")
View = Callable[[OpenRun, Mapping[str, str]], dict[str, Any]]


def studio_app(
    library: Library, token: str, ending: asyncio.Event, hosts: frozenset[str] = frozenset()
) -> App:
    """The application that shows the runs of a library to a browser that was given the token. ``ending`` ends the streams
    of events; ``hosts`` are further names by which it may be addressed."""
    routes = [
        *(Route(path, _page) for path in PAGES),
        Mount("/page", StaticFiles(directory=PAGE)),
        Route("/api/runs", _answered(lambda request: view_runs.runs(library))),
        *(Route(f"/api/{name}", _answered(_of_run(library, view))) for name, view in VIEWS.items()),
        Route("/api/episode", _answered(_of_run(library, _episode_among(library)))),
        Route("/api/recording", _answered(_recording(library))),
        Route("/api/image", _answered(_image(library))),
        Route("/api/live", _live(library, ending)),
        Route("/api/feedback", _feedback(library), methods=["POST"]),
    ]
    return Guarded(Starlette(routes=routes, exception_handlers={HTTPException: _http_error}), token, hosts)


def _whole(query: Mapping[str, str], name: str, default: int = 0) -> int:
    return max(0, number(query.get(name), name, default) or 0)


VIEWS: dict[str, View] = {
    "run": lambda run, q: view_runs.run(run),
    "series": lambda run, q: view_runs.series(
        run, q.get("name", ""), q.get("phase", "train"), bool(q.get("clock"))
    ),
    "steps": lambda run, q: view_runs.steps(
        run,
        q.get("phase", "train"),
        number(q.get("after"), "after"),
        _whole(q, "limit", view_runs.MOST_STEPS),
    ),
    "tables": lambda run, q: view_runs.tables(run),
    "rejudged": lambda run, q: view_rejudged.rejudged(run),
    "log": lambda run, q: view_runs.log(run, q.get("name"), number(q.get("before"), "before")),
    "episodes": lambda run, q: view_episodes.episodes(run, q),
    "group": lambda run, q: view_episodes.group(
        run, q.get("phase", "train"), _whole(q, "step"), q.get("task", "")
    ),
    "grouptree": lambda run, q: view_episodes.group_tree(
        run, q.get("phase", "train"), _whole(q, "step"), q.get("task", "")
    ),
    "text": lambda run, q: view_episodes.text(
        run,
        q.get("id", ""),
        q.get("part", ""),
        _whole(q, "from"),
        _whole(q, "count", 1_000_000),
    ),
    "tokens": lambda run, q: view_tokens.tokens(
        run,
        q.get("id", ""),
        _whole(q, "timeline"),
        _whole(q, "from"),
        _whole(q, "count", view_tokens.MOST_TOKENS),
    ),
    "lines": lambda run, q: view_tokens.lines(run, q.get("id", ""), _whole(q, "timeline")),
    "tree": lambda run, q: view_tokens.tree(run, q.get("id", ""), _whole(q, "lane")),
    "search": lambda run, q: view_search.search(
        run, q.get("q", ""), _whole(q, "offset"), _whole(q, "limit", 50)
    ),
}
"""Questions about one run, by the last part of their address."""


def _recording(library: Library) -> Callable[[Request], Response]:
    def view(request: Request) -> Response:
        run = library.run(request.query_params.get("run", "."))
        row = run.row(request.query_params.get("id", ""))
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", row["id"]).strip("-.")[:80] or "episode"
        headers = {"content-disposition": f'attachment; filename="{name}.json"'}
        return Response(run.recording(row), media_type="application/json", headers=headers)

    return view


def _image(library: Library) -> Callable[[Request], Response]:
    def view(request: Request) -> Response:
        ref = request.query_params.get("ref", "")
        run = library.run(request.query_params.get("run", "."))
        path = image_file(run.dir, ref) if REF.fullmatch(ref) else None
        if path is None:
            raise AjetError("this image is not in the run's folder `images`.")
        return FileResponse(path, media_type=f"image/{path.suffix[1:]}")

    return view


def _episode_among(library: Library) -> View:
    return lambda run, q: view_episodes.episode(run, q.get("id", ""), library.beside(run))


async def _page(request: Request) -> Response:
    return FileResponse(PAGE / "index.html")


def _of_run(library: Library, view: View) -> Callable[[Request], dict[str, Any]]:
    def answer(request: Request) -> dict[str, Any]:
        run = library.run(request.query_params.get("run", "."))
        return {"run_name": run.title, **view(run, request.query_params)}

    return answer


def _answered(view: Callable[[Request], dict[str, Any] | Response]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        return await run_in_threadpool(_answer, view, request)

    return endpoint


def _answer(view: Callable[[Request], dict[str, Any] | Response], request: Request) -> Response:
    """The answer of a view, or the one line that says why there is none. Runs in a thread."""
    try:
        reply = view(request)
        return reply if isinstance(reply, Response) else json_answer(reply)
    except RefusedView as refused:
        return error(refused.status, str(refused))
    except FileNotFoundError as missing:
        return error(404, f"{missing.filename}: no such file; the run folder was deleted or moved")
    except OSError as fault:
        return error(500, f"{fault.filename or 'a file of the run'}: {fault.strerror or fault}")
    except sqlite3.Error as fault:
        return error(
            503, f"the index of the run cannot be read ({fault}); it is built anew, load the page again"
        )
    except AjetError as fault:
        return error(422, str(fault))
    except Exception as fault:
        log.debug("the studio failed at %s", request.url.path, exc_info=True)
        return error(500, f"{type(fault).__name__}: {fault}. This is a bug in the studio: please report it.")


def _live(library: Library, ending: asyncio.Event) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        query = request.query_params
        try:
            names = query.getlist("run") or ["."]
            if len(names) > MOST_COMPARED:
                raise RefusedView(400, f"{len(names)} runs: at most {MOST_COMPARED} can be followed at once.")
            runs = [await run_in_threadpool(library.run, name) for name in names]
            # Also without `seen` it is taken before the answer begins: what grows from now on is an event.
            seen = query.getlist("seen") or await run_in_threadpool(live.states, runs)
        except RefusedView as refused:
            return error(refused.status, str(refused))
        return StreamingResponse(live.changes(runs, seen, ending), media_type="text/event-stream")

    return endpoint


def _feedback(library: Library) -> Callable[[Request], Any]:
    def store(body: bytes) -> dict[str, Any]:
        try:
            given = json.loads(body)
        except (ValueError, RecursionError):
            raise wrong("the body is not JSON") from None
        checked = feedback.checked(given)
        run = library.run(str(given.get("run", ".")))
        row = run.row(str(given.get("id", "")))
        run.feedback.rate(row["id"], **checked)
        return {"ratings": run.feedback.ratings(row["id"])}

    async def endpoint(request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MOST_BODY:
                return error(413, f"the body is larger than {MOST_BODY:,} bytes")
        return await run_in_threadpool(_answer, lambda _: store(body), request)

    return endpoint


async def _http_error(request: Request, exception: Exception) -> Response:
    assert isinstance(exception, HTTPException)
    return error(exception.status_code, f"{request.url.path}: {exception.detail}")
