"""The key that signs this machine's receipts, and the folder in which receipts keep what is theirs."""

from __future__ import annotations

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


def own_key() -> SigningKey:
    """The key that signs receipts here, made when the first one is signed."""
    folder = key_folder()
    if OWN_KEY not in folder:
        try:
            return folder.new(OWN_KEY)
        except InputError:
            if OWN_KEY not in folder:  # else another process was first
                raise
    return folder.open(OWN_KEY)
