"""PackStore: the packs that are installed here, read by any process at any time and changed by one at a time.

A new version is verified and checked before the switch and read back and checked after it; one that fails is never left active.
What is read is verified again each time and used from memory: nothing on the disk is trusted for having been right once.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pumice import config
from pumice.errors import PumiceError, PumiceWarning
from pumice.packs.compared import forget_compared
from pumice.packs.degraded_file import forget_failures
from pumice.packs.errors import HashMismatch, HealthCheckFailed, KernelNotFound, PackError, PackStateError
from pumice.packs.lifecycle import InstalledPack, StoredPack, StoreState, Use
from pumice.packs.store_files import StoreFiles, Writer

if TYPE_CHECKING:
    from pumice.packs.archive import PackFiles
    from pumice.packs.health import Finding
    from pumice.packs.trust import TrustStore, VerifiedPack

GRACE_SECONDS = 300.0

Check = Callable[["VerifiedPack"], Sequence["Finding"]]


@dataclass(frozen=True)
class Change:
    """What an order did: the pack as it is now (None if removed), the version before, and what the health check found."""

    what: Literal["installed", "upgraded", "downgraded", "repaired", "unchanged", "rolled back", "enabled", "disabled", "removed"]
    name: str
    pack: InstalledPack | None
    before: StoredPack | None = None
    findings: Sequence[Finding] = ()


class PackStore:
    """The installed packs of a home folder (the switch PUMICE_HOME by default).

    `verify` and `check` say what is trusted and what works; by default the trusted keys of that home, and packs/health.py.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d:
    ...     PackStore(Path(d)).installed()
    []
    """

    def __init__(
        self,
        home: Path | None = None,
        *,
        grace: float = GRACE_SECONDS,
        clock: Callable[[], float] = time.time,
        verify: Callable[[PackFiles, bool], VerifiedPack] | None = None,
        check: Check | None = None,
    ) -> None:
        self.home: Path = config.home if home is None else home
        self.folder = self.home / "packs"
        self.grace, self._clock = grace, clock
        self._files = StoreFiles(self.folder, clock)
        self._verify = verify or self._verify_by_trust
        self._check = check or _check_health

    # --- reading ---

    def installed(self) -> list[InstalledPack]:
        """All installed packs by name, enabled or not; nothing of them is read but what was written down of them."""
        return [pack for _, pack in sorted(self._files.read_state().packs.items())]

    def active(self, name: str) -> VerifiedPack:
        """The version of a pack that is in use, read once and verified again."""
        return self._open(name, lambda state: state.pack(name).current)

    def previous(self, name: str) -> VerifiedPack:
        """The version that a rollback would bring back."""
        return self._open(name, lambda state: state.rolled_back(name).pack(name).current)

    def enabled(self) -> list[VerifiedPack]:
        """The packs that are enabled. One that is refused by now is left out, with a warning: built-in kernels do its work."""
        found = []
        for pack in self.installed():
            if not pack.enabled:
                continue
            try:
                found.append(self.active(pack.name))
            except PumiceError as e:
                text = (
                    f"the pack {pack.name} is not used: {e.message}; {e.hint or f'`pumice pack disable {pack.name}` ends this'}"
                )
                warnings.warn(text, PumiceWarning, stacklevel=2)
        return found

    def use_of(self, pack: str, kernel: str) -> Use:
        """The user's word about a kernel; "measured" for packs that are not installed."""
        found = self._files.read_state().packs.get(pack)
        return "measured" if found is None else found.use_of(kernel)

    # --- changing ---

    def install(
        self, path: Path, *, insecure: bool = False, new_signer: bool = False, older: bool = False, known_only: bool = False
    ) -> Change:
        """Installs a pack from a folder or zip, or another version of one that is installed.

        `insecure` asks for nobody's signature; `new_signer` lets a key take over a pack that another one has signed so far;
        `older` lets an earlier version replace a later one.
        """
        from pumice.packs.archive import read_pack, write_zip

        files = read_pack(path)
        pack = self._verify(files, insecure)
        name, version = pack.manifest.name, pack.manifest.version
        # Before the lock is taken, as kernels of a bad pack may run until their time limits.
        known = self._files.read_state()
        self._rule(known, pack, new_signer, older, known_only)
        findings = self._checked(pack, f"{_stays(known, name)}, as before")
        with self._files.writing() as writer:
            before = writer.state
            found = self._rule(before, pack, new_signer, older, known_only)
            is_same = found is not None and _identity(found.current) == _identity(pack)
            if found and is_same and self._is_whole(found):
                return Change("unchanged", name, found, found.current, findings)
            blob = writer.put_blob(write_zip(files.entries))
            now = self._clock()
            stored = StoredPack(version, pack.digest, blob, pack.signer, pack.insecure, now)
            self._switch(writer, before.with_version(name, stored, now=now, grace=self.grace), name)
            done = writer.state.pack(name)
        forget_failures(self.folder, name)
        if found is None:
            return Change("installed", name, done, None, findings)
        what: Literal["repaired", "downgraded", "upgraded"] = (
            "repaired" if is_same else "downgraded" if _is_older(version, found.version) else "upgraded"
        )
        return Change(what, name, done, found.current, findings)

    def upgrade(self, path: Path, *, insecure: bool = False, new_signer: bool = False, older: bool = False) -> Change:
        """`install` for a pack of a name that is installed."""
        return self.install(path, insecure=insecure, new_signer=new_signer, older=older, known_only=True)

    def rollback(self, name: str) -> Change:
        """Brings back the version before, verified and checked as a new one is."""
        with self._files.writing() as writer:
            before = writer.state.pack(name)
            self._switch(writer, writer.state.rolled_back(name), name)
            now = writer.state.pack(name)
        forget_failures(self.folder, name)
        return Change("rolled back", name, now, before.current)

    def enable(self, name: str, *, kernel: str | None = None, use: Use | None = None) -> Change:
        """Lets a pack be used again, or says how its kernels, or one of them, are chosen; they are compared again before use."""
        if kernel is not None:
            self._has_kernel(name, kernel)
        use = use or ("measured" if kernel is not None else None)
        change = self._word("enabled", name, kernel, use, True)
        if change.pack is not None:
            forget_compared(self.folder, change.pack.digest)  # what failed then may do now
        return change

    def disable(self, name: str, *, kernel: str | None = None) -> Change:
        """Stops the use of a pack, or of one of its kernels."""
        if kernel is None:
            return self._word("disabled", name, None, None, False)
        self._has_kernel(name, kernel)
        return self._word("disabled", name, kernel, "never", None)

    def remove(self, name: str) -> Change:
        """Removes a pack and its version before."""
        with self._files.writing() as writer:
            before = writer.state.pack(name)
            writer.commit(writer.state.without(name, now=self._clock(), grace=self.grace))
        forget_failures(self.folder, name)
        return Change("removed", name, None, before.current)

    # --- steps ---

    def _switch(self, writer: Writer, new: StoreState, name: str) -> None:
        """Puts a state into force and checks the pack as it is now on the disk; the state before comes back if that fails."""
        before = writer.state
        try:
            writer.commit(new)
            self._checked(self._read(name, new.pack(name).current), "")
        except BaseException as e:
            start = time.perf_counter()
            writer.commit(before)
            seconds = time.perf_counter() - start
            if not isinstance(e, PumiceError):
                raise
            raise HealthCheckFailed(
                f"{name} {new.pack(name).version} was switched on and failed: {e.message}; {_stays(before, name)} again,"
                f" {seconds * 1000:.0f} ms later",
                hint=e.hint,
                name=name,
                cause=e.code,
                findings=e.fields.get("findings", []),
                rollback_seconds=seconds,
            ) from e

    def _checked(self, pack: VerifiedPack, otherwise: str) -> Sequence[Finding]:
        findings = self._check(pack)
        bad = [f for f in findings if f.problem]
        if not bad:
            return findings
        name, version = pack.manifest.name, pack.manifest.version
        reasons = "; ".join(f"{f.kernel}: {f.problem}" for f in bad[:3]) + (f"; and {len(bad) - 3} more" if len(bad) > 3 else "")
        raise HealthCheckFailed(
            f"{name} {version} did not pass its health check, {len(bad)} of {len(findings)} kernels failed: {reasons}"
            + (f"; {otherwise}" if otherwise else ""),
            hint="ask its author, or mend the kernels and build it again",
            name=name,
            findings=[{"kernel": f.kernel, "problem": f.problem} for f in bad],
        )

    def _rule(
        self, state: StoreState, pack: VerifiedPack, new_signer: bool, older: bool, known_only: bool
    ) -> InstalledPack | None:
        """The installed pack of that name, if this one may take its place."""
        name = pack.manifest.name
        found = state.packs.get(name)
        if found is None and known_only:
            raise PackStateError(
                f"no pack named {name!r} is installed that could be upgraded",
                hint="`pumice pack install FILE` installs it",
                name=name,
            )
        if found and found.signer and pack.signer and not new_signer and not self._succeeds(found.signer, pack.signer):
            raise PackStateError(
                f"{name} is signed by {pack.signer}; the installed one was signed by {found.signer}",
                hint="--new-signer accepts that, if you know why; a key that signed its successor is followed without it",
                name=name,
                signer=pack.signer,
            )
        if found and not older and _is_older(pack.manifest.version, found.version):
            # Its signature is as good as ever, but what was wrong with it may be why there is a later one.
            raise PackStateError(
                f"{name} {pack.manifest.version} is older than {found.version}, which is installed",
                hint="--older takes it all the same; `pumice pack rollback` goes back to the version before",
                name=name,
                version=pack.manifest.version,
            )
        return found

    def _succeeds(self, old: str, new: str) -> bool:
        """Whether a key is another one, or the successor that it or its successors have signed."""
        state = self._trust().state()
        seen: set[str] = set()
        while old != new and old not in seen:
            seen.add(old)
            entry = state.get(old)
            old = entry.successor if entry else ""
        return old == new

    def _word(
        self, what: Literal["enabled", "disabled"], name: str, kernel: str | None, use: Use | None, enabled: bool | None
    ) -> Change:
        with self._files.writing() as writer:
            writer.commit(writer.state.with_use(name, kernel=kernel, use=use, enabled=enabled))
            pack = writer.state.pack(name)
        return Change(what, name, pack, pack.current)

    def _has_kernel(self, name: str, kernel: str) -> None:
        ids = self.active(name).manifest.kernel_ids
        if kernel not in ids:
            raise KernelNotFound(
                f"the pack {name} has no kernel {kernel!r}", hint=f"it has {', '.join(ids)}", id=kernel, pack=name
            )

    def _open(self, name: str, which: Callable[[StoreState], StoredPack]) -> VerifiedPack:
        missing: StoredPack | None = None
        while True:
            stored = which(self._files.read_state())
            try:
                return self._read(name, stored)
            except FileNotFoundError:
                if stored == missing:
                    raise PackStateError(
                        f"the zip of {name} {stored.version} is missing from {self.folder}",
                        hint="install the pack again",
                        name=name,
                    ) from None
                missing = stored  # its version may just have been replaced: then the state names another one by now

    def _read(self, name: str, stored: StoredPack) -> VerifiedPack:
        from pumice.packs.archive import parse_zip

        files = parse_zip(self._files.read_blob(stored.blob), self.folder / "blobs" / f"{stored.blob}.zip")
        pack = self._verify(files, stored.insecure)
        if (pack.manifest.name, pack.digest) != (name, stored.digest):
            raise HashMismatch(
                f"the stored pack {name} has the digest {pack.digest}, not {stored.digest}",
                hint="install the pack again",
                expected=stored.digest,
                actual=pack.digest,
            )
        return pack

    def _is_whole(self, found: InstalledPack) -> bool:
        try:
            self._read(found.name, found.current)
        except (PackError, FileNotFoundError):
            return False
        return True

    def _verify_by_trust(self, files: PackFiles, insecure: bool) -> VerifiedPack:
        from pumice.packs.trust import verify_pack

        return verify_pack(files, self._trust(), insecure=insecure)

    def _trust(self) -> TrustStore:
        from pumice.packs.trust import TrustStore

        return TrustStore(self.folder / "trust")


def _check_health(pack: VerifiedPack) -> Sequence[Finding]:
    from pumice.packs.health import check_pack

    return check_pack(pack)


def _is_older(version: str, other: str) -> bool:
    from pumice.packs.versions import Version

    return Version.parse(version) < Version.parse(other)


def _identity(pack: StoredPack | VerifiedPack) -> tuple[str, str, bool]:
    return pack.digest, pack.signer, pack.insecure


def _stays(state: StoreState, name: str) -> str:
    found = state.packs.get(name)
    return f"{name} {found.version} is active" if found else f"no {name} is installed"
