"""The receipt of one run: a route receipt with everything that is needed to check the run or repeat it."""

from __future__ import annotations

import base64
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pumice.core.whole_file import write_whole
from pumice.errors import InputError, PumiceError, PumiceWarning
from pumice.packs.keys import SigningKey
from pumice.receipts.artifacts import JSON_TYPE, TEXT_TYPE, Artifact
from pumice.receipts.commitments import commitment, keep_openings, new_salt
from pumice.receipts.envelope import Envelope, signed_envelope
from pumice.receipts.errors import ReceiptError
from pumice.receipts.keys import own_key
from pumice.receipts.section import PLAIN_HASH, RUN_SCHEMA, SALTED_HASH, model_entry, section_errors
from pumice.routes.documents import RouteDocument, invalid, now, part, plain, shared
from pumice.routes.kernel import kernel_metadata
from pumice.routes.receipts import route_receipt
from pumice.sources.files import disk_errors

# Larger contents are only hashed.
MAX_CONTENT = 64 << 10
# Why a run on the processor has the status "fallback": readers of the npm package must not take it for WebGPU.
HOST_REASON = "ran on the host processor, not through WebGPU"

# Texts of a request that say nothing about contents, and stay readable in private receipts.
OPEN_REQUEST = frozenset(
    {"activation", "cache_dtype", "device", "dtype", "format", "kind", "pooling", "precision", "sampler", "side"}
)

_T = TypeVar("_T")
# A fact that costs something to find out is given as a function, which is called when the document is first asked for.
Fact: TypeAlias = "_T | Callable[[], _T]"


@dataclass(slots=True)  # nothing changes it, but to freeze so many fields takes a while
class Facts:
    """What is known of a run; `make_receipt` explains each."""

    task: str
    route_id: str
    requested_route_id: str | None
    backend: Fact[Mapping[str, Any]]
    model: Fact[Mapping[str, Any]]
    kernel: Mapping[str, Any] | None
    profile: Fact[Mapping[str, Any]]
    request: Mapping[str, Any]
    plans: Fact[Sequence[Mapping[str, Any]]]
    packs: Fact[Sequence[Mapping[str, Any]]]
    degraded: Fact[Sequence[Mapping[str, Any]]]
    insecure: bool
    device: Fact[Mapping[str, Any]]
    caps: Fact[Mapping[str, Any]]
    software: Fact[Mapping[str, Any]]
    conditions: Mapping[str, Any]
    status: str | None
    fallback_reason: str | None
    runtime: Mapping[str, Any] | None
    created_at: str


def make_receipt(
    *,
    task: str,
    route_id: str,
    inputs: Sequence[Artifact],
    outputs: Sequence[Artifact],
    backend: Fact[Mapping[str, Any]],
    model: Fact[Mapping[str, Any]],
    profile: Fact[Mapping[str, Any]],
    request: Mapping[str, Any],
    plans: Fact[Sequence[Mapping[str, Any]]],
    device: Fact[Mapping[str, Any]],
    caps: Fact[Mapping[str, Any]],
    software: Fact[Mapping[str, Any]],
    packs: Fact[Sequence[Mapping[str, Any]]] = (),
    degraded: Fact[Sequence[Mapping[str, Any]]] = (),
    insecure: bool = False,
    conditions: Mapping[str, Any] | None = None,
    kernel: Mapping[str, Any] | None = None,
    requested_route_id: str | None = None,
    status: str | None = None,
    fallback_reason: str | None = None,
    runtime: Mapping[str, Any] | None = None,
    created_at: str | None = None,
) -> Receipt:
    """The receipt of a run. Nothing is hashed or checked before its document is asked for.

    Facts that cost time may be functions without arguments, called once, then. What can change until then (arrays, lists) must
    be given as it was: artefacts copy arrays.

    - `task`: generate, embed, rank, classify, run, train-step, …: what `--replay` must do again.
    - `inputs`, `outputs`: artefacts; a role occurs once among all of them. There is at least one of each.
    - `backend`: `routes.backend.backend_identity(…)`. `profile`: `routes.staged.staged_profile(…)` of the stages.
    - `model`: `name`, `dtype`, and `files` (list of name, bytes, sha256) or `params` (count, sha256); also `source`, `format`,
      `revision`. The document's `model` is made of it.
    - `request`: everything that must be given again, except the artefacts, as JSON values. In private receipts, texts, lists and
      objects in it become artefacts `request.NAME`, except those that say nothing about contents (OPEN_REQUEST).
    - `plans`: name and digest of each plan that ran. `packs`: entries of `used_kernels()`. `degraded`: `Degraded.to_dict()`.
    - `device`, `caps`, `software`: what ran it. `conditions`: what else may change the numbers.
    - `kernel`: by default, kernels of Pumice's plans.
    - `fallback_reason`: runs on the processor give HOST_REASON, and have the status "fallback".
    - `runtime`: the `scheduler` and `backpressure` profiles of a scheduled run.
    - `created_at`: when the run ended (`routes.documents.now`); by default now.

    >>> receipt = example_receipt()
    >>> receipt.document["status"], receipt.document["pumice"]["artifacts"]["inputs"]["prompt"]["content"]
    ('fallback', 'Hi')
    """
    facts = Facts(
        task=task,
        route_id=route_id,
        requested_route_id=requested_route_id,
        backend=backend,
        model=model,
        kernel=kernel,
        profile=profile,
        request=shared(request),
        plans=plans,
        packs=packs,
        degraded=degraded,
        insecure=insecure,
        device=device,
        caps=caps,
        software=software,
        conditions=shared(conditions or {}),
        status=status,
        fallback_reason=fallback_reason,
        runtime=runtime,
        created_at=created_at or now(),
    )
    return Receipt(facts, inputs, outputs)


class Receipt:
    """What ran, from which inputs to which outputs; made by `make_receipt`.

    >>> receipt = example_receipt()
    >>> list(receipt.artifacts), receipt.document["outputs"][0]["role"]
    (['prompt', 'text'], 'text')
    """

    def __init__(
        self,
        facts: Facts,
        inputs: Sequence[Artifact],
        outputs: Sequence[Artifact],
        salts: Mapping[str, bytes] | None = None,
    ) -> None:
        self._facts, self._salts = facts, salts
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self.artifacts: Mapping[str, Artifact] = {artifact.role: artifact for artifact in (*inputs, *outputs)}
        if len(self.artifacts) < len(inputs) + len(outputs):
            roles = [artifact.role for artifact in (*inputs, *outputs)]
            twice = next(role for role in roles if roles.count(role) > 1)
            raise ReceiptError(f"the role {twice} occurs twice among inputs and outputs", hint="give each its own name")

    @cached_property
    def document(self) -> RouteDocument:
        """The route receipt with the `pumice` section, checked; not yet in a log."""
        facts = self._facts
        model = part(_known(facts.model))
        entry = model.derived(model_entry)
        made = route_receipt(
            facts.route_id,
            requested_route_id=facts.requested_route_id,
            backend=_known(facts.backend),
            model=entry,
            kernel=_plan_kernels() if facts.kernel is None else facts.kernel,
            inputs=[self._listed(a) for a in self._inputs],
            outputs=[{**self._listed(a), "status": "real"} for a in self._outputs],
            profile=_known(facts.profile),
            status=facts.status,
            fallback_reason=facts.fallback_reason,
            runtime=facts.runtime,
            created_at=facts.created_at,
        )
        found = made.extended(pumice=self._section(shared(model)))
        if errors := section_errors(shared(found), entry):
            raise invalid(made.kind.name, errors)
        return found

    def to_json(self, *, indent: int | None = None) -> str:
        """The unsigned document as JSON text."""
        return self.document.to_json(indent=indent)

    def as_private(self) -> Receipt:
        """The same run with commitments instead of contents: hashes have random salts, which only openings reveal.

        Texts, lists and objects of the request become artefacts too, except names of OPEN_REQUEST, and so do paths of models.

        >>> secret = example_receipt().as_private()
        >>> secret.document["pumice"]["artifacts"]["inputs"]["prompt"]["hash"], "Hi" in secret.to_json()
        ('salted-sha-256', False)
        """
        if self._salts is not None:
            return self
        hidden = {
            name: Artifact.json(f"request.{name}", value)
            for name, value in self._facts.request.items()
            if isinstance(value, (str, list, dict)) and name not in OPEN_REQUEST
        }
        request = {name: {"artifact": hidden[name].role} if name in hidden else v for name, v in self._facts.request.items()}
        model, paths = _without_paths(plain(_known(self._facts.model)))
        inputs = (*self._inputs, *hidden.values(), *paths)
        salts = {artifact.role: new_salt() for artifact in (*inputs, *self._outputs)}
        return Receipt(replace(self._facts, request=request, model=model), inputs, self._outputs, salts)

    def sign(self, key: SigningKey | None = None, *, position: Mapping[str, Any] | None = None) -> bytes:
        """The signed receipt: one line, as files and the log hold it. Openings of a private one are kept in PUMICE_HOME.

        `position`: `index` and `previous`, where it becomes a line of the log. `key`: this machine's own by default.

        >>> from pumice.receipts.envelope import read_envelope
        >>> read_envelope(example_receipt().sign(SigningKey.generate())).subject[0]["name"]
        'text'
        """
        return self._signed(own_key() if key is None else key, position).line

    def _signed(self, key: SigningKey, position: Mapping[str, Any] | None = None) -> Envelope:
        document = shared(self.document)
        if position is not None:
            document = {**document, "pumice": {**document["pumice"], "log": plain(position)}}
        envelope = signed_envelope(document, subject_of(document), key)
        if self._salts is not None:
            keep_openings(envelope.digest, self.artifacts, self._salts)
        return envelope

    def save(self, path: str | Path, *, private: bool = False, key: SigningKey | None = None, log: bool = True) -> None:
        """Signs the receipt, appends it to this machine's log, and writes it to a file, which is replaced as a whole.

        `private`: with commitments instead of contents. `log`: off for a receipt that only the file has. One that the
        log does not take is written all the same, as one of no log, before the error is raised.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as d:
        ...     example_receipt().save(Path(d, "r.json"), key=SigningKey.generate(), log=False)
        ...     Path(d, "r.json").read_bytes()[:11]
        b'{"payload":'
        """
        made, path = self.as_private() if private else self, _checked(path)
        own = own_key() if key is None else None
        signer = own if key is None else key
        assert signer is not None
        _ = made.document  # hashing takes time, and others wait for the log meanwhile
        if not log:
            _write(path, made._signed(signer).line)
            return
        problem: PumiceError | None = None

        def write(line: bytes) -> None:
            nonlocal problem
            try:
                _write(path, line)
            except PumiceError as e:
                problem = e

        try:
            made._log(signer, own, write)
        except PumiceError:
            _write(path, made._signed(signer).line)
            raise
        if problem is not None:
            raise problem

    def save_later(
        self, path: str | Path, *, private: bool = False, key: SigningKey | None = None, log: bool = True
    ) -> Future[None]:
        """Hashes the receipt and leaves the rest of `save` to a thread: waiting for the disk often takes longest.

        The result is there when the receipt is on the disk; it raises what `save` would, which is a warning at once as well.
        Receipts get there in the order of the calls, and the interpreter waits for them before it ends.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as d:
        ...     saved = example_receipt().save_later(Path(d, "r.json"), key=SigningKey.generate(), log=False)
        ...     saved.result()
        ...     Path(d, "r.json").read_bytes()[:11]
        b'{"payload":'
        """
        made, path = self.as_private() if private else self, _checked(path)
        _ = made.document

        def finish() -> None:
            try:
                made.save(path, key=key, log=log)
            except BaseException as e:
                warnings.warn(f"the receipt {path} is not saved: {e}", PumiceWarning, stacklevel=2)
                raise

        return _saver().submit(copy_context().run, finish)

    def _log(self, key: SigningKey, own: SigningKey | None, meanwhile: Callable[[bytes], None]) -> None:
        """Makes it a line of the log, whose checkpoints the machine's `own` key signs."""
        from pumice.receipts.log import ReceiptLog

        def make(index: int, previous: str) -> Envelope:
            return self._signed(key, {"index": index, "previous": previous})

        ReceiptLog(key=own).append(make, meanwhile=meanwhile)

    def _listed(self, artifact: Artifact) -> dict[str, Any]:
        """The artefact as an entry of `inputs` or `outputs`; its id says role and hash."""
        sha256 = artifact.sha256 if self._salts is None else commitment(self._salts[artifact.role], artifact.content)
        role, shape = artifact.role, list(artifact.shape)
        return {"role": role, "artifactId": f"{role}-{sha256[:16]}", "sha256": sha256, "shape": shape}

    def _section(self, model: Mapping[str, Any]) -> dict[str, Any]:
        facts, private = self._facts, self._salts is not None
        return {
            "schema": RUN_SCHEMA,
            "version": _version(),
            "task": facts.task,
            "request": facts.request,
            "model": model,
            "plans": shared(_known(facts.plans)),
            "packs": shared(_known(facts.packs)),
            "degraded": shared(_known(facts.degraded)),
            "insecure": facts.insecure,
            "device": shared(_known(facts.device)),
            "caps": shared(_known(facts.caps)),
            "software": shared(_known(facts.software)),
            "conditions": facts.conditions,
            "artifacts": {
                "inputs": {a.role: content_entry(a, private=private) for a in self._inputs},
                "outputs": {a.role: content_entry(a, private=private) for a in self._outputs},
            },
            "log": None,
        }


def subject_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a signed receipt is about: its outputs, by role and hash."""
    return [{"name": entry["role"], "digest": {"sha256": entry["sha256"]}} for entry in document["outputs"]]


def _without_paths(model: Mapping[str, Any], role: str = "model") -> tuple[dict[str, Any], list[Artifact]]:
    """A model's entry in which artefacts stand for paths, which tell names of users and projects; and these artefacts."""
    found, paths = dict(model), []
    if isinstance(source := model.get("source"), str) and not source.startswith(("hf:", "pypi:")):
        paths.append(Artifact.json(f"{role}.source", source))
        found["source"] = {"artifact": paths[0].role}
    if isinstance(lora := model.get("lora"), Mapping):
        found["lora"], more = _without_paths(lora, f"{role}.lora")
        paths += more
    return found, paths


def _checked(path: str | Path) -> Path:
    """A path to write to, whose folder is there."""
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"cannot write to {path}: there is no folder {path.parent}", hint="make it first", path=str(path))
    return path


@cache
def _saver() -> ThreadPoolExecutor:
    """The thread of receipts that are saved later."""
    return ThreadPoolExecutor(1, "pumice receipts")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_saver.cache_clear)  # a fork has no such thread


def _write(path: Path, line: bytes) -> None:
    with disk_errors(path.parent):
        write_whole(path, line, mode=0o600)


def content_entry(artifact: Artifact, *, private: bool = False) -> dict[str, Any]:
    """What a receipt says of an artefact's bytes; they are in it where they are few, and the receipt is not private.

    >>> content_entry(Artifact.text("prompt", "Hi"))
    {'mediaType': 'text/plain; charset=utf-8', 'bytes': 2, 'hash': 'sha-256', 'content': 'Hi', 'encoding': 'utf-8'}
    """
    entry: dict[str, Any] = {"mediaType": artifact.media_type, "bytes": len(artifact.content)}
    entry["hash"] = SALTED_HASH if private else PLAIN_HASH
    if private or len(artifact.content) > MAX_CONTENT:
        return entry
    if artifact.media_type in (TEXT_TYPE, JSON_TYPE):
        return {**entry, "content": artifact.content.decode(), "encoding": "utf-8"}
    return {**entry, "content": base64.b64encode(artifact.content).decode(), "encoding": "base64"}


@cache
def _version() -> str:
    from pumice import __version__

    return __version__


@cache
def _plan_kernels() -> RouteDocument:
    return kernel_metadata("pumice.plan")


def _known(fact: Fact[_T]) -> _T:
    return fact() if callable(fact) else fact


def example_receipt() -> Receipt:
    """A small receipt of a run on the processor that never was, for examples and tests."""
    from pumice.routes.backend import backend_identity
    from pumice.routes.staged import stage, staged_profile

    return make_receipt(
        task="generate",
        route_id="pumice.generate.v1",
        inputs=[Artifact.text("prompt", "Hi")],
        outputs=[Artifact.text("text", " there")],
        backend=backend_identity("processor", features=[], limits={"maxBufferSize": 1 << 30}),
        model={"name": "tiny", "dtype": "f32", "files": [{"name": "tiny.gguf", "bytes": 4, "sha256": "ab" * 32}]},
        profile=staged_profile([stage("prefill", 1.5), stage("decode", 3)]),
        request={"max_tokens": 1, "seed": 0},
        plans=[{"name": "decode", "digest": "cd" * 32}],
        device={"name": "processor", "backend": "host"},
        caps={},
        software={"pumice": "0.1.0"},
        fallback_reason=HOST_REASON,
    )
