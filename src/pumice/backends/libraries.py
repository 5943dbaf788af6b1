"""Why an installed shared library does not load, and how to fix it."""

from __future__ import annotations

# What the loader of glibc, musl and macOS says where memory, or the limit on it, is at an end.
_NO_ROOM = ("failed to map segment", "cannot allocate memory", "error mapping", "cannot map", "mmap")


def load_failure(error: BaseException, otherwise: str) -> tuple[str, str]:
    """What the loader said, and what to do: installing a library again does not help where there was no room to map it.

    >>> load_failure(OSError("libx.so: failed to map segment from shared object"), "pip install x")[1]
    'it is installed, but there is no memory to load it: raise the limit (ulimit -v), or free some'
    >>> load_failure(ImportError("No module named 'x'"), "pip install x")
    ("No module named 'x'", 'pip install x')
    """
    # llvmlite, for one, says that a library is missing, permissions are wrong or something else; the loader knew which.
    first = error
    while (before := first.__cause__ or first.__context__) is not None:
        first = before
    text = str(first).lower()
    if isinstance(first, MemoryError) or any(words in text for words in _NO_ROOM):
        return str(first) or "out of memory", (
            "it is installed, but there is no memory to load it: raise the limit (ulimit -v), or free some"
        )
    return str(error), otherwise
