"""The server's routes. Everything below ``/api`` and ``/ws`` needs the token (``security``).

A run is named by the query parameter ``run``, never by the path, and looked up in the list of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import Lifespan
from starlette.websockets import WebSocket

from parcade.errors import UsageError
from parcade.history.evaluations import meaning_of
from parcade.history.runs import Runs, UnknownRun
from parcade.machine.timing import SCOPES
from parcade.report.metrics import METRICS
from parcade.web import inside
from parcade.web.agent import Players
from parcade.web.curves import Curves
from parcade.web.live import Watcher, serve_live
from parcade.web.security import PROTOCOL, Gate, GateMiddleware
from parcade.web.wire import json_text

STATIC = Path(__file__).with_name("static")
MOST_NAMES = 400
DEFAULT_POINTS = 600


class Dashboard:
    """The routes of one server, over the runs of one directory."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.curves = Curves(runs)
        self.watcher = Watcher(runs.scan)
        self.players = Players()

    def routes(self) -> list[Route | WebSocketRoute]:
        """Return the routes of data and actions."""
        read: dict[str, Callable[[Request], Any]] = {
            "runs": lambda request: {
                "root": str(self.runs.root),
                "runs": self.runs.scan(),
                "not_shown": self.runs.not_shown,
            },
            "metrics": self._metrics,
            "curves": self._curves,
            "bands": self._bands,
            "run": lambda request: inside.describe(self._run(request)),
            "profile": lambda request: inside.profile_of(self._run(request)),
        }
        act: dict[str, Callable[[Request], Any]] = {
            "read-ahead": lambda request: self.curves.read_ahead(_names(request, "run")),
            "stacks": lambda request: inside.stacks_of(
                self._run(request), request.query_params.get("process", "")
            ),
            "doctor": lambda request: inside.examine(self._run(request)),
            "stop": self._stop,
        }
        return [
            *(Route(f"/api/{name}", answer(function), methods=["GET"]) for name, function in read.items()),
            *(Route(f"/api/{name}", answer(function), methods=["POST"]) for name, function in act.items()),
            Route("/api/csv", answer(self._csv), methods=["GET"]),
            WebSocketRoute("/ws/live", self._live),
            WebSocketRoute("/ws/agent", self._agent),
        ]

    def _run(self, request: Request) -> Path:
        return self.runs.path(request.query_params.get("run", ""))

    def _stop(self, request: Request) -> None:
        run = self._run(request)
        inside.request_stop(run, *self.runs.status(request.query_params["run"]))

    def _metrics(self, request: Request) -> dict[str, Any]:
        names = self.curves.metrics(_names(request, "run"))
        return {"metrics": {name: METRICS.get(name) or meaning_of(name) for name in names}, "scopes": SCOPES}

    def _curves(self, request: Request) -> dict[str, Any]:
        points = request.query_params.get("points", "")
        return self.curves.of(
            _names(request, "run"),
            _names(request, "metric"),
            request.query_params.get("x", "frames"),
            int(points) if points.isdecimal() and len(points) < 6 else DEFAULT_POINTS,
        )

    def _bands(self, request: Request) -> dict[str, Any]:
        groups: dict[str, list[str]] = {}
        listed = {summary["id"]: summary["group"] for summary in self.runs.scan()}
        for name in _names(request, "run"):
            if name not in listed:  # another page's scan may list it again by now
                raise UnknownRun(name)
            groups.setdefault(listed[name], []).append(name)
        query = request.query_params
        return self.curves.bands(groups, query.get("metric", "score_mean"), query.get("x", "frames"))

    def _csv(self, request: Request) -> Response:
        text = self.curves.csv(
            _names(request, "run"), _names(request, "metric"), request.query_params.get("x", "frames")
        )
        return Response(text.encode(errors="replace"), media_type="text/csv; charset=utf-8")

    async def _live(self, socket: WebSocket) -> None:
        await socket.accept(PROTOCOL)
        await serve_live(socket, self.watcher, lambda: {"not_shown": self.runs.not_shown})

    async def _agent(self, socket: WebSocket) -> None:
        await socket.accept(PROTOCOL)
        try:
            run = self.runs.path(socket.query_params.get("run", ""))
        except UnknownRun:
            await socket.close(1008, "no such run")
            return
        side_by_side = socket.query_params.get("checkpoints") == "all"
        await self.players.serve(socket, run, side_by_side=side_by_side)


class _Json(JSONResponse):
    """JSON that any content of a run directory gives."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return json_text(content).encode()


def _names(request: Request, parameter: str) -> list[str]:
    """Return the values of a repeated parameter. Errors: UsageError if there are too many."""
    names = request.query_params.getlist(parameter)
    if len(names) > MOST_NAMES:
        raise UsageError(f"{len(names)} values of {parameter} are more than {MOST_NAMES}; choose fewer")
    return list(dict.fromkeys(names))


def answer(function: Callable[[Request], Any]) -> Callable[[Request], Response]:
    """Return an endpoint, run in a thread, that answers with JSON; its errors are one line each."""

    def endpoint(request: Request) -> Response:
        try:
            found = function(request)
        except UnknownRun:
            return JSONResponse({"error": "there is no such run; reload the list"}, 404)
        except UsageError as error:
            return JSONResponse({"error": str(error)}, 422)
        return found if isinstance(found, Response) else _Json(found)

    return endpoint


def page(request: Request) -> Response:
    """Return the page, which loads without the token and shows no data before it has one."""
    return FileResponse(STATIC / "index.html")


def make_app(
    root: Path, gate: Gate, more: Sequence[Route | WebSocketRoute] = (), lifespan: Lifespan | None = None
) -> Starlette:
    """Return the server of the runs below ``root``, with ``more`` routes.

    Errors: UsageError if ``root`` is no directory.
    """
    dashboard = Dashboard(Runs(root))
    routes = [
        Route("/", page),
        *dashboard.routes(),
        *more,
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Starlette(routes=routes, middleware=[Middleware(GateMiddleware, gate=gate)], lifespan=lifespan)
