"""The fixtures of browser/webgpu.py and browser/model_pages.py, for every test here."""

from browser.model_pages import chat_bundle, function_bundle, search_bundle, serve_web, visit  # noqa: F401
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
