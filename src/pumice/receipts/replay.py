"""What a second run of the same request says of a receipt: the class that it reached, and where the two part first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pumice.receipts.artifacts import JSON_TYPE, NPY_TYPE, array_of, json_value
from pumice.receipts.compare import (
    BIT_EXACT,
    CLASSES,
    DIFFERENT,
    TOKEN_EQUAL,
    TOLERANCE,
    ComparedOutput,
    compare_output,
)
from pumice.receipts.errors import ModelMismatch, NotReplayable
from pumice.receipts.receipt import Receipt
from pumice.receipts.section import referred
from pumice.receipts.verify import VerifiedReceipt
from pumice.routes.documents import plain, same
from pumice.routes.rules import is_object

TOKENS = "tokens"
_T = TypeVar("_T")


@dataclass(frozen=True)
class Replay:
    """A receipt and a second run: `reached` is one of CLASSES."""

    reached: str
    outputs: tuple[ComparedOutput, ...]
    inputs: tuple[ComparedOutput, ...]
    plans: tuple[Mapping[str, str | None], ...]
    same_caps: bool
    device: str
    notes: tuple[str, ...]
    receipt: Receipt

    @property
    def same_plans(self) -> bool:
        """Whether both ran the same plans."""
        return all(plan["receipt"] == plan["replay"] for plan in self.plans)

    def to_json(self) -> dict[str, Any]:
        """What `--json` says of it."""
        return {
            "class": self.reached,
            "device": self.device,
            "same_caps": self.same_caps,
            "same_plans": self.same_plans,
            "outputs": [asdict(output) for output in self.outputs],
            "inputs": [asdict(found) for found in self.inputs],
            "plans": [dict(plan) for plan in self.plans],
            "notes": list(self.notes),
        }


class Given:
    """What a verified receipt gives to run again: its request, with what private receipts keep apart, and its inputs."""

    def __init__(self, receipt: VerifiedReceipt) -> None:
        self.receipt, self.section = receipt, receipt.section
        hidden = {name: self.json(role) for name, role in referred(self.section["request"]).items()}
        self.request: Mapping[str, Any] = {**plain(self.section["request"]), **hidden}

    @property
    def model(self) -> Mapping[str, Any]:
        """The model, with the paths that private receipts keep apart, as far as they are known."""
        return self._with_paths(plain(self.section["model"]))

    def _with_paths(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        known = {name: self.json(role) for name, role in referred(entry).items() if role in self.receipt.contents}
        lora = {"lora": self._with_paths(entry["lora"])} if is_object(entry.get("lora")) else {}
        return {**entry, **known, **lora}

    @property
    def roles(self) -> Mapping[str, Any]:
        """The inputs by role, as the receipt describes them."""
        found: Mapping[str, Any] = self.section["artifacts"]["inputs"]
        return found

    def content(self, role: str) -> bytes:
        """The bytes of an artefact, where they are known."""
        if role not in self.receipt.contents:
            raise NotReplayable(
                f"the content of {role} is not in the receipt, which has only its hash",
                hint=f"give it: --artifact {role}=FILE; of a private receipt, its opening: --opening FILE",
                role=role,
            )
        return self.receipt.contents[role]

    def text(self, role: str) -> str:
        """An artefact that is a text."""
        return self._read(role, bytes.decode)

    def json(self, role: str) -> Any:
        """An artefact that is a JSON value."""
        return self._read(role, json_value)

    def _read(self, role: str, read: Callable[[bytes], _T]) -> _T:
        content = self.content(role)
        try:
            return read(content)
        except (ValueError, EOFError) as problem:
            raise NotReplayable(f"the content of {role} is not what its type says: {problem}", role=role) from None

    def is_json(self, role: str) -> bool:
        """Whether an input is a JSON value, and not a text."""
        return bool(self.roles[role]["mediaType"] == JSON_TYPE)

    def arrays(self) -> dict[str, Any]:
        """All inputs that are arrays."""
        names = [role for role, entry in self.roles.items() if entry["mediaType"] == NPY_TYPE]
        return {name: self._read(name, array_of) for name in names}


def check_files(listed: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]], what: str) -> None:
    """Raises ModelMismatch where files that are here are not those that a receipt names.

    >>> check_files([{"name": "a.gguf", "bytes": 1, "sha256": "ab" * 32}], [], "the model")
    Traceback (most recent call last):
    pumice.receipts.errors.ModelMismatch: [model-mismatch] the model has no file a.gguf, which the receipt names
      hint: give the model that ran: --model PATH
    """
    hint, here = "give the model that ran: --model PATH", {file["name"]: file for file in found}
    for file in listed:
        name = file["name"]
        if name not in here:
            raise ModelMismatch(f"{what} has no file {name}, which the receipt names", hint=hint, file=name)
        if here[name]["sha256"] != file["sha256"]:
            differ = f"its SHA-256 is {here[name]['sha256']}, the receipt says {file['sha256']}"
            raise ModelMismatch(f"{name} of {what} is not the file that ran: {differ}", hint=hint, file=name)
    if more := sorted(here.keys() - {file["name"] for file in listed}):
        raise ModelMismatch(f"{what} has the file {more[0]}, which the receipt does not name", hint=hint, file=more[0])


def compare_runs(old: VerifiedReceipt, new: Receipt, tolerance: float = TOLERANCE) -> Replay:
    """The class that a second run of a receipt's request reached, from the receipt that it got itself."""
    given, section = Given(old), new.document["pumice"]
    outputs = tuple(_compared(given, new, role, "outputs", tolerance) for role in given.section["artifacts"]["outputs"])
    inputs = tuple(_compared(given, new, role, "inputs", tolerance) for role in given.roles if role in new.artifacts)
    digests = [{plan["name"]: plan["digest"] for plan in entry["plans"]} for entry in (given.section, section)]
    plans = tuple({"name": n, "receipt": digests[0].get(n), "replay": digests[1].get(n)} for n in {**digests[0], **digests[1]})
    same_caps = same(plain(given.section["caps"]), plain(section["caps"]))
    same_plans = digests[0] == digests[1]
    device = f"{section['device'].get('name')} ({section['device'].get('backend')})"
    reached = _class(outputs, inputs, same_plans=same_plans)
    notes = tuple(_notes(given.section, section, same_caps=same_caps, same_plans=same_plans))
    return Replay(reached, outputs, inputs, plans, same_caps, device, notes, new)


def _compared(given: Given, new: Receipt, role: str, side: str, tolerance: float) -> ComparedOutput:
    entry = given.section["artifacts"][side][role]
    if role not in new.artifacts:
        return ComparedOutput(role, DIFFERENT, False, "the second run has no such output")
    after = new.artifacts[role]
    known = role in given.receipt.contents
    if not known and entry["hash"] == "sha-256":
        listed = next(found for found in given.receipt.document[side] if found["role"] == role)
        equal, numbers = listed["sha256"] == after.sha256, entry["mediaType"] == NPY_TYPE
        why = "the receipt has only the hash of its content, so that the place is not known"
        return ComparedOutput(role, BIT_EXACT if equal else DIFFERENT, numbers, "" if equal else why)
    return compare_output(role, entry["mediaType"], given.content(role), after.content, tolerance)


def _class(outputs: Sequence[ComparedOutput], inputs: Sequence[ComparedOutput], *, same_plans: bool) -> str:
    if any(found.reached != BIT_EXACT for found in inputs):
        return DIFFERENT  # such as tokens of another tokeniser: the two runs did not begin alike
    exact = all(found.reached == BIT_EXACT for found in outputs)
    generated = any(found.role == TOKENS for found in outputs)
    if exact:
        # Equal tokens of other kernels may come from numbers that differ: where none were compared, nothing more is known.
        proven = same_plans or any(found.numbers for found in outputs)
        return BIT_EXACT if proven or not generated else TOKEN_EQUAL
    if generated:
        return TOKEN_EQUAL if all(found.numbers or found.reached == BIT_EXACT for found in outputs) else DIFFERENT
    return max((found.reached for found in outputs), key=CLASSES.index)


def _notes(old: Mapping[str, Any], new: Mapping[str, Any], *, same_caps: bool, same_plans: bool) -> list[str]:
    """What else may explain a difference."""
    notes = []
    if not same_caps:
        notes.append("another device: its plans are others, and sums may be in another order")
    elif not same_plans and old["conditions"].get("batch", 1) in (0, 1):
        notes.append("the same caps, but other plans: another version of Pumice, other packs or another tuning")
    then, now = old["software"], new["software"]
    # Each kind of device has its own library beside those that all have.
    versions = [f"{name} {then[name]} then, {now[name]} now" for name in then if name in now and then[name] != now[name]]
    if versions:
        notes.append(f"other software: {', '.join(versions)}")
    conditions = old["conditions"]
    if conditions.get("batch", 1) not in (0, 1):
        notes.append(f"it ran in a batch of {conditions['batch']} sequences then, and alone now")
    if conditions.get("reused_tokens"):
        notes.append(f"{conditions['reused_tokens']} tokens of the prompt were in the cache then")
    if old["degraded"]:
        notes.append("kernels of packs had failed before it ran")
    return notes
