"""`pumice receipt keys`: the key that signs receipts here, and the keys of others whose receipts count."""

from __future__ import annotations

import json as json_text
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from pumice.cli.pack import Json
from pumice.cli.receipt import receipt_app

keys_app = typer.Typer(
    name="keys", help="Keys: your own, which signs receipts, and those of others.", no_args_is_help=True, rich_markup_mode=None
)
receipt_app.add_typer(keys_app)

Trusted = Annotated[str, typer.Argument(metavar="KEY", help="A key by its label, its fingerprint, the start of one, or itself.")]


@keys_app.command("list")
def list_keys(json: Json = False) -> None:
    """Show the key that signs receipts here, the keys that you trust, and those that you have revoked."""
    from pumice.receipts.keys import OWN_KEY, key_folder, trusted_keys

    folder, state = key_folder(), trusted_keys().state()
    own = folder.public(OWN_KEY) if OWN_KEY in folder else None
    if json:
        found = {"own": None if own is None else {"key": own.text, "fingerprint": own.fingerprint}}
        revoked = [entry.to_json() for entry in state.revoked]
        _print({**found, "trusted": [entry.to_json() for entry in state.keys], "revoked": revoked})
        return
    print("You have no key yet: the first receipt makes one." if own is None else f"own      {own.text}  {own.fingerprint}")
    for entry in state.keys:
        print(f"trusted  {entry.key.text}  {entry.key.fingerprint}  {entry.label}")
    for gone in state.revoked:
        print(f"revoked  {gone.fingerprint}  on {gone.date:%Y-%m-%d}")


@keys_app.command("export")
def export_key(json: Json = False) -> None:
    """Print your public key, for others to trust; it is made where there is none yet."""
    from pumice.receipts.keys import own_key

    found = own_key().public
    _print({"key": found.text, "fingerprint": found.fingerprint}) if json else print(found.text)


@keys_app.command("trust")
def trust_key(
    key: Annotated[str, typer.Argument(metavar="FILE|KEY", help="A public key, or a file with one.")],
    label: Annotated[str, typer.Option(help="What to call it.")] = "",
    json: Json = False,
) -> None:
    """Trust a key: receipts that it signed are verified here without more."""
    from pumice.cli.pack_keys import public_key
    from pumice.receipts.keys import key_folder, trusted_keys

    with _own_words():
        found, name = public_key(key, key_folder())
        entry = trusted_keys().add(found, label or name)
    _print(entry.to_json()) if json else print(f"trusted: {entry.key.fingerprint}  {entry.label}")


@keys_app.command("untrust")
def untrust_key(key: Trusted, json: Json = False) -> None:
    """Trust a key no longer."""
    from pumice.receipts.keys import trusted_keys

    with _own_words():
        entry = trusted_keys().remove(key)
    _print(entry.to_json()) if json else print(f"no longer trusted: {entry.key.fingerprint}  {entry.label}")


@keys_app.command("revoke")
def revoke_key(
    key: Trusted,
    undo: Annotated[bool, typer.Option("--undo", help="Take back a revocation.")] = False,
    json: Json = False,
) -> None:
    """Refuse all receipts of a key, trusted or not."""
    from pumice.receipts.keys import trusted_keys

    with _own_words():
        entry = trusted_keys().unrevoke(key) if undo else trusted_keys().revoke(key)
    _print(entry.to_json()) if json else print(f"{'no longer revoked' if undo else 'revoked'}: {entry.fingerprint}")


@contextmanager
def _own_words() -> Iterator[None]:
    """Keys of packs and of receipts are kept by the same code; hints name the commands of receipts here."""
    from pumice.packs.errors import PackError

    try:
        yield
    except PackError as e:
        e.cli_hint = e.cli_hint.replace("pumice pack keys", "pumice receipt keys")
        raise


def _print(value: dict[str, Any]) -> None:
    print(json_text.dumps(value))
