"""Prints pip's resolution report as a constraints file: `write_constraints.py REPORT.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HEADER = """\
# The exact versions that the extras of pyproject.toml install: one tested set, so that installs repeat.
# `make constraints` resolves it anew.
"""


def main(report: str) -> None:
    """Writes one pin per resolved package, the project itself apart."""
    found = [entry["metadata"] for entry in json.loads(Path(report).read_text())["install"]]
    pins = sorted((f"{m['name']}=={m['version']}" for m in found if m["name"] != "pumice"), key=str.lower)
    print(HEADER + "\n".join(pins))


if __name__ == "__main__":
    main(sys.argv[1])
