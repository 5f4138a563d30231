"""The page's server: reads run directories, answers in JSON, and can stop and resume a run."""

from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from roboloop.core.errors import UserError
from roboloop.dash import detail
from roboloop.dash.catalog import MEDIA, RunCatalog, listed
from roboloop.dash.curves import ChartView, Curves, Member
from roboloop.dash.guard import AccessGuard, Pass
from roboloop.dash.series import Logs
from roboloop.launch.control import resume_run, stop_run
from roboloop.track.metrics import finite

STATIC = Path(__file__).parent / "static"
_MOST_RUNS = 1000
_MOST_DIGITS = 18
"""Of a place in a log: no file is longer."""
Answer = Callable[[Request], Response]


class Page:
    """All answers of the page."""

    def __init__(self, catalog: RunCatalog, entry: Pass, logs: Logs) -> None:
        self.catalog, self.entry, self.logs = catalog, entry, logs
        self.curves = Curves(logs)
        self._lock = threading.Lock()

    def enter(self, request: Request) -> Response:
        """Give a browser that showed the token its cookie."""
        answer = Response(status_code=204)
        answer.set_cookie(self.entry.cookie_name, self.entry.cookie_value, httponly=True, samesite="strict", path="/")
        return answer

    def runs(self, request: Request) -> Response:
        """List all runs."""
        runs, roots = listed(self.catalog), [str(root) for root in self.catalog.roots]
        return _json({"runs": runs, "roots": roots, "looking": self.catalog.is_looking()})

    def keys(self, request: Request) -> Response:
        """Name all that some runs logged."""
        return _json({"keys": self.curves.keys([member.path for member in self._members(request)])})

    def lines(self, request: Request) -> Response:
        """Return curves of some runs, or 204 where they are as they were."""
        members, asked = self._members(request), request.query_params
        version = self.curves.version([member.path for member in members])
        if asked.get("known") == version:
            return Response(status_code=204)
        try:
            low, high = (float(asked[name]) if asked.get(name) else None for name in ("low", "high"))
            view = ChartView(asked["key"], asked.get("x", "steps"), float(asked.get("smoothing", 0)),
                        int(asked.get("columns", 800)), low, high)  # fmt: skip
        except (KeyError, ValueError):
            return _refuse("key, smoothing, columns, low and high are needed as numbers", 400)
        with self._lock:  # one picture at a time: two would only take turns
            made = self.curves.bands(members, view) if asked.get("by") == "group" else self.curves.lines(members, view)
        return _json({"version": version, "lines": made, "reading": self.logs.is_reading()})

    def run(self, request: Request) -> Response:
        """Return everything about one run, or 204 where it is as it was."""
        run = self._run(request)
        version = detail.version(run, self.logs)
        if request.query_params.get("known") == version:
            return Response(status_code=204)
        return _json({"version": version, **detail.detail(run, self.logs)})

    def log(self, request: Request) -> Response:
        """Return the end of what a run said, or what it said since."""
        start = request.query_params.get("from", "")
        is_place = start.isdecimal() and len(start) <= _MOST_DIGITS
        return _json(detail.tail(self._run(request), int(start) if is_place else None))

    def diff(self, request: Request) -> Response:
        """Return the settings in which runs differ."""
        return _json(detail.differences([member.path for member in self._members(request)][:20]))

    def sheet(self, request: Request) -> Response:
        """Return a dataset's contact sheet."""
        return Response(detail.sheet(self._run(request), request.path_params["name"]), media_type="image/png")

    def media(self, request: Request) -> Response:
        """Return a film or picture, in parts where the browser asks so."""
        inner = request.path_params["inner"]
        path = self.catalog.media(request.path_params["run"], inner)
        # of the name that was asked for: what it links to may have another
        return FileResponse(path, media_type=MEDIA[Path(inner).suffix.lower()], content_disposition_type="inline")

    def stop(self, request: Request) -> Response:
        """Let a run save and end."""
        return self._act(request, stop_run)

    def resume(self, request: Request) -> Response:
        """Go on with a run."""
        return self._act(request, resume_run)

    def _act(self, request: Request, act: Callable[[Path], str]) -> Response:
        said = act(self._run(request))
        self.catalog.forget()
        return _json({"said": said})

    def _run(self, request: Request) -> Path:
        return self.catalog.run(request.path_params["run"])

    def _members(self, request: Request) -> list[Member]:
        rows = self.catalog.rows()
        ids = [run_id for run_id in request.query_params.get("runs", "").split(",") if run_id in rows][:_MOST_RUNS]
        found = []
        for run_id in dict.fromkeys(ids):
            row = rows[run_id]
            name = Path(self.catalog.name(row.path)).parent
            group = f"{row.info.experiment}/{row.info.task}" if row.info else str(name)
            found.append(Member(run_id, row.path, group))
        return found


def make_app(roots: list[Path], token: str, port: int, names: frozenset[str], logs: Logs | None = None) -> Starlette:
    """Return the page for runs under some roots; ``names`` are the hosts, with port, under which it is served."""
    page = Page(RunCatalog(roots), Pass(token, port), logs or Logs())
    routes = [
        Route("/", lambda request: FileResponse(STATIC / "index.html"), methods=["GET"]),
        Mount("/static", StaticFiles(directory=STATIC)),
        *(Route(path, _guarded(answer, page.logs), methods=["GET"]) for path, answer in {
            "/enter": page.enter,
            "/api/runs": page.runs,
            "/api/keys": page.keys,
            "/api/curves": page.lines,
            "/api/diff": page.diff,
            "/api/run/{run}": page.run,
            "/api/log/{run}": page.log,
            "/sheet/{run}/{name}": page.sheet,
            "/media/{run}/{inner:path}": page.media,
        }.items()),
        Route("/api/stop/{run}", _guarded(page.stop, page.logs), methods=["POST"]),
        Route("/api/resume/{run}", _guarded(page.resume, page.logs), methods=["POST"]),
    ]  # fmt: skip
    app = Starlette(routes=routes, middleware=[Middleware(AccessGuard, entry=page.entry, names=names)])
    app.state.page = page
    return app


def read_in_background(logs: Logs, stop: threading.Event) -> threading.Thread:
    """Turn sketches into whole curves while nobody waits."""

    def work() -> None:
        while not stop.is_set():
            if logs.is_asked():
                stop.wait(0.005)
            elif not logs.work():
                logs.wake.wait(0.2)
            else:
                stop.wait(0.001)  # requests come first

    thread = threading.Thread(target=work, name="dash-reader", daemon=True)
    thread.start()
    return thread


def _guarded(answer: Answer, logs: Logs) -> Answer:
    """Answer before anything is read in the background, and turn what a user can mend into one line."""

    def guarded(request: Request) -> Response:
        try:
            with logs.asked():
                return answer(request)
        except UserError as error:
            known = "no such" in str(error)
            return _refuse(str(error), 404 if known else 409)
        except OSError as error:  # files that went meanwhile, or are not ours to read
            return _refuse(f"{error.filename or 'a file'}: {error.strerror or error}", 409)
        except Exception as error:  # a bug, or files that nobody thought of: the page goes on, and the terminal is told
            traceback.print_exc()
            return _refuse(
                f"this cannot be shown ({type(error).__name__}); the terminal of roboloop dash says why", 500
            )

    return guarded


def _json(content: Any) -> Response:
    try:
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    except ValueError:  # a log or a status may hold what no number is; looking for it each time would take longer
        text = json.dumps(finite(content), allow_nan=False, separators=(",", ":"))
    return Response(text, media_type="application/json")


def _refuse(line: str, code: int) -> Response:
    return Response(json.dumps({"error": line}), code, media_type="application/json")
