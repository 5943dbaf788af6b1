"""The fixtures of browser/webgpu.py, for every test here."""

from browser.webgpu import (  # noqa: F401
    _open_lab,
    browser,
    browser_session,
    complaints,
    context,
    lab,
    new_context,
    page,
    serve,
)
