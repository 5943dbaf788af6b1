"""`pumice pack install|upgrade|list|enable|disable|rollback|remove`: the packs that are installed here."""

from __future__ import annotations

import json as json_text
import sys
import warnings
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pumice.cli.pack import Json, Pack, pack_app

if TYPE_CHECKING:
    from pumice.packs.lifecycle import InstalledPack, StoredPack, Use
    from pumice.packs.store import Change, PackStore

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of an installed pack; `pumice pack list` shows them.")]
Kernel = Annotated[str | None, typer.Option(metavar="ID", help="Only this kernel of the pack.", show_default="all")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Take it without asking who signed it; it stays marked as such.")]
NewSigner = Annotated[bool, typer.Option("--new-signer", help="Take it although another key signed the installed version.")]
Older = Annotated[bool, typer.Option("--older", help="Take it although a later version is installed.")]
Grace = Annotated[float, typer.Option(min=0, max=86400, help="Seconds for which a version that is replaced twice is kept.")]

_USES = {
    "measured": "used where it is measured to be faster",
    "always": "used wherever it fits",
    "never": "not used",
}  # fmt: skip


@pack_app.command()
def install(
    pack: Pack,
    insecure: Insecure = False,
    new_signer: NewSigner = False,
    older: Older = False,
    grace: Grace = 300,
    json: Json = False,
) -> None:
    """Install a pack, or another version of one: verified, checked, switched to at once, rolled back if that fails."""
    from pumice.packs.store import PackStore

    _show(PackStore(grace=grace).install(pack, insecure=insecure, new_signer=new_signer, older=older), json)


@pack_app.command()
def upgrade(
    pack: Pack,
    insecure: Insecure = False,
    new_signer: NewSigner = False,
    older: Older = False,
    grace: Grace = 300,
    json: Json = False,
) -> None:
    """Install another version of a pack that is installed; the one before stays for rollback."""
    from pumice.packs.store import PackStore

    _show(PackStore(grace=grace).upgrade(pack, insecure=insecure, new_signer=new_signer, older=older), json)


@pack_app.command("list")
def list_packs(json: Json = False) -> None:
    """Show the installed packs: version, digest, who signed them, whether they are used, and what is wrong with them."""
    from pumice.packs.store import PackStore

    store = PackStore()
    found = [_describe(store, pack) for pack in store.installed()]
    if json:
        print(json_text.dumps({"folder": str(store.folder), "packs": found}))
        return
    for pack in found:
        _print_pack(pack)
    if not found:
        print("no packs are installed; `pumice pack install FILE` installs one")


@pack_app.command()
def enable(
    name: Name,
    kernel: Kernel = None,
    always: Annotated[bool, typer.Option("--always", help="Use it wherever it fits, whatever was measured.")] = False,
    measured: Annotated[bool, typer.Option("--measured", help="Use it where it is measured to be faster.")] = False,
    json: Json = False,
) -> None:
    """Use a pack again, or say how its kernels are chosen."""
    from pumice.errors import InputError
    from pumice.packs.store import PackStore

    if always and measured:
        raise InputError("--always and --measured exclude each other", hint="give one of them")
    use: Use | None = "always" if always else "measured" if measured else None
    _show(PackStore().enable(name, kernel=kernel, use=use), json, kernel)


@pack_app.command()
def disable(name: Name, kernel: Kernel = None, json: Json = False) -> None:
    """Stop the use of a pack, or of one of its kernels; it stays installed."""
    from pumice.packs.store import PackStore

    _show(PackStore().disable(name, kernel=kernel), json, kernel)


@pack_app.command()
def rollback(name: Name, json: Json = False) -> None:
    """Go back to the version before; a second time returns to this one."""
    from pumice.packs.store import PackStore

    _show(PackStore().rollback(name), json)


@pack_app.command()
def remove(name: Name, json: Json = False) -> None:
    """Remove a pack, with its version before and what was measured of it."""
    from pumice.packs.choice import Choices
    from pumice.packs.store import PackStore

    store = PackStore()
    change = store.remove(name)
    Choices(store.folder, store.use_of).forget([name])
    _show(change, json)


# --- what is printed ---


def _show(change: Change, as_json: bool, kernel: str | None = None) -> None:
    following = _next_step(change)
    if as_json:
        print(json_text.dumps(_change_dict(change) | {"kernel": kernel, "next": following}))
        return
    if change.pack and change.pack.insecure:
        print(f"pumice: INSECURE: nobody's signature of {change.name} {change.pack.version} was checked", file=sys.stderr)
    print(_what_happened(change, kernel))
    if change.findings:
        counts = Counter(f.checked for f in change.findings)
        print(f"  checked {len(change.findings)} kernels: " + ", ".join(f"{n} {what}" for what, n in counts.items()))
    if following:
        print(f"  {following}")


def _what_happened(change: Change, kernel: str | None) -> str:
    pack, before = change.pack, change.before
    if pack is None:
        return f"removed {change.name} {before.version if before else ''}"
    by = "INSECURE" if pack.insecure else f"signed by {pack.signer}"
    match change.what:
        case "upgraded" | "downgraded" | "rolled back" if before:
            return f"{change.what}: {pack.name} {before.version} → {pack.version} ({by})"
        case "unchanged":
            return f"{pack.name} {pack.version} is installed already ({by})"
        case "enabled" | "disabled":
            of = f"{kernel} of {pack.name}" if kernel else pack.name
            use = pack.use_of(kernel) if kernel else pack.use if pack.enabled else "never"
            return f"{of} {pack.version} is {_USES[use]}"
    return f"{change.what} {pack.name} {pack.version} ({by})"


def _next_step(change: Change) -> str:
    name, pack = change.name, change.pack
    if pack is None:
        return ""
    match change.what:
        case "upgraded" | "downgraded" | "rolled back":
            back = f"`pumice pack rollback {name}` returns to {change.before.version}" if change.before else ""
            return back if pack.enabled else f"it is disabled: `pumice pack enable {name}` uses it; {back}"
        case "installed":
            return (
                f"it is used where it is measured to be faster; `pumice pack enable {name} --always` uses it wherever it fits,"
                f" `pumice pack disable {name}` not at all"
            )
        case "disabled":
            return f"`pumice pack enable {name}` uses it again"
    return ""


def _change_dict(change: Change) -> dict[str, Any]:
    checks = [{"kernel": f.kernel, "checked": f.checked, "problem": f.problem} for f in change.findings]
    before = _stored_dict(change.before) if change.before else None
    pack = _pack_dict(change.pack) if change.pack else None
    return {"what": change.what, "name": change.name, "pack": pack, "before": before, "checks": checks}


def _stored_dict(stored: StoredPack) -> dict[str, Any]:
    return {
        "version": stored.version,
        "digest": stored.digest,
        "signer": stored.signer,
        "insecure": stored.insecure,
        "installed_at": datetime.fromtimestamp(stored.installed_at, UTC).isoformat(timespec="seconds"),
    }


def _pack_dict(pack: InstalledPack) -> dict[str, Any]:
    return {
        "name": pack.name,
        **_stored_dict(pack.current),
        "enabled": pack.enabled,
        "use": pack.use,
        "kernel_uses": dict(pack.kernels),
        "previous": _stored_dict(pack.previous) if pack.previous else None,
    }


def _describe(store: PackStore, pack: InstalledPack) -> dict[str, Any]:
    """A pack as it is now: verified again, with what failed and what was measured of it."""
    from pumice.errors import PumiceError
    from pumice.packs.choice import Choices
    from pumice.packs.degraded_file import kept

    kernels: tuple[str, ...] = ()
    problem = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is insecure is part of the answer
        try:
            kernels = store.active(pack.name).manifest.kernel_ids
        except PumiceError as e:
            problem = {"code": e.code, "message": e.message, "hint": e.hint}
    times = [t for t in Choices(store.folder, store.use_of).measured() if (t.pack, t.digest) == (pack.name, pack.digest)]
    return _pack_dict(pack) | {
        "kernels": list(kernels),
        "problem": problem,
        "degraded": [d.to_dict() for d in kept(store.folder) if d.pack == pack.name],
        "measured": [
            {"device": t.device, "kernel": t.kernel, "op": t.op, "signature": t.signature, "seconds": t.seconds,
             "built_in_seconds": t.built_in_seconds, "faster": t.is_faster}
            for t in times
        ],
    }  # fmt: skip


def _print_pack(pack: dict[str, Any]) -> None:
    use = _USES[pack["use"] if pack["enabled"] else "never"]
    print(f"{pack['name']} {pack['version']}  {'enabled' if pack['enabled'] else 'disabled'}: {use}")
    print(f"  digest    sha256:{pack['digest']}")
    print("  signer    " + ("INSECURE: nobody's signature was checked" if pack["insecure"] else pack["signer"]))
    if pack["problem"]:
        print(f"  REFUSED   {pack['problem']['message']}; {pack['problem']['hint']}")
    else:
        print(f"  kernels   {', '.join(pack['kernels'])}")
    for kernel, word in pack["kernel_uses"].items():
        print(f"  {kernel} is {_USES[word]}")
    if previous := pack["previous"]:
        mark = ", INSECURE" if previous["insecure"] else ""
        print(f"  before    {previous['version']} (sha256:{previous['digest'][:16]}…{mark}): pumice pack rollback {pack['name']}")
    for failed in pack["degraded"]:
        print(f"  degraded  {failed['kernel']}: {failed['code']} × {failed['count']}: {failed['message']}")
    if times := pack["measured"]:
        faster = sum(t["faster"] for t in times)
        print(f"  measured  {len(times)} times, faster than the built-in kernel in {faster}")
