"""The live page of a Cooperative: one HTML file that is written again every second while work runs, and reloads itself."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from pumice.cli.inspect_page.render import write
from pumice.cli.markup import Markup, element, page, style, table
from pumice.errors import PumiceError
from pumice.run.cooperative import Cooperative
from pumice.run.snapshot import snapshot
from pumice.run.tables import quantity

_WIDTH, _HEIGHT = 960, 120


class LivePage:
    """Keeps the page of a Cooperative up to date while it is open. A page that cannot be written never disturbs the work.

    >>> import tempfile, numpy as np, pumice as pm
    >>> c = pm.Cooperative()
    >>> with tempfile.TemporaryDirectory() as d, LivePage(c, Path(d) / "live.html", title="demo") as live:
    ...     with pm.compile(lambda x: x * 2.0, x=pm.spec(4), device="host", cooperative=c) as exe:
    ...         _ = exe.run(x=np.ones(4))
    ...     live.update()
    ...     text = (Path(d) / "live.html").read_text()
    >>> "1 run" in text, "<script" in text, 'http-equiv="refresh"' in text
    (True, False, True)
    """

    def __init__(self, c: Cooperative, path: str | Path, *, title: str = "", every: float = 1.0) -> None:
        self._c, self.path, self._title, self._every = c, Path(path), title, every
        self._began = time.time()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="pumice-live-page", daemon=True)

    def update(self, *, over: bool = False) -> None:
        """Write the page now; the last one does not reload itself any more."""
        write(live_page(snapshot(self._c), self._title, time.time(), self._began, None if over else self._every), self.path)

    def _loop(self) -> None:
        while not self._over.wait(self._every):
            try:
                self.update()
            except PumiceError as e:
                print(f"pumice: {e.message}; the live page stays as it was", file=sys.stderr)
                return

    def __enter__(self) -> LivePage:
        self.update()  # what is wrong with the path is said before anything runs
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        try:
            self.update(over=True)
        except PumiceError as e:
            print(f"pumice: {e.message}", file=sys.stderr)


def live_page(found: Mapping[str, Any], title: str, now: float, began: float, every: float | None) -> str:
    """The page of a snapshot. `now` and `began` are seconds since 1970; with `every` browsers load it again after so long.

    >>> from pumice.run.cooperative import Cooperative
    >>> made = live_page(snapshot(Cooperative()), "<b>", 10.0, 0.0, None)
    >>> "&lt;b&gt;" in made, "nothing has run yet" in made, "refresh" in made
    (True, True, False)
    """
    written = time.strftime("%H:%M:%S", time.localtime(now))
    state = found["state"] if every is not None else "over"
    body = element(
        "main",
        element(
            "header",
            element("h1", title or "Cooperative session"),
            element("p", f"Written at {written}, {now - began:.0f} s after the start" + _reloads(every) + "."),
            element("div", _badge(_STATES[state], state), _badge("good", f"mode: {found['mode']}"), *_proof(found)),
        ),
        _figures(found),
        _progress(found["run"]),
        _frames(found["frames"]),
        _stages(found["stages"]),
        _ranges(found["run"]),
        _residency(found["residency"]),
        _settings(found),
    )
    return page(f"{title or 'cooperative'} · {state}", body, style("style.css", "receipt.css", "live.css"), refresh=every)


_STATES = {"running": "good", "idle": "good", "paused": "warn", "over": "good"}


def _reloads(every: float | None) -> str:
    return ", the last one" if every is None else f"; reloads every {every:g} s"


def _badge(kind: str, text: str) -> Markup:
    return element("span", text, class_=f"badge {kind}")


def _card(title: str, *content: str) -> Markup:
    return element("section", element("h2", title), *content, class_="card")


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} ms"


def _proof(found: Mapping[str, Any]) -> list[Markup]:
    proof = found["verification"]
    if proof is None:
        return []
    text = " · ".join([proof["status"], *proof["downgrades"]])
    return [_badge("good" if proof["status"] == "verified" else "warn", text)]


def _figures(found: Mapping[str, Any]) -> Markup:
    frames, stages = found["frames"], found["stages"]
    longest = max((s["longest_ms"] for s in stages), default=None)
    runs = found["runs"]
    figures = {
        f"{runs} run" + ("" if runs == 1 else "s"): "begun",
        _ms(longest): "longest range",
        _ms(frames["p99"]): f"p99 of {frames['count']} frame gaps",
        quantity(found["residency"]["total"], "B"): "on the device",
    }
    return element(
        "div",
        *(element("div", element("b", b), element("span", s), class_="figure") for b, s in figures.items()),
        class_="figures",
    )


def _progress(run: Mapping[str, Any] | None) -> Markup:
    if run is None:
        return _card("This run", element("p", "nothing has run yet"))
    total = run["total"] or 0
    share = run["done"] / total if total else 0.0
    bar = element(
        "svg",
        element("rect", x="0", y="0", width=f"{100 * share:.2f}", height="1", class_="stage0"),
        viewBox="0 0 100 1",
        preserveAspectRatio="none",
        class_="stages",
    )
    text = f"{run['id']}, stage {run['stage']}: {run['done']} of {total or '?'} {run['unit']}s, {run['status']}"
    ended = "" if run["duration_ms"] is None else f", in {run['duration_ms']:.1f} ms"
    flying = f", {run['in_flight']} in flight" if run["in_flight"] else ""
    failure = [element("p", f"failed: {run['failure']['error']['message']}", class_="bad")] if run["failure"] else []
    return _card("The last run that began", bar, element("p", text + ended + flying), *failure)


def _frames(frames: Mapping[str, Any]) -> Markup:
    if not frames["count"]:
        why = "No foreground has reported frames: pass foreground= to pm.Cooperative, or call frame() from its thread."
        return _card("Frame gaps", element("p", why))
    period = frames["period_ms"]
    recent = frames["recent"]
    top = max([*recent, 2 * (period or 0)]) or 1.0
    width = _WIDTH / len(recent)
    bars = [
        element(
            "rect",
            x=f"{i * width:.2f}",
            y=f"{_HEIGHT * (1 - gap / top):.2f}",
            width=f"{max(0.5, width - 0.6):.2f}",
            height=f"{_HEIGHT * gap / top:.2f}",
            class_="late" if period and gap > 1.5 * period else "stage1",
        )
        for i, gap in enumerate(recent)
    ]
    if period:
        y = f"{_HEIGHT * (1 - period / top):.2f}"
        bars.append(element("line", x1="0", x2=str(_WIDTH), y1=y, y2=y, class_="mark"))
    chart = element("svg", *bars, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", preserveAspectRatio="none", class_="gaps", role="img")
    facts = ", ".join(f"{name} {_ms(frames[name])}" for name in ("p50", "p95", "p99", "longest"))
    wanted = f" of {period:.1f} ms wanted; {frames['late']} of {frames['count']} late by half a frame or more" if period else ""
    note = f"the last {len(recent)}, the tallest bar is {top:.0f} ms; the line is the period"
    return _card("Frame gaps", element("p", facts + wanted), chart, element("p", note, class_="aside"))


def _stages(stages: list[Mapping[str, Any]]) -> Markup:
    rows = [
        [
            s["stage"],
            s["device"],
            str(s["steps"]),
            str(s["runs"]),
            str(s["ranges"]),
            _ms(s["ms"] / s["ranges"] if s["ranges"] else None),
            _ms(s["longest_ms"]),
            s["authority"],
        ]
        for s in stages
    ]
    head = ["stage", "device", "steps", "runs", "ranges", "mean", "longest", "timed by"]
    note = element("p", "A stage is an executable at some sizes; counted are the runs that are remembered.", class_="aside")
    return _card("Stages", element("div", table(rows, head), class_="wide"), note)


def _ranges(run: Mapping[str, Any] | None) -> Markup:
    rows = [
        [
            str(r["rangeIndex"]),
            f"{r['itemStart']}–{r['itemEnd']}",
            str(r["status"]),
            _ms(r["observedDurationMs"]),
            _ms(r["queueMs"]),
            str(r["timingAuthority"] or ""),
        ]
        for r in (run["ranges"] if run else ())
    ]
    head = ["duty", "steps", "status", "took", "in the queue", "timed by"]
    return _card("Duties of that run, the newest last", element("div", table(rows, head), class_="wide"))


def _residency(residency: Mapping[str, Any]) -> Markup:
    rows = [[kind, quantity(n, "B")] for kind, n in residency["kinds"].items() if n]
    about = f"Executables: {residency['executables']}. What they share, params and states, counts once."
    return _card("Residency", element("p", about), table([*rows, ["together", quantity(residency["total"], "B")]], number=1))


def _settings(found: Mapping[str, Any]) -> Markup:
    rows = [[name.replace("_", " "), str(value)] for name, value in found["settings"].items() if value is not None]
    decision = found["decision"]
    if decision is not None:
        rows.append(["governor", f"{decision['status']}, {decision['action']}"])
    return _card("Settings", table(rows))
