"""`pumice pack keys` and `pumice pack allow`: the user's own keys, the keys and kernels that the user trusts."""

from __future__ import annotations

import json as json_text
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pumice.cli.pack import Json, pack_app

if TYPE_CHECKING:
    from pumice.packs.keys import KeyFolder, PublicKey
    from pumice.packs.statements import Statement
    from pumice.packs.trust import TrustStore
    from pumice.packs.trust_store import TrustState

keys_app = typer.Typer(
    name="keys",
    help="Keys: your own, which sign packs, and those of others, whose packs you take.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
allow_app = typer.Typer(
    name="allow", help="The allowlist: kernels that may run here, by their hash.", no_args_is_help=True, rich_markup_mode=None
)
pack_app.add_typer(keys_app)
pack_app.add_typer(allow_app)

PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="A file with the passphrase of the key; else PUMICE_PASSPHRASE_FILE, else it is asked for."
    ),
]
Trusted = Annotated[
    str, typer.Argument(metavar="KEY", help="A trusted key by its label, its fingerprint, the start of one, or the key itself.")
]


def passphrase_of(name: str, file: Path | None) -> bytes | None:
    """The passphrase of a key: from a file, the switch's file, or the terminal; None where there is none of them."""
    from pumice import config

    file = config.get("passphrase_file") if file is None else file
    if str(file) != "-":
        return _read_passphrase(file)
    if not sys.stdin.isatty():
        return None
    from getpass import getpass

    return getpass(f"Passphrase of {name}: ").encode()


def _read_passphrase(file: Path) -> bytes:
    from pumice.errors import InputError
    from pumice.packs.keys import MAX_PASSPHRASE

    try:
        with file.open("rb") as opened:  # which may be a pipe
            return opened.read(MAX_PASSPHRASE + 2).removesuffix(b"\n").removesuffix(b"\r")
    except OSError as e:
        raise InputError(
            f"the passphrase file {file} cannot be read: {e.strerror}", hint="check its path", path=str(file)
        ) from None


@keys_app.command("new")
def new_key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call the key: letters, digits and . _ -.")],
    passphrase: Annotated[bool, typer.Option("--passphrase", help="Ask for a passphrase that protects the key.")] = False,
    passphrase_file: PassphraseFile = None,
    trust: Annotated[bool, typer.Option("--trust", help="Trust it at once, so that packs it signs can be used here.")] = False,
    json: Json = False,
) -> None:
    """Make a key of your own, readable by you alone."""
    from pumice import config
    from pumice.packs.keys import KeyFolder
    from pumice.packs.trust import TrustStore

    folder = KeyFolder()
    given = passphrase_file is not None or str(config.get("passphrase_file")) != "-"
    secret = passphrase_of(name, passphrase_file) if given else _new_passphrase(name) if passphrase else None
    key = folder.new(name, secret).public
    if trust:
        TrustStore().add(key, name)
    path = str(folder.path / f"{name}.pem")
    if json:
        _print({"name": name, "key": key.text, "fingerprint": key.fingerprint, "path": path, "encrypted": secret is not None})
        return
    print(f"{name}  {key.fingerprint}\npublic   {key.text}\nprivate  {path}")
    if not trust:
        print(f"To use packs that it signs here: pumice pack keys trust {name}", file=sys.stderr)


def _new_passphrase(name: str) -> bytes:
    from getpass import getpass

    from pumice.errors import InputError

    if not sys.stdin.isatty():
        raise InputError("there is no terminal to ask for a passphrase at", hint="give --passphrase-file FILE")
    first = getpass(f"New passphrase of {name}: ")
    if getpass("The same once more: ") != first:
        raise InputError("the two passphrases differ", hint="try again; no key was made")
    return first.encode()


@keys_app.command("list")
def list_keys(json: Json = False) -> None:
    """Show your own keys, those that you trust, and those that are revoked."""
    from pumice.packs.keys import KeyFolder
    from pumice.packs.trust import TrustStore

    own = [
        {
            "name": key.name,
            "fingerprint": "" if key.public is None else key.public.fingerprint,
            "key": "" if key.public is None else key.public.text,
            "encrypted": key.encrypted,
            "problem": key.problem,
        }
        for key in KeyFolder().listed()
    ]
    state = TrustStore().state()
    trusted = [{**entry.to_json(), "state": _state_of(state, entry.key)} for entry in state.keys]
    revoked = [entry.to_json() for entry in state.revoked]
    if json:
        _print({"own": own, "trusted": trusted, "revoked": revoked})
        return
    print("Your own keys:" if own else "You have no key of your own; pumice pack keys new NAME makes one.")
    for found in own:
        notes = [
            found["name"],
            *(["with passphrase"] if found["encrypted"] else []),
            *([found["problem"]] if found["problem"] else []),
        ]
        print(f"  {found['fingerprint'] or '(not known)':<50}  {'  '.join(map(str, notes))}")
    print("Trusted keys:" if trusted else "You trust no key; pumice pack keys trust KEY adds one.")
    for entry in trusted:
        print(f"  {entry['fingerprint']:<50}  {entry['label'] or '(no label)'}  {entry['state']}")
    if revoked:
        print("Revoked keys:")
    for entry in revoked:
        print(f"  {entry['fingerprint']:<50}  by {'its owner' if entry['by_owner'] else 'you'} on {entry['date'][:10]}")


def _state_of(state: TrustState, key: PublicKey) -> str:
    entry = state.get(key)
    if state.revocation(key) is not None:
        return "revoked"
    return "trusted" if entry is None or entry.retired is None else f"replaced on {entry.retired:%Y-%m-%d} by {entry.successor}"


@keys_app.command("trust")
def trust_key(
    key: Annotated[str, typer.Argument(metavar="FILE|KEY", help="A public key, a file with one, or the name of a key of yours.")],
    label: Annotated[str, typer.Option(help="What to call it; else its name, or its comment or file name.")] = "",
    json: Json = False,
) -> None:
    """Trust a key: packs that it signs can be used here."""
    from pumice.packs.trust import TrustStore

    found, name = public_key(key)
    entry = TrustStore().add(found, label or name)
    _print(entry.to_json()) if json else print(f"trusted: {entry.key.fingerprint}  {entry.label}")


def public_key(given: str, folder: KeyFolder | None = None) -> tuple[PublicKey, str]:
    """The key that a user names by itself, by a file or by a name (of a key in `folder`), and a label for it."""
    from pumice.core.private import read_plain
    from pumice.packs.errors import InvalidKey
    from pumice.packs.keys import MAX_FILE, KeyFolder, PublicKey
    from pumice.packs.trust_store import is_label

    try:
        return PublicKey.parse(given), ""
    except InvalidKey as e:
        unreadable = e
    if Path(given).is_file():
        try:
            content = read_plain(Path(given), MAX_FILE)
        except OSError as e:
            raise InvalidKey(f"{given} cannot be read: {e.strerror or e}", hint="give the file of a public key") from None
        words = content.split() if content.startswith(b"ssh-") else []
        comment = words[2].decode("ascii", "replace") if len(words) > 2 else Path(given).stem
        return PublicKey.parse(content), comment if is_label(comment) else ""
    folder = KeyFolder() if folder is None else folder
    if given in folder:
        return folder.public(given), given
    raise unreadable


@keys_app.command("remove", hidden=True)
@keys_app.command("untrust")
def untrust_key(key: Trusted, json: Json = False) -> None:
    """Trust a key no longer: packs that it signed are refused."""
    from pumice.packs.trust import TrustStore

    entry = TrustStore().remove(key)
    _print(entry.to_json()) if json else print(f"no longer trusted: {entry.key.fingerprint}  {entry.label}")


@keys_app.command("revoke")
def revoke_key(
    key: Annotated[
        str, typer.Argument(metavar="FILE|KEY", help="A file with signed revocations, a key of yours, or any key or fingerprint.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For a key of yours: write the signed revocation, for others.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take back a revocation of yours.")] = False,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Refuse a key from now on, trusted or not."""
    from pumice.errors import InputError
    from pumice.packs.keys import KeyFolder
    from pumice.packs.statements import sign_revocation
    from pumice.packs.trust import TrustStore

    store, folder = TrustStore(), KeyFolder()
    if out is not None:
        if key not in folder or undo:
            raise InputError("--out is for revoking a key of your own", hint="pumice pack keys list shows yours")
        statement = sign_revocation(folder.open(key, lambda: passphrase_of(key, passphrase_file)))
        write_file(out, statement.text)
        entries = [store.honour(statement)]
    elif (statements := _statements(key)) is not None:
        entries = [store.honour(found) for found in statements]
    else:
        named = folder.public(key).text if key in folder else key
        entries = [store.unrevoke(named) if undo else store.revoke(named)]
    if json:
        _print({"undone" if undo else "revoked": [entry.to_json() for entry in entries]})
        return
    for entry in entries:
        print(f"{'no longer revoked' if undo else 'revoked'}: {entry.fingerprint}")
        for adopted in (found for found in store.state().keys if found.adopted_from == entry.fingerprint and not undo):
            print(
                f"  trusted on its word: {adopted.key.fingerprint}  {adopted.label}; pumice pack keys untrust, if that is wrong"
            )


@keys_app.command("rotate")
def rotate_key(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The key of yours to replace.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its successor: another key of yours, a public key or its file.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write the statement.", show_default="standard output")
    ] = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Let a key sign its successor: those who trust the old key can adopt the new one from the statement."""
    from pumice.packs.keys import KeyFolder
    from pumice.packs.statements import sign_rotation
    from pumice.packs.trust import TrustStore

    successor, _ = public_key(new)
    statement = sign_rotation(KeyFolder().open(old, lambda: passphrase_of(old, passphrase_file)), successor)
    store = TrustStore()
    here = store.state().get(statement.key) is not None
    if here:
        store.adopt(statement)
    if out is not None:
        write_file(out, statement.text)
    text = statement.text.decode()
    if json:
        _print({"old": statement.key.fingerprint, "new": successor.fingerprint, "statement": text, "adopted": here})
    elif out is None:
        print(text, end="")
    else:
        print(
            f"{out}: {statement.key.fingerprint} is replaced by {successor.fingerprint}" + ("; adopted here too" if here else "")
        )


@keys_app.command("adopt")
def adopt_key(
    source: Annotated[
        Path, typer.Argument(metavar="FILE|PACK", help="A rotation statement, or a verified pack that announces its next key.")
    ],
    json: Json = False,
) -> None:
    """Trust the successor of a trusted key; the old key then counts only for packs made before."""
    from pumice.packs.archive import read_pack
    from pumice.packs.trust import TrustStore, adopt_next_key, verify_pack

    store = TrustStore()
    statements = _statements(str(source))
    if statements is None:
        entries = [adopt_next_key(verify_pack(read_pack(source), store), store)]
    else:
        entries = [store.adopt(statement) for statement in statements]
    if json:
        _print({"adopted": [entry.to_json() for entry in entries]})
        return
    for entry in entries:
        print(f"adopted: {entry.key.fingerprint}  {entry.label}")


@keys_app.command("export")
def export_key(
    key: Annotated[str, typer.Argument(metavar="NAME|KEY", help="A key of yours by its name, or a trusted one.")],
    form: Annotated[
        Literal["ed25519", "openssh", "hex"], typer.Option(help="ed25519: as manifests have it; openssh: a line; hex.")
    ] = "ed25519",
    json: Json = False,
) -> None:
    """Print a public key, for others to trust."""
    from pumice.packs.keys import KeyFolder
    from pumice.packs.trust import TrustStore

    folder = KeyFolder()
    found = folder.public(key) if key in folder else TrustStore().state().find(key).key
    forms = {"ed25519": found.text, "openssh": f"{found.openssh} {key if key in folder else ''}".strip(), "hex": found.raw.hex()}
    _print({"fingerprint": found.fingerprint, **forms}) if json else print(forms[form])


@allow_app.command("list")
def list_allowed(json: Json = False) -> None:
    """Show the allowlist, and whether it is enforced."""
    from pumice.packs.trust import TrustStore

    _show_allowlist(TrustStore(), json)


@allow_app.command("add")
def allow_hash(
    what: Annotated[str, typer.Argument(metavar="HASH|PACK", help="sha256:… of a kernel, or a verified pack: all its kernels.")],
    kernel: Annotated[
        str | None,
        typer.Option(metavar="ID", help="For kernels of this id only.", show_default="all without a list of their own"),
    ] = None,
    json: Json = False,
) -> None:
    """Allow a kernel by its hash, or the kernels of a pack, each by its id and hash."""
    from pumice.packs.allowlist import Allowlist
    from pumice.packs.archive import read_pack
    from pumice.packs.trust import TrustStore, check_content, find_signer

    store, more = TrustStore(), Allowlist()
    if kernel is None and Path(what).exists():
        files = read_pack(Path(what))
        manifest, _ = check_content(files, signer=find_signer(files, store.state()))
        for found in manifest.kernels:
            more = more.add(found.hash, found.id)
    else:
        more = more.add(what, kernel)
    store.change_allowlist(lambda allowed: allowed.merge(more))
    _show_allowlist(store, json)


@allow_app.command("remove")
def disallow_hash(
    hash: Annotated[str | None, typer.Argument(metavar="HASH", help="The hash; without it the whole list of a kernel.")] = None,
    kernel: Annotated[str | None, typer.Option(metavar="ID", help="From the list of this kernel.")] = None,
    json: Json = False,
) -> None:
    """Take a hash off the allowlist, or the whole list of a kernel."""
    from pumice.packs.trust import TrustStore

    store = TrustStore()
    store.change_allowlist(lambda allowed: allowed.remove(hash, kernel))
    _show_allowlist(store, json)


@allow_app.command("merge")
def merge_allowlist(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An allowlist as JSON: {version, kernels: {id: [hashes]}}.")],
    json: Json = False,
) -> None:
    """Add all that another allowlist has."""
    from pumice.packs.allowlist import Allowlist
    from pumice.packs.json_text import MAX_BYTES
    from pumice.packs.trust import TrustStore

    other = Allowlist.from_json(read_file(file, MAX_BYTES), str(file))
    store = TrustStore()
    store.change_allowlist(lambda allowed: allowed.merge(other))
    _show_allowlist(store, json)


@allow_app.command("enforce")
def enforce_allowlist(
    state: Annotated[Literal["on", "off"], typer.Argument(metavar="on|off", help="Whether packs are held to the list.")],
    json: Json = False,
) -> None:
    """Refuse packs with kernels that the allowlist does not name, or stop doing so."""
    from dataclasses import replace

    from pumice.packs.trust import TrustStore

    store = TrustStore()
    store.change_allowlist(lambda allowed: replace(allowed, enforce=state == "on"))
    _show_allowlist(store, json)


def _show_allowlist(store: TrustStore, json: bool) -> None:
    allowed = store.allowlist()
    if json:
        print(json_text.dumps(json_text.loads(allowed.to_json())))
        return
    print("enforced" if allowed.enforce else "not enforced: packs are not held to it (pumice pack allow enforce on)")
    for name, hashes in [*sorted(allowed.kernels.items()), ("any other kernel", allowed.hashes)]:
        print("\n".join([f"{name}:", *(f"  {hash}" for hash in sorted(hashes))]) if hashes else f"{name}: none")


def _statements(source: str) -> list[Statement] | None:
    """The statements in a file; None where it is none of that kind."""
    from pumice.packs.statements import MAX_STATEMENTS, is_statement, read_statements

    if not Path(source).is_file():
        return None
    with Path(source).open("rb") as file:
        claims = is_statement(file.read(64))
    return read_statements(read_file(Path(source), MAX_STATEMENTS)) if claims else None


def read_file(file: Path, limit: int) -> bytes:
    """The content of a file that the user names."""
    from pumice.core.private import read_plain
    from pumice.errors import InputError

    try:
        return read_plain(file, limit)
    except OSError as e:
        raise InputError(f"{file} cannot be read: {e.strerror or e}", hint="check its path", path=str(file)) from None


def write_file(file: Path, content: bytes, mode: int = 0o666) -> None:
    """Writes a file that the user names."""
    from pumice.core.whole_file import write_whole
    from pumice.errors import InputError

    try:
        write_whole(file, content, mode=mode)
    except OSError as e:
        raise InputError(f"{file} cannot be written: {e.strerror}", hint="give another --out", path=str(file)) from None


def _print(value: dict[str, Any]) -> None:
    print(json_text.dumps(value))
