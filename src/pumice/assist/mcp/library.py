"""The package mcp, imported when it is first needed."""

from __future__ import annotations

from typing import Any

from pumice.errors import PumiceError


def mcp_types() -> Any:
    """The protocol's types; an error that names the extra where the package is missing."""
    try:
        import mcp_types
    except ImportError:
        raise PumiceError("MCP needs the package mcp", hint="pip install 'pumice[mcp]'") from None
    return mcp_types
