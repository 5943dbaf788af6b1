"""Why a shared library that is installed does not load, in words that lead to the fix."""

from __future__ import annotations

# What the loader of glibc, musl and macOS says where memory, or the limit on it, is at an end.
_NO_ROOM = ("failed to map segment", "cannot allocate memory", "error mapping", "cannot map", "mmap")


def load_hint(error: BaseException, otherwise: str) -> str:
    """What to do about a library that did not load: installing it again does not help where there was no room to map it.

    >>> load_hint(OSError("libx.so: failed to map segment from shared object"), "pip install x")
    'it is installed, but there is no memory to load it: raise the limit (ulimit -v), or free some'
    >>> load_hint(ImportError("No module named 'x'"), "pip install x")
    'pip install x'
    """
    text = str(error).lower()
    if isinstance(error, MemoryError) or any(words in text for words in _NO_ROOM):
        return "it is installed, but there is no memory to load it: raise the limit (ulimit -v), or free some"
    return otherwise
