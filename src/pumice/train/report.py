"""The report of a run: one HTML file with curves as inline SVG, which needs nothing from outside and follows light and dark."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from pumice.core.whole_file import write_whole
from pumice.sources.disk import disk_errors
from pumice.train.log import Record

Point = tuple[float, float]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 260, 64, 16, 14, 34
# More points than pixels show nothing more, and make the file large.
_MOST_POINTS = 600
# A curve that falls further than this reads better on a logarithmic axis.
_LOG_FROM = 30.0

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2430; --dim: #687083; --back: #fbfbfc; --card: #fff; --line: #dfe3ea;
  --a: #2563c9; --b: #c2540a; --c: #15803d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ee; --dim: #98a1b3; --back: #14161b; --card: #1c1f26;
  --line: #333945; --a: #7aa7ff; --b: #ffa163; --c: #6ed68f; } }
body { margin: 0 auto; padding: 24px; max-width: 840px; font: 15px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--back); }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 15px; margin: 28px 0 6px; } .dim { color: var(--dim); }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; margin: 18px 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 8px 14px; }
.tile b { display: block; font-size: 18px; font-variant-numeric: tabular-nums; }
.tile span { color: var(--dim); font-size: 12px; }
svg { width: 100%; height: auto; background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
svg text { fill: var(--dim); font-size: 11px; } .grid { stroke: var(--line); } .frame { stroke: var(--dim); }
.curve { fill: none; stroke-width: 1.8; } .raw { fill: none; stroke-width: 1; opacity: .35; }
.a { stroke: var(--a); } .b { stroke: var(--b); } .c { stroke: var(--c); }
circle.b { fill: var(--b); } circle.c { fill: var(--c); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 3px 14px 3px 0; border-bottom: 1px solid var(--line); }
th { color: var(--dim); font-weight: 500; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px; overflow-x: auto; }
"""


@dataclass
class Curves:
    """What a log holds, as rows of points by step."""

    loss: list[Point] = field(default_factory=list)
    lr: list[Point] = field(default_factory=list)
    validation: dict[str, list[Point]] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[Record]) -> Curves:
        """The curves of a log's records.

        >>> Curves.of([{"step": 1, "loss": 2.0, "lr": 0.1}, {"step": 1, "validation": {"loss": 3.0}}]).validation
        {'loss': [(1, 3.0)]}
        """
        found = cls()
        for record in records:
            step = record.get("step")
            if not isinstance(step, int):
                continue
            for name, row in (("loss", found.loss), ("lr", found.lr)):
                if _is_number(record.get(name)):
                    row.append((step, float(record[name])))
            for name, value in (record.get("validation") or {}).items():
                if _is_number(value):
                    found.validation.setdefault(str(name), []).append((step, float(value)))
        return found


def write_report(
    path: str | Path,
    records: Iterable[Record],
    *,
    title: str,
    facts: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Write the page of a run's log; readers of `path` see the old page or the whole new one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = Path(folder, "report.html")
    ...     write_report(page, [{"step": s, "loss": 1 / s, "lr": 0.1} for s in (1, 2, 3)], title="a < b")
    ...     text = page.read_text()
    >>> "<title>a &lt; b</title>" in text, "http" in text.replace("http://www.w3.org/2000/svg", "")
    (True, False)
    """
    path = Path(path)
    page = render(records, title=title, facts=facts or {}, config=config or {})
    with disk_errors(path):
        write_whole(path, page)


def render(records: Iterable[Record], *, title: str, facts: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The page as text."""
    curves = Curves.of(records)
    body = [f"<h1>{escape(title)}</h1>", '<div class="tiles">']
    body += [f"<div class='tile'><b>{escape(_shown(v))}</b><span>{escape(k)}</span></div>" for k, v in facts.items()]
    body.append("</div>")
    held = curves.validation.get("loss", [])
    if curves.loss or held:
        body.append("<h2>Loss</h2>")
        legend = [("a", "training, smoothed")] + ([("b", "validation")] if held else [])
        body.append(_chart([("raw a", curves.loss), ("curve a", smoothed(curves.loss)), ("curve b", held)], legend, dots=held))
    for name, row in curves.validation.items():
        if name != "loss":
            body.append(f"<h2>Validation: {escape(name)}</h2>")
            body.append(_chart([("curve c", row)], dots=row, dot="c"))
    if len({value for _, value in curves.lr}) > 1:
        body.append("<h2>Learning rate</h2>")
        body.append(_chart([("curve c", curves.lr)], logarithmic=False))
    if curves.validation:
        body.append("<h2>Validation</h2>" + _table(curves.validation))
    if config:
        body.append(f"<h2>Settings</h2><pre>{escape(json.dumps(config, indent=2, default=str))}</pre>")
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    return (
        f"<!doctype html><html lang='en'><head>{head}<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def smoothed(points: Sequence[Point]) -> list[Point]:
    """The running mean of a curve, over about a fiftieth of it; unbiased at the start.

    >>> smoothed([(1, 2.0), (2, 4.0)])
    [(1, 2.0), (2, 3.0)]
    """
    keep = 1 - 1 / max(len(points) / 50, 2)
    total = weight = 0.0
    found = []
    for step, value in points:
        total, weight = (total + value, weight + 1) if weight < 1 / (1 - keep) else (total * keep + value, weight * keep + 1)
        found.append((step, total / weight))
    return found


def thinned(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """Fewer points with the same outline: the lowest and the highest of each piece, and both ends.

    >>> thinned([(i, i % 2) for i in range(100)], most=4)
    [(0, 0), (1, 1), (50, 0), (51, 1), (99, 1)]
    """
    if len(points) <= most:
        return list(points)
    pieces = max(most // 2, 1)
    found: set[Point] = {points[0], points[-1]}
    for i in range(pieces):
        piece = points[i * len(points) // pieces : (i + 1) * len(points) // pieces]
        found |= {min(piece, key=lambda p: p[1]), max(piece, key=lambda p: p[1])}
    return sorted(found)


def _chart(
    rows: Sequence[tuple[str, Sequence[Point]]],
    legend: Sequence[tuple[str, str]] = (),
    *,
    dots: Sequence[Point] = (),
    dot: str = "b",
    logarithmic: bool = True,
) -> str:
    points = [p for _, row in rows for p in row]
    x0, x1 = min(p[0] for p in points), max(p[0] for p in points)
    y0, y1 = min(p[1] for p in points), max(p[1] for p in points)
    log = logarithmic and y0 > 0 and y1 / y0 > _LOG_FROM
    low, high = (math.log10(y0), math.log10(y1)) if log else (y0, y1)
    if high - low < 1e-12:
        low, high = low - (abs(low) or 1) * 0.05, high + (abs(high) or 1) * 0.05
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def at(p: Point) -> tuple[str, str]:
        y = math.log10(p[1]) if log else p[1]
        return f"{_LEFT + (p[0] - x0) / ((x1 - x0) or 1) * width:.1f}", f"{_TOP + (high - y) / (high - low) * height:.1f}"

    out = [f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img'>"]
    for tick in _ticks(low, high):
        value = 10**tick if log else tick
        y = at((x0, value))[1]
        out.append(f"<line class='grid' x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y}' y2='{y}'/>")
        out.append(f"<text x='{_LEFT - 6}' y='{y}' dy='4' text-anchor='end'>{_shown(value)}</text>")
    for step in sorted({x0, *(t for t in _ticks(x0, x1) if t == int(t)), x1}):
        if step in (x0, x1) or min(step - x0, x1 - step) > (x1 - x0) * 0.06:
            out.append(f"<text x='{at((step, y1))[0]}' y='{_HEIGHT - 12}' text-anchor='middle'>{int(step)}</text>")
    out.append(f"<line class='frame' x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{_TOP + height}' y2='{_TOP + height}'/>")
    for style, row in rows:
        if row:
            path = " ".join(",".join(at(p)) for p in thinned(row))
            out.append(f"<polyline class='{style}' points='{path}'/>")
    for p in thinned(dots, 200):
        x, y = at(p)
        out.append(f"<circle class='{dot}' cx='{x}' cy='{y}' r='3'><title>step {int(p[0])}: {_shown(p[1])}</title></circle>")
    for i, (style, name) in enumerate(legend):
        left, down = _WIDTH - _RIGHT - 180, _TOP + 10 + 16 * i
        out.append(f"<line class='curve {style}' x1='{left}' x2='{left + 22}' y1='{down}' y2='{down}'/>")
        out.append(f"<text x='{left + 28}' y='{down}' dy='4'>{escape(name)}</text>")
    return "".join([*out, "</svg>"])


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two bounds, about five."""
    raw = (high - low) / 5
    if raw <= 0:
        return [low]
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw)
    return [round(k * step, 12) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _table(validation: Mapping[str, Sequence[Point]]) -> str:
    steps = sorted({step for row in validation.values() for step, _ in row})[-20:]
    values = {name: dict(row) for name, row in validation.items()}
    head = "".join(f"<th>{escape(name)}</th>" for name in validation)
    lines = []
    for step in steps:
        cells = "".join(f"<td>{_shown(row[step]) if step in row else '–'}</td>" for row in values.values())
        lines.append(f"<tr><td>{int(step)}</td>{cells}</tr>")
    return f"<div class='scroll'><table><tr><th>step</th>{head}</tr>{''.join(lines)}</table></div>"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
