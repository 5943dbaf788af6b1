"""Models from the Hugging Face Hub, through its own library: one commit, only the files that are loaded, each checked."""

from __future__ import annotations

import glob
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pumice.errors import InputError
from pumice.sources.errors import NoAccess, NoNetwork, NotFound, SourceError, WrongHash, plain
from pumice.sources.files import FileInfo, file_git_id, hash_files, need_space, split_parts, tree_bytes, weights_among
from pumice.sources.progress import FetchMeter
from pumice.sources.spec import HubSpec

# Configuration and tokenisers; the hub also holds the same weights in formats that are not read here.
_SIDE_FILES = (".json", ".txt", ".model", ".jinja", ".tiktoken")
_OTHER_FORMATS = {"onnx", "openvino", "original", "coreml", "gguf"}
_NETWORK_MODULES = ("httpx", "httpcore", "requests", "urllib3")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as the hub describes it: large ones by sha256, small ones by git's id."""

    path: str
    size: int
    sha256: str
    git_id: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files to fetch at one commit; `inner` is the one to load, or empty for the folder."""

    commit: str
    files: tuple[RemoteFile, ...]
    inner: str

    @property
    def nbytes(self) -> int:
        """The bytes of all files."""
        return sum(f.size for f in self.files)


def locate(spec: HubSpec) -> Snapshot:
    """Ask the hub which commit and files the spec means now."""
    hub = _library()
    with _explained(spec):
        info = hub.HfApi().model_info(spec.repo_id, revision=spec.revision or None, files_metadata=True)
    remote = {s.rfilename: _remote_file(s) for s in info.siblings or ()}
    inner, names = choose(spec, list(remote))
    return Snapshot(str(info.sha), tuple(remote[n] for n in names), inner)


def _remote_file(sibling: Any) -> RemoteFile:
    sha256 = sibling.lfs.sha256 if sibling.lfs is not None else ""
    return RemoteFile(sibling.rfilename, int(sibling.size or 0), sha256 or "", sibling.blob_id or "")


def choose(spec: HubSpec, names: list[str]) -> tuple[str, list[str]]:
    """Which file is loaded (empty for the whole folder), and all that must be fetched for it.

    >>> spec = HubSpec("owner", "repo")
    >>> choose(spec, ["config.json", "model.safetensors", "pytorch_model.bin", "onnx/model.onnx"])
    ('', ['config.json', 'model.safetensors'])
    >>> choose(spec, ["README.md", "tiny.Q8_0.gguf"])
    ('tiny.Q8_0.gguf', ['tiny.Q8_0.gguf'])
    """
    if spec.path in names:
        if not spec.path.endswith((".gguf", ".safetensors")):
            raise InputError(f"{spec.text} is no GGUF or safetensors file", hint="name a file with weights", spec=spec.text)
        folder = PurePosixPath(spec.path).parent
        return spec.path, [n for n in (str(folder / p) for p in split_parts(PurePosixPath(spec.path).name)) if n in names]
    below = f"{spec.path}/" if spec.path else ""
    inside = [n.removeprefix(below) for n in names if n.startswith(below)]
    chosen = _folder_files(inside)
    if chosen:
        return spec.path, [below + n for n in chosen]
    ggufs = [below + n for n in weights_among(inside) if n.lower().endswith(".gguf")]
    if len(ggufs) == 1:
        return choose(HubSpec(spec.owner, spec.repo, spec.revision, ggufs[0]), names)
    if ggufs:
        hint = "name one of them: " + ", ".join(f"hf:{spec.repo_id}/{g}" for g in ggufs[:6])
        raise NotFound(f"{spec.text} holds {len(ggufs)} GGUF files", hint=hint, found=ggufs)
    if spec.path and not inside:
        raise NotFound(f"{spec.repo_id} has no file or folder {spec.path!r}", hint="check the name on its page", spec=spec.text)
    raise NotFound(f"{spec.text} holds no safetensors or GGUF files", hint="choose a repository that has them", spec=spec.text)


def _folder_files(names: list[str]) -> list[str]:
    """The files of a model folder; empty when it has no safetensors at its top."""
    top = [n for n in names if "/" not in n and n.endswith(".safetensors")]
    if "model.safetensors.index.json" in names:
        top = [n for n in top if n.startswith("model-")]
    elif "model.safetensors" in top:
        top = ["model.safetensors"]
    if not top:
        return []
    side = [n for n in names if n.endswith(_SIDE_FILES) and PurePosixPath(n).parts[0] not in _OTHER_FORMATS]
    # Sentence embedders keep further layers in numbered folders.
    layers = [n for n in names if n.endswith(".safetensors") and n.count("/") == 1 and n[0].isdigit()]
    return sorted({*top, *side, *layers})


def fetch(spec: HubSpec, snapshot: Snapshot, folder: Path, meter: FetchMeter) -> tuple[FileInfo, ...]:
    """Bring the files of a snapshot into `folder`, which may hold part of them, and prove them."""
    hub = _library()
    need_space(folder, snapshot.nbytes - min(tree_bytes(folder), snapshot.nbytes))
    meter.expect(snapshot.nbytes)
    with _explained(spec), _quiet(hub), _watched(folder, meter):
        hub.snapshot_download(
            spec.repo_id, revision=snapshot.commit, local_dir=folder, allow_patterns=[glob.escape(f.path) for f in snapshot.files]
        )
    meter.finish()
    meter.phase("check")
    for file in snapshot.files:
        if not (folder / file.path).is_file():
            raise SourceError(f"the hub's library did not deliver {file.path} of {spec.repo_id}", hint="pull it again")
    infos = hash_files(folder, [f.path for f in snapshot.files])
    for info, file in zip(infos, sorted(snapshot.files, key=lambda f: f.path), strict=True):
        fits = info.sha256 == file.sha256 if file.sha256 else not file.git_id or file_git_id(folder / file.path) == file.git_id
        if info.size != file.size or not fits:
            raise WrongHash(
                f"{file.path} of {spec.repo_id} arrived with other content than the hub lists",
                hint="it was deleted; pull it again",
                got=info.sha256,
                expected=file.sha256 or file.git_id,
            )
    return infos


@contextmanager
def _watched(folder: Path, meter: FetchMeter) -> Iterator[None]:
    """Reports the bytes on disk: the one measure that every version and transport of the library has."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            meter.reached(tree_bytes(folder))

    thread = threading.Thread(target=watch, name="pumice-pull", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def _quiet(hub: Any) -> Iterator[None]:
    """Keeps the library's own progress bars off the screen."""
    if hub.utils.are_progress_bars_disabled():
        yield
        return
    hub.utils.disable_progress_bars()
    try:
        yield
    finally:
        hub.utils.enable_progress_bars()


def _library() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise InputError(
            "models from the Hugging Face Hub need the package huggingface_hub", hint="pip install 'pumice[llm]'"
        ) from None
    return huggingface_hub


@contextmanager
def _explained(spec: HubSpec) -> Iterator[None]:
    """Turns the library's errors into ours."""
    try:
        yield
    except InputError:
        raise
    except Exception as e:
        known = _explain(spec, e)
        if known is None:
            raise
        raise known from e


def _explain(spec: HubSpec, error: Exception) -> InputError | None:
    errors = _library().errors
    repo, page = spec.repo_id, f"https://huggingface.co/{spec.repo_id}"
    login = "log in with `hf auth login`, or set HF_TOKEN"
    status = getattr(getattr(error, "response", None), "status_code", None)
    fields: dict[str, Any] = {"spec": spec.text, "status": status}
    # The order matters: some of these classes descend from one another.
    if isinstance(error, errors.GatedRepoError):
        return NoAccess(f"{repo} is gated", hint=f"accept its terms at {page}, then {login}", **fields)
    if isinstance(error, errors.RevisionNotFoundError):
        return NotFound(f"{repo} has no revision {spec.revision!r}", hint=f"see {page}/commits", **fields)
    if isinstance(error, errors.RepositoryNotFoundError):
        return NotFound(f"the hub shows no repository {repo}", hint=f"check the name; if it is private, {login}", **fields)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return NoNetwork(f"{spec.text} is not in the cache and the hub is switched off", hint="unset HF_HUB_OFFLINE", **fields)
    if isinstance(error, errors.HFValidationError):
        return InputError(f"{spec.text} names no repository: {error}", hint="write hf:owner/repo", **fields)
    if status in (401, 403):
        return NoAccess(f"the hub refuses access to {repo} (status {status})", hint=login, **fields)
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return NotFound(f"{repo} lost a file while it was fetched", hint="pull it again", **fields)
    if status is not None:
        return NoNetwork(f"the hub answers with status {status} for {repo}", hint="try again later", **fields)
    network = isinstance(error, ConnectionError | TimeoutError | errors.LocalEntryNotFoundError)
    if network or type(error).__module__.split(".")[0].rstrip("0123456789") in _NETWORK_MODULES:
        hint = "check the network, then run the same command again: what has arrived is kept"
        return NoNetwork(f"cannot reach the Hugging Face Hub for {repo}: {error}", hint=hint, **fields)
    if isinstance(error, ValueError | TypeError | LookupError | AttributeError | RecursionError):
        return SourceError(f"the hub's answer for {repo} cannot be read: {plain(error)}", hint="try again later", **fields)
    return None
