"""Verification of receipts without a device: keys, rules, contents, private receipts and their openings, and the command."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import json_schema
import route_kit
from cli_harness import environment
from pumice import config
from pumice.cli.main import app, error_text
from pumice.cli.receipt_text import receipt_lines
from pumice.errors import InputError, PumiceError, PumiceWarning
from pumice.packs.errors import KeyRevoked
from pumice.packs.keys import SigningKey
from pumice.packs.trust_store import TrustStore
from pumice.receipts.artifacts import Artifact
from pumice.receipts.commitments import Opening, find_opening, kept_openings, read_opening
from pumice.receipts.envelope import read_envelope, sign_envelope
from pumice.receipts.errors import ArtifactMismatch, BadOpening, BrokenLog, InvalidReceipt, ReceiptError, UntrustedSigner
from pumice.receipts.keys import own_key
from pumice.receipts.log import ReceiptLog
from pumice.receipts.receipt import Receipt, example_receipt, make_receipt, subject_of
from pumice.receipts.replay import Given
from pumice.receipts.section import RUN, receipt_errors
from pumice.receipts.verify import CHECKS, verify_receipt
from pumice.routes.backend import backend_identity
from pumice.routes.documents import plain
from pumice.routes.staged import stage, staged_profile

KEY = SigningKey.from_seed(bytes(range(32)))
HOME = config.get("home")


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Any:
    with config.override(home=tmp_path / "home"):
        yield tmp_path / "home"


def receipt(**more: Any) -> Receipt:
    """A receipt with a text, ids and arrays, and a request that would reveal the prompt."""
    given: dict[str, Any] = {
        "task": "generate",
        "route_id": "pumice.generate.v1",
        "inputs": [Artifact.text("prompt", "The secret is"), Artifact.array("x", np.arange(6, dtype=np.float32).reshape(2, 3))],
        "outputs": [Artifact.text("text", " out."), Artifact.ids("tokens", [7, 8, 9])],
        "backend": backend_identity("GPU", features=[], limits={"maxBufferSize": 1 << 30}),
        "model": {"name": "m", "dtype": "f32", "params": {"count": 2, "sha256": "ab" * 32}},
        "profile": staged_profile([stage("prefill", 1), stage("decode", 2)]),
        "request": {"seed": 1, "stop": ["secret"], "system": "whisper", "cache_dtype": "f32", "logit_bias": {"7": 1.5}},
        "plans": [],
        "device": {"name": "GPU", "backend": "webgpu"},
        "caps": {},
        "software": {},
    }
    return make_receipt(**{**given, **more})


def forged(change: Callable[[dict[str, Any]], object], made: Receipt | None = None) -> bytes:
    """What a lying signer can write: a changed document under a right signature."""
    document = plain((made or receipt()).document)
    change(document)
    return sign_envelope(document, subject_of(document), KEY)


# -- keys ---------------------------------------------------------------------------------------------------------------
def test_the_own_key_is_made_once_and_counts() -> None:
    line = receipt().sign()
    assert own_key().public == own_key().public == read_envelope(line).key
    assert verify_receipt(line).signer == "this machine's own key"


def test_another_key_must_be_trusted_given_or_waived(tmp_path: Path) -> None:
    line, store = receipt().sign(KEY), TrustStore(tmp_path / "trust")
    with pytest.raises(UntrustedSigner, match=r"not trusted here"):
        verify_receipt(line, trust=store)
    assert verify_receipt(line, trust=store, any_key=True).signer == "a key that nobody here vouches for"
    assert verify_receipt(line, trust=store, key=KEY.public).signer == "the key that was asked for"
    with pytest.raises(UntrustedSigner, match="not by"):
        verify_receipt(line, trust=store, key=SigningKey.generate().public)
    store.add(KEY.public, "lab")
    assert verify_receipt(line, trust=store).signer == "a trusted key (lab)"
    store.revoke("lab")
    for options in ({}, {"any_key": True}, {"key": KEY.public}):
        with pytest.raises(KeyRevoked):
            verify_receipt(line, trust=store, **options)  # type: ignore[arg-type]


# -- documents ----------------------------------------------------------------------------------------------------------
def test_receipts_pass_the_package_s_own_check_public_private_and_signed() -> None:
    made = [receipt(), receipt().as_private(), example_receipt(), example_receipt().as_private()]
    documents = [plain(found.document) for found in made]
    documents += [plain(read_envelope(found.sign(KEY, position={"index": 3, "previous": "cd" * 32})).predicate) for found in made]
    with config.override(home=HOME):  # where the package is kept
        answers = route_kit.call([("validateRouteReceipt", document) for document in documents])
    assert [answer["value"]["ok"] for answer in answers] == [True] * len(documents), answers


def test_the_json_schema_takes_what_the_rules_take() -> None:
    schema = RUN.json_schema()
    for made in (receipt(), receipt().as_private()):
        section = plain(made.document["pumice"])
        assert json_schema.agrees(section, schema, schema)
        for name in ("schema", "task", "artifacts", "plans", "model"):
            broken = {k: v for k, v in section.items() if k != name}
            assert not json_schema.agrees(broken, schema, schema) and RUN.errors(broken)


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no section": (lambda d: d.pop("pumice"), "pumice must be an object"),
    "another schema": (lambda d: d["pumice"].update(schema="x"), "pumice.schema must be pumice.run.v1"),
    "a processor that claims WebGPU": (lambda d: d["pumice"]["device"].update(backend="host"), "status must not be real"),
    "a role of no artefact": (lambda d: d["inputs"].pop(), "pumice.artifacts.inputs must have the roles of inputs"),
    "an entry of no artefact": (lambda d: d["pumice"]["artifacts"]["outputs"].pop("text"), "must have the roles of outputs"),
    "other weights": (
        lambda d: d["pumice"]["model"]["params"].update(sha256="cd" * 32),
        "the name and the weights",
    ),
    "files and params": (lambda d: d["pumice"]["model"].update(files=[]), "pumice.model must have files or params"),
    "a file without hash": (
        lambda d: d["pumice"].update(model={"name": "m", "dtype": "f", "files": [{"name": "a", "bytes": 1}]}),
        "pumice.model.files must be a list of files",
    ),
    "a plan without digest": (lambda d: d["pumice"]["plans"].append({"name": "p"}), r"pumice.plans\[0\].digest"),
    "content of a salted hash": (
        lambda d: d["pumice"]["artifacts"]["inputs"]["prompt"].update(hash="salted-sha-256"),
        "content must be absent where the hash is salted",
    ),
    "content without encoding": (lambda d: d["pumice"]["artifacts"]["inputs"]["x"].pop("encoding"), "must come together"),
    "a position after no line": (
        lambda d: d["pumice"].update(log={"index": 2, "previous": "0" * 64}),
        "previous must be",
    ),
    "a first position after a line": (lambda d: d["pumice"].update(log={"index": 0, "previous": "ab" * 32}), "previous must be"),
    "a negative position": (lambda d: d["pumice"].update(log={"index": -1, "previous": "ab" * 32}), "pumice.log.index"),
    "an artefact that is not there": (lambda d: d["pumice"]["request"].update(a={"artifact": "b"}), "names an artefact"),
    "a hash in capitals": (lambda d: d["outputs"][0].update(sha256="AB" * 32), "sha256 must be a SHA-256 in lower-case"),
    "a role on both sides": (lambda d: _twice(d), "a role must occur once"),
    "a broken receipt": (lambda d: d.pop("timings"), "timings must be an object"),
}


def _twice(document: dict[str, Any]) -> None:
    document["outputs"].append({**document["inputs"][1], "status": "real"})
    document["pumice"]["artifacts"]["outputs"]["x"] = document["pumice"]["artifacts"]["inputs"]["x"]


@pytest.mark.parametrize("what", BROKEN)
def test_a_signed_document_that_breaks_a_rule_is_refused_by_its_name(what: str) -> None:
    change, message = BROKEN[what]
    with pytest.raises(InvalidReceipt, match=message) as caught:
        verify_receipt(forged(change), key=KEY.public)
    assert caught.value.fields["errors"]


def test_a_document_that_breaks_a_rule_is_not_made() -> None:
    with pytest.raises(Exception, match="status must not be real"):
        _ = receipt(device={"name": "CPU", "backend": "host"}).document
    with pytest.raises(ReceiptError, match="the role text occurs twice"):
        receipt(inputs=[Artifact.text("text", "a")])


@pytest.mark.parametrize("value", [None, [], "x", 0, {"a": [{}]}])
@pytest.mark.parametrize("name", ["model", "plans", "packs", "device", "artifacts", "request", "log"])
def test_hostile_sections_are_reported_and_never_crash(name: str, value: object) -> None:
    document = plain(receipt().document)
    document["pumice"][name] = value
    assert isinstance(receipt_errors(document), list)
    for side in ("inputs", "outputs", "model"):
        assert receipt_errors({**document, side: value})


def mutated(value: Any, chance: random.Random) -> Any:
    """The same JSON with one or two places changed, taken out or put in."""
    found = json.loads(json.dumps(value))
    for _ in range(chance.choice((1, 1, 2))):
        place = found
        while True:
            name = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
            inner = place[name]
            if not (isinstance(inner, (dict, list)) and inner) or chance.random() < 0.3:
                break
            place = inner
        change = chance.random()
        if change < 0.2:
            place.pop(name)
        elif change < 0.3 and isinstance(place, dict):
            place[chance.choice(("", "x", "artifact", "role"))] = inner
        else:
            place[name] = chance.choice((None, True, -1, 2**63, 0.5, "", "x", "é\x00", [], {}, [[]], {"artifact": []}, "ab" * 32))
    return found


def test_mutated_documents_verify_or_are_refused_but_never_crash() -> None:
    chance = random.Random(16)
    documents = [plain(receipt().document), plain(receipt().as_private().document), plain(example_receipt().document)]
    outcomes: Counter[str] = Counter()
    for _ in range(600):
        document = mutated(chance.choice(documents), chance)
        outputs = document.get("outputs")
        try:
            subject = subject_of(document) if isinstance(outputs, list) else []
        except (TypeError, KeyError):
            subject = []
        try:
            found = verify_receipt(sign_envelope(document, subject, KEY), key=KEY.public)
        except ReceiptError as error:
            outcomes[error.code] += 1
            continue
        outcomes["verified"] += 1
        assert all("\x00" not in line and "\n" not in line for line in receipt_lines(found.envelope))
        with suppress(ReceiptError):
            Given(found).arrays()
    assert outcomes.keys() == {"verified", "invalid-receipt", "artifact-mismatch"}, outcomes


# -- contents -----------------------------------------------------------------------------------------------------------
def test_contents_are_known_and_canonical() -> None:
    found = verify_receipt(receipt().sign(KEY), key=KEY.public).contents
    assert found["prompt"] == b"The secret is" and found["tokens"] == b"[7,8,9]"
    file = np.lib.format.read_array(__import__("io").BytesIO(found["x"]))
    assert file.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_an_array_s_hash_is_that_of_its_saved_file(tmp_path: Path) -> None:
    import hashlib

    array = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
    np.save(tmp_path / "a.npy", array)
    wanted = hashlib.sha256((tmp_path / "a.npy").read_bytes()).hexdigest()
    others = (array, np.asfortranarray(array), array.astype(">f8"), np.ascontiguousarray(array.T).T)
    assert {Artifact.array("a", other).sha256 for other in others} == {wanted}
    assert Artifact.array("a", np.float32(3)).shape == (1,)


def test_an_array_that_changes_later_changes_no_receipt() -> None:
    array = np.zeros(3, np.float32)
    artifact = Artifact.array("x", array)
    before = artifact.sha256
    array[:] = 1
    assert Artifact("x", artifact.media_type, artifact.shape, artifact.content).sha256 == before


LIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "other text": (lambda d: d["pumice"]["artifacts"]["inputs"]["prompt"].update(content="The secret iz"), "prompt has the hash"),
    "shorter text": (lambda d: d["pumice"]["artifacts"]["inputs"]["prompt"].update(content="The"), "prompt has 3 bytes"),
    "another hash": (lambda d: d["outputs"][1].update(sha256="ab" * 32), "tokens has the hash"),
    "another shape": (lambda d: d["outputs"][1].update(shape=[4]), "tokens has 3 elements"),
    "no base64": (lambda d: d["pumice"]["artifacts"]["inputs"]["x"].update(content="*"), "x is not base64"),
    "other base64": (lambda d: _padded(d["pumice"]["artifacts"]["inputs"]["x"]), "x is not base64|not plain base64"),
}


def _padded(entry: dict[str, Any]) -> None:
    entry["content"] = entry["content"].rstrip("=") + "===="


@pytest.mark.parametrize("what", LIES)
def test_contents_that_are_not_their_hashes_are_refused_by_role(what: str) -> None:
    change, message = LIES[what]
    with pytest.raises(ArtifactMismatch, match=message):
        verify_receipt(forged(change), key=KEY.public)


def test_a_subject_of_other_outputs_is_refused() -> None:
    document = plain(receipt().document)
    for subject in ([], subject_of(document)[:1], [{**e, "digest": {"sha256": "ab" * 32}} for e in subject_of(document)]):
        with pytest.raises(InvalidReceipt, match="subject is not the list"):
            verify_receipt(sign_envelope(document, subject, KEY), key=KEY.public)


def test_large_contents_are_hashed_only() -> None:
    large = receipt(outputs=[Artifact.text("text", "x" * (64 * 1024 + 1))])
    found = verify_receipt(large.sign(KEY), key=KEY.public)
    assert "text" not in found.contents and found.section["artifacts"]["outputs"]["text"]["bytes"] == 64 * 1024 + 1


# -- private receipts ---------------------------------------------------------------------------------------------------
def test_a_private_receipt_reveals_no_text_and_no_guessable_hash() -> None:
    public = receipt()
    line = public.as_private().sign(KEY)
    text = json.dumps(read_envelope(line).predicate)
    for secret in ("secret", "whisper", "out.", *(a.sha256 for a in public.artifacts.values())):
        assert secret not in text
    section = read_envelope(line).predicate["pumice"]
    assert section["request"]["seed"] == 1 and section["request"]["cache_dtype"] == "f32"
    assert section["request"]["stop"] == {"artifact": "request.stop"}
    twice = [read_envelope(public.as_private().sign(KEY)).predicate["inputs"][0]["sha256"] for _ in range(2)]
    assert twice[0] != twice[1], "salts are random"


def test_one_artefact_is_opened_and_the_others_stay_hidden() -> None:
    line = receipt().as_private().sign(KEY)
    digest = read_envelope(line).digest
    assert verify_receipt(line, key=KEY.public).contents == {}
    opening = find_opening(digest, "prompt")
    found = verify_receipt(line, key=KEY.public, openings=[read_opening(opening.to_bytes())])
    assert found.contents == {"prompt": b"The secret is"}
    everything = verify_receipt(line, key=KEY.public, openings=kept_openings(digest).values()).contents
    assert everything["request.stop"] == b'["secret"]' and len(everything) == 7


def test_openings_are_kept_for_their_owner_only(home: Path) -> None:
    line = receipt().as_private().sign(KEY)
    file = home / "receipts" / "openings" / f"{read_envelope(line).digest}.json"
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700


def test_openings_that_do_not_fit_are_refused() -> None:
    line, other = (receipt().as_private().sign(KEY) for _ in range(2))
    digest = read_envelope(line).digest
    right = find_opening(digest, "prompt")
    wrong = {
        "is of another receipt": find_opening(read_envelope(other).digest, "prompt"),
        "has the hash": Opening(digest, "prompt", bytes(32), right.content),
        "has 5 bytes": Opening(digest, "prompt", right.salt, b"Other"),
        "has no artefact": Opening(digest, "nothing", right.salt, right.content),
        "text has 13 bytes": Opening(digest, "text", right.salt, right.content),
    }
    for message, opening in wrong.items():
        with pytest.raises(BadOpening, match=message):
            verify_receipt(line, key=KEY.public, openings=[opening])
    # Bytes moved between salt and content have the same hash, but not the same number.
    moved = Opening(digest, "prompt", right.salt[:-1], right.salt[-1:] + right.content)
    with pytest.raises(BadOpening, match="has 14 bytes"):
        verify_receipt(line, key=KEY.public, openings=[moved])
    public = receipt().sign(KEY)
    with pytest.raises(BadOpening, match="not private"):
        verify_receipt(public, key=KEY.public, openings=[Opening(read_envelope(public).digest, "prompt", bytes(32), b"")])


def test_every_byte_of_an_opening_changed_in_turn_is_refused() -> None:
    line = receipt().as_private().sign(KEY)
    data = find_opening(read_envelope(line).digest, "prompt").to_bytes()
    for i in range(len(data) - 1):
        for value in {data[i] ^ 1, data[i] ^ 0x80, ord("=")} - {data[i]}:
            with pytest.raises(BadOpening):
                verify_receipt(line, key=KEY.public, openings=[read_opening(data[:i] + bytes([value]) + data[i + 1 :])])


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 1000, b'{"schema":"pumice.opening.v1"}', b"\xff"])
def test_what_is_no_opening_is_refused(data: bytes) -> None:
    with pytest.raises(BadOpening):
        read_opening(data)


# -- the command --------------------------------------------------------------------------------------------------------
def run(*words: object) -> SimpleNamespace:
    """The command, in this process: what it prints, and the exit code as `main` gives it."""
    done = CliRunner().invoke(app, ["receipt", *map(str, words)])
    error = done.exception if isinstance(done.exception, PumiceError) else None
    assert error is not None or done.exception is None or isinstance(done.exception, SystemExit), done.exception
    said = "" if error is None else error_text(error)
    return SimpleNamespace(
        code=done.exit_code if error is None else error.exit_code, stdout=done.stdout, stderr=done.stderr + said
    )


def test_the_command_shows_verifies_and_opens(tmp_path: Path) -> None:
    public, private, opening = tmp_path / "r.json", tmp_path / "p.json", tmp_path / "o.json"
    receipt().save(public)
    receipt().save(private, private=True)
    shown = run("show", public)
    assert shown.code == 0 and "The secret is" in shown.stdout and "route pumice.generate.v1" in shown.stdout
    assert "secret" not in run("show", private).stdout
    found = json.loads(run("verify", public, "--json").stdout)
    assert found["ok"] and [c["check"] for c in found["checks"]] == list(CHECKS)
    opened = run("open", private, "prompt", "-o", opening)
    assert opened.code == 0, opened.stderr
    assert os.name == "nt" or not opening.stat().st_mode & 0o077
    checked = json.loads(run("verify", private, "--opening", opening, "--json").stdout)
    assert checked["ok"] and checked["known"] == ["prompt"]
    assert run("open", private, "nothing", "-o", opening).code == 4


def test_a_failed_verification_exits_with_4_and_names_the_check(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_bytes(receipt().sign(KEY))
    done = run("verify", file, "--json")
    found = json.loads(done.stdout)
    assert done.code == 4 and found["failed"] == "key" and found["error"]["code"] == "untrusted-signer"
    assert run("keys", "trust", KEY.public.text, "--label", "lab").code == 0
    assert run("verify", file).code == 0
    file.write_bytes(file.read_bytes()[:-1])
    done = run("verify", file)
    assert done.code == 4 and "form       FAILED" in done.stdout and "line end" in done.stderr
    assert run("verify", tmp_path / "none.json").code == 2
    assert run("keys", "untrust", "nobody").stderr.endswith("pumice receipt keys list shows them")


def test_verification_needs_neither_numpy_nor_a_gpu(tmp_path: Path, home: Path) -> None:
    receipt().save(tmp_path / "r.json")
    code = (
        "import sys; from pathlib import Path; from pumice.receipts.verify import verify_receipt\n"
        "verify_receipt(Path(sys.argv[1]).read_bytes())\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'numpy', 'wgpu', 'numba'}))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "r.json")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(PUMICE_HOME=str(home)), check=True)
    assert done.stdout == "[]\n"


# -- making -------------------------------------------------------------------------------------------------------------
def test_nothing_is_computed_before_the_document_is_asked_for() -> None:
    asked: list[str] = []

    def slow() -> dict[str, Any]:
        asked.append("model")
        return {"name": "m", "dtype": "f32", "params": {"count": 0, "sha256": "ab" * 32}}

    made = receipt(model=slow)
    assert asked == []
    assert made.document["model"]["id"] == made.document["pumice"]["model"]["name"] == "m"
    assert asked == ["model"], "once"


def test_saving_replaces_the_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text("x" * 100_000)
    receipt().save(file)
    assert verify_receipt(file.read_bytes()).document["status"] == "real"


def test_saved_receipts_are_lines_of_the_log_unless_asked_not_to(tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.json" for i in range(3)]
    receipt().save(files[0])
    receipt().save(files[1], log=False)
    receipt().save(files[2], private=True)
    assert [line.line for line in ReceiptLog().receipts()] == [files[0].read_bytes(), files[2].read_bytes()]
    positions = [verify_receipt(file.read_bytes()).section["log"] for file in files]
    assert positions[1] is None and [positions[0]["index"], positions[2]["index"]] == [0, 1]
    assert find_opening(read_envelope(files[2].read_bytes()).digest, "prompt").content == b"The secret is"
    with pytest.raises(Exception, match="there is no folder"):
        receipt().save(tmp_path / "none" / "r.json")
    assert ReceiptLog().verify().receipts == 2


def test_receipts_saved_later_are_lines_of_the_log_in_the_order_of_the_calls(tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.json" for i in range(4)]
    saved = [receipt().save_later(file, private=i == 2, log=i != 1) for i, file in enumerate(files)]
    assert [s.result() for s in saved] == [None] * 4
    assert [line.line for line in ReceiptLog().receipts()] == [files[i].read_bytes() for i in (0, 2, 3)]
    assert verify_receipt(files[1].read_bytes()).section["log"] is None
    with pytest.raises(InputError, match="there is no folder"):
        receipt().save_later(tmp_path / "none" / "r.json")


def test_an_interpreter_that_ends_waits_for_receipts_saved_later(tmp_path: Path) -> None:
    code = (
        "import sys; from pumice.receipts.receipt import example_receipt\n"
        "for i in range(3): example_receipt().save_later(f'{sys.argv[1]}/{i}.json')"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120, env=environment(PUMICE_HOME=str(tmp_path))
    )
    saved = [read_envelope((tmp_path / f"{i}.json").read_bytes()) for i in range(3)]
    assert [envelope.predicate["pumice"]["log"]["index"] for envelope in saved] == [0, 1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork; run it on Linux")
def test_a_fork_saves_receipts_later_too(tmp_path: Path) -> None:
    receipt().save_later(tmp_path / "parent.json").result()
    if (child := os.fork()) == 0:
        with suppress(BaseException):
            receipt().save_later(tmp_path / "child.json").result(60)
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert verify_receipt((tmp_path / "child.json").read_bytes()).section["log"]["index"] == 1


def test_a_receipt_that_cannot_be_saved_later_is_an_error_of_the_result_and_a_warning(tmp_path: Path) -> None:
    receipt().save(tmp_path / "r.json")
    ReceiptLog().settle()
    ReceiptLog().path.write_bytes(b"")
    with pytest.warns(PumiceWarning, match=r"late\.json is not saved: .*missing"), pytest.raises(BrokenLog, match="missing"):
        receipt().save_later(tmp_path / "late.json").result()
    assert verify_receipt((tmp_path / "late.json").read_bytes()).section["log"] is None


def test_values_that_no_receipt_can_hold_are_refused_by_a_typed_error() -> None:
    with pytest.raises(ReceiptError, match="surrogate"):
        Artifact.text("prompt", "\udc80")
    for value in (float("nan"), object(), {"a": {1, 2}}):
        with pytest.raises(ReceiptError, match="cannot hold this"):
            receipt(request={"x": value}).sign(KEY)


def test_keys_are_made_once_by_threads_that_begin_together() -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: copy_context().run(own_key).public.text, range(16)))
    assert len(keys) == 1


def test_the_page_lists_every_error() -> None:
    page = (Path(__file__).parents[2] / "docs" / "receipts.md").read_text()
    codes = {kind.code for kind in ReceiptError.__subclasses__()}
    assert {code for code in codes if f"`{code}`" not in page} == set()
