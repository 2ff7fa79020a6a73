"""The race's routes, added to the dashboard's server: ``/race``, its data, its table, and its WebSocket."""

from __future__ import annotations

import csv
import io
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from parcade.history.cells import text_cell
from parcade.history.series import Columns, MetricsFile
from parcade.web.app import answer, make_app, page
from parcade.web.race.book import COLUMNS, Book
from parcade.web.race.pages import Pages
from parcade.web.race.settings import RaceSettings
from parcade.web.race.training import last_line
from parcade.web.security import PROTOCOL, Gate


class Race:
    """The routes of one race.

    Args:
        run: the run directory whose curve is drawn next to the person's; None for no curve.
        trains: the training that this race started, and its log.
    """

    def __init__(
        self, settings: RaceSettings, run: Path | None, trains: tuple[subprocess.Popen, Path] | None = None
    ) -> None:
        self._settings, self._run, self._trains = settings, run, trains
        self._book = Book(settings.path, settings.game, settings.name)
        self._metrics = MetricsFile(run / "metrics.jsonl") if run else None
        self.pages = Pages(settings)

    @property
    def root(self) -> Path:
        """What the dashboard of this server shows: the agent's run, which may not have begun to write."""
        return self._settings.path if self._run is None or self._trains else self._run

    def routes(self) -> list[Route | WebSocketRoute]:
        """Return the routes of page, data and WebSocket."""
        return [
            Route("/race", page),
            Route("/api/race", answer(self._describe), methods=["GET"]),
            Route("/api/race-csv", answer(self._csv), methods=["GET"]),
            WebSocketRoute("/ws/race", self._play),
        ]

    def _describe(self, request: Request) -> dict[str, Any]:
        """Return what the page shows next to the consoles: the person's curve, and which run is raced."""
        self._book.reload()
        settings = self._settings
        return {
            "game": settings.game,
            "name": settings.name,
            "against": settings.against,
            "is_duel": settings.is_duel,
            "side": settings.side,
            "run": self._run.name if self._run else None,
            "rows": list(self._book.rows()),
            "training": self._training(),
        }

    def _training(self) -> str:
        """Return why the training of this race ended; empty while it runs."""
        if self._trains is None or self._trains[0].poll() in (None, 0):
            return ""
        process, log = self._trains
        return f"The training ended with code {process.returncode}: {last_line(log)}"

    def _csv(self, request: Request) -> Response:
        """Return the race as a table: the person's episodes, and the agent's reports."""
        self._book.reload()
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(self._book.rows())
        if self._metrics:
            writer.writerows(_agent_rows(text_cell(self._run.name), self._metrics.read_new()))
        return Response(text.getvalue().encode(errors="replace"), media_type="text/csv; charset=utf-8")

    async def _play(self, socket: WebSocket) -> None:
        await socket.accept(PROTOCOL)
        await self.pages.serve(socket)


def _agent_rows(name: str, reports: Columns) -> Iterator[dict[str, Any]]:
    """Yield a row per report that has a score."""
    columns = (reports[key].tolist() for key in ("wall_seconds", "frames", "episodes", "score_mean"))
    for seconds, frames, episodes, score in zip(*columns, strict=True):
        if not math.isnan(score):
            counts = {
                "minutes": round(seconds / 60, 4),
                "frames": f"{frames:.0f}",
                "episodes": f"{episodes:.0f}",
            }
            yield {"who": name, **counts, "score": f"{score:.6g}"}


def make_race(race: Race, gate: Gate) -> Starlette:
    """Return the server of a race, with the dashboard of the agent's run."""
    return make_app(race.root, gate, race.routes(), race.pages.lifespan)
