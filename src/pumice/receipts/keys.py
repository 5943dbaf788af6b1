"""The key that signs this machine's receipts, and the folder in which receipts keep what is theirs."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from pumice import config
from pumice.errors import InputError
from pumice.packs.keys import KeyFolder, PublicKey, SigningKey
from pumice.packs.trust_store import TrustStore

OWN_KEY = "receipts"


def receipts_folder() -> Path:
    """PUMICE_HOME/receipts: keys, trusted keys of others, openings and the log."""
    return config.home / "receipts"


def key_folder() -> KeyFolder:
    """Where the own key is."""
    return KeyFolder(receipts_folder() / "keys")


def trusted_keys() -> TrustStore:
    """The keys of others whose receipts count here; whom one trusts with kernels is another question."""
    return TrustStore(receipts_folder() / "trust")


def is_own(key: PublicKey) -> bool:
    """Whether it is the key that signs receipts here."""
    folder = key_folder()
    return OWN_KEY in folder and folder.public(OWN_KEY) == key


def accepted_keys() -> set[PublicKey]:
    """The public keys whose signatures count here: the own ones, and those that are trusted now."""
    state = trusted_keys().state()
    known = [key.public for key in key_folder().listed()] + [entry.key for entry in state.keys if entry.retired is None]
    return {key for key in known if key is not None and state.revocation(key) is None}


@lru_cache(2)
def _own_key(path: Path, folder: tuple[int, ...], file: tuple[int, ...]) -> SigningKey:
    """The key in a folder. As long as neither folder nor file has changed, it need not be read again."""
    return KeyFolder(path).open(OWN_KEY)


def _identity(path: Path) -> tuple[int, ...]:
    found = os.stat(path, follow_symlinks=False)
    return found.st_dev, found.st_ino, found.st_mode, found.st_uid, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def own_key() -> SigningKey:
    """The key that signs receipts here, made when the first one is signed."""
    folder = key_folder()
    with suppress(FileNotFoundError):
        return _own_key(folder.path, *map(_identity, (folder.path, folder.path / f"{OWN_KEY}.pem")))
    if OWN_KEY not in folder:
        try:
            return folder.new(OWN_KEY)
        except InputError:
            if OWN_KEY not in folder:  # else another process was first
                raise
    return folder.open(OWN_KEY)
