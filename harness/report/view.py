"""`gatedeval view`: a local page over all runs of a folder, from Python's own HTTP server, on this machine only."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from urllib.parse import parse_qs, quote, unquote, urlsplit

from harness.report.folder import Arm, Run, columns_of, compare_arms, runs_of
from harness.report.html import asset, render
from harness.report.page import report
from harness.store import Store
from harness.types import GatedevalError

ADDRESS = "127.0.0.1"  # other machines cannot reach it
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; form-action 'self'"


@dataclass
class Pages:
    """What the server answers, as text. Reports are kept until a file of their run changes."""

    folder: Path
    _reports: dict[str, tuple[float, str]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def listing(self) -> str:
        """Every run with its arms and scores."""
        runs = runs_of(self.folder)
        arms = [arm for run in runs for arm in run.arms]
        return self._page("view", f"Runs in {self.folder}", runs=runs, columns=columns_of(arms))

    def comparison(self, keys: list[str]) -> str:
        """The chosen arms, and the first two of them compared. Raises KeyError for an arm that there is not."""
        runs = runs_of(self.folder)
        known = {arm.key: arm for run in runs for arm in run.arms}
        arms = [known[key] for key in dict.fromkeys(keys)]
        paired = compare_arms(runs, *arms[:2]) if len(arms) >= 2 else []
        return self._page("view_compare", "Compared", arms=arms, columns=columns_of(arms), paired=paired)

    def report(self, name: str) -> str:
        """The report of the run `name`. Raises KeyError where the folder has no such run."""
        run: Run = {run.name: run for run in runs_of(self.folder)}[name]
        changed = max(
            file.stat().st_mtime
            for file in (run.path, *run.path.glob("*.json"), *run.path.glob("samples/*"), *run.path.glob("probe/*"))
        )
        with self._lock:  # two requests for one large run make its report once
            if self._reports.get(name, (0.0, ""))[0] != changed:
                self._reports[name] = changed, report(Store.read(run.path))
            return self._reports[name][1]

    def _page(self, template: str, title: str, **values: object) -> str:
        return render(template, title=title, style=asset("page.css"), address=_address, **values)


def _address(thing: Run | Arm) -> str:
    """Where a run's report is, or the samples of an arm in it."""
    if isinstance(thing, Run):
        return f"/report/{quote(thing.name, safe='')}"
    model = "" if thing.checkpoints else f"model={quote(thing.model)}&"
    return f"/report/{quote(thing.run, safe='')}#samples?{model}context={quote(thing.context)}"


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """Answer one of three addresses: /, /compare?arm=KEY&arm=KEY, /report/NAME."""
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if host not in (ADDRESS, "localhost"):  # a name that another site points at this machine
            self._answer(HTTPStatus.FORBIDDEN, f"open this page as http://{ADDRESS}:{self.server.server_port}/")
            return
        parts = urlsplit(self.path)
        pages = self.server.pages
        try:
            if parts.path == "/":
                text = pages.listing()
            elif parts.path == "/compare":
                text = pages.comparison(parse_qs(parts.query).get("arm", []))
            elif parts.path.startswith("/report/"):
                text = pages.report(unquote(parts.path.removeprefix("/report/")))
            else:
                raise KeyError(parts.path)
        except KeyError as missing:
            self._answer(HTTPStatus.NOT_FOUND, f"nothing here is called {missing.args[0]!r}; / lists the runs")
        except GatedevalError as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        else:
            self._answer(HTTPStatus.OK, text, "text/html")

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal is the user's."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__((ADDRESS, port), _Handler)
        self.pages = Pages(folder)


def server(folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """A server over the runs of `folder`, not yet serving. `port` 0 takes a free one.

    Raises GatedevalError where there is no such folder, or where the port is taken.
    """
    runs_of(folder)
    try:
        return _Server(folder, port)
    except OSError as error:
        raise GatedevalError(f"cannot listen on {ADDRESS}:{port}: {error.strerror}; give another --port") from error
