"""`pumice env`: the table of switches with their values now."""

from __future__ import annotations

import json
import os
from typing import Any

from pumice import config


def rows() -> list[dict[str, Any]]:
    """Every switch as data.

    >>> rows()[0]["name"]
    'debug'
    """
    found = []
    for s in config.table():
        value, default = config.get(s.name), s.default
        plain = [str(v) if s.kind == "path" else v for v in (value, default)]
        found.append({"name": s.name, "env": s.env, "value": plain[0], "default": plain[1], "set": bool(os.environ.get(s.env)),
                      "meaning": s.meaning})  # fmt: skip
    return found


def run(*, as_json: bool) -> None:
    """Print the table."""
    table = rows()
    if as_json:
        print(json.dumps({"switches": table}))
        return
    width = max(len(r["env"]) for r in table)
    for r in table:
        value = f"{r['value']}" + ("" if r["set"] else " (default)")
        print(f"{r['env']:<{width}}  {value}\n{'':<{width}}  {r['meaning']}")
