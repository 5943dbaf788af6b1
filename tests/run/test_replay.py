"""Receipts of traced functions run again: their function, graph and params are compared first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import pumice as pm
from pumice import config
from pumice.cli.main import app
from pumice.packs.keys import SigningKey
from pumice.receipts.artifacts import Artifact
from pumice.receipts.commitments import kept_openings
from pumice.receipts.envelope import read_envelope, sign_envelope
from pumice.receipts.errors import ModelMismatch, NotReplayable
from pumice.receipts.keys import own_key, trusted_keys
from pumice.receipts.receipt import Receipt, content_entry, subject_of
from pumice.receipts.replay import Given, Replay, compare_runs
from pumice.receipts.verify import VerifiedReceipt, verify_receipt
from pumice.routes.documents import plain
from pumice.run.replay import replay_route
from pumice.run.route import load_route

SOURCE = """
import numpy as np
import pumice as pm

WEIGHTS = {{"w": np.float32([[1, 2], [3, {last}], [5, 6]])}}

@pm.route("test.affine.v0", x=pm.spec("N", 3), params=WEIGHTS, device="host", max={{"N": 8192}})
def affine(x, params):
    return {{"y": pm.softmax(x @ params["w"])}}

@pm.route("test.counter.v0", x=pm.spec("N"), device="host")
def counter(x):
    count = pm.state("count", ())
    pm.set_state(count, count + 1.0)
    return x + count
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Iterator[Path]:
    with config.override(home=tmp_path / "home"):
        yield tmp_path / "home"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "made.py"
    path.write_text(SOURCE.format(last=4))
    return path


def verified(receipt: Receipt) -> VerifiedReceipt:
    return verify_receipt(receipt.sign())


def ran(spec: str, **inputs: Any) -> Receipt:
    with load_route(spec) as route:
        receipt: Receipt = route.run(inputs, receipt=True)[1]
    return receipt


def again(receipt: Receipt, device: str = "host", function: str | None = None) -> Replay:
    found = verified(receipt)
    return compare_runs(found, replay_route(Given(found), device, function))


def test_a_route_is_run_again_bit_by_bit(file: Path) -> None:
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    found = again(ran(f"{file}:affine", x=x))
    assert found.reached == "bit-exact" and found.same_plans and found.outputs[0].role == "y"


@pytest.mark.gpu
def test_a_route_is_run_again_on_another_device(file: Path) -> None:
    x = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    found = again(ran(f"{file}:affine", x=x), device="webgpu")
    assert found.reached in ("within-tolerance", "bit-exact") and not found.same_plans
    assert found.outputs[0].figures.get("max_rel", 0) < 1e-5


def test_another_function_or_other_params_are_refused_before_they_run(file: Path, tmp_path: Path) -> None:
    receipt = ran(f"{file}:affine", x=np.ones((1, 3), np.float32))
    other = tmp_path / "other.py"
    other.write_text(SOURCE.format(last=4.5))
    with pytest.raises(ModelMismatch, match=r"the params of .* are not those that ran"):
        again(receipt, function=f"{other}:affine")
    other.write_text(SOURCE.format(last=4).replace("pm.softmax(x", "pm.tanh(x"))
    with pytest.raises(ModelMismatch, match="is not the function that ran"):
        again(receipt, function=f"{other}:affine")


def test_a_run_of_no_named_function_says_so() -> None:
    with pm.compile(lambda x: x * 2.0, x=pm.spec("N"), device="host") as exe:
        _, receipt = exe.run(x=np.float32([1]), receipt=True)
    with pytest.raises(NotReplayable, match="names no function"):
        again(receipt)


def test_states_are_run_again_from_where_the_receipt_says_they_began(file: Path) -> None:
    with load_route(f"{file}:counter") as route:
        first = route.run(x=np.float32([1]), receipt=True)[1]
        second = route.run(x=np.float32([1]), receipt=True)[1]
        third = route.run(x=np.float32([1]), count=np.float32(7), receipt=True)[1]
    for receipt in (first, second, third):
        found = again(receipt)
        assert found.reached == "bit-exact" and {o.role for o in found.outputs} == {"out", "state.count.after"}


def test_large_inputs_come_from_files(file: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((6000, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    saved = tmp_path / "r.json"
    ran(f"{file}:affine", x=x).save(saved)
    runner = CliRunner()
    done = runner.invoke(app, ["receipt", "verify", str(saved), "--replay", "--json"])
    assert done.exit_code == 4 and "--artifact x=FILE" in done.stdout
    given = ["--artifact", f"x={tmp_path / 'x.npy'}"]
    done = runner.invoke(app, ["receipt", "verify", str(saved), "--replay", *given])
    assert done.exit_code == 0 and "y: bit-exact" in done.stdout, done.stdout
    np.save(tmp_path / "x.npy", x + 1)
    done = runner.invoke(app, ["receipt", "verify", str(saved), *given])
    assert done.exit_code == 4 and "artefacts  FAILED" in done.stdout


@pytest.mark.parametrize("trusted", [False, True])
def test_code_that_somebody_else_names_is_not_imported(tmp_path: Path, trusted: bool) -> None:
    harmful = tmp_path / "harmful_module.py"
    harmful.write_text(SOURCE.format(last=4))
    receipt = ran(f"{harmful}:affine", x=np.ones((1, 3), np.float32))
    saved = tmp_path / "r.json"
    key = SigningKey.generate()
    saved.write_bytes(receipt.sign(key))
    if trusted:
        trusted_keys().add(key.public)
    mark = tmp_path / "ran"
    harmful.write_text(f"open({str(mark)!r}, 'w')")
    done = CliRunner().invoke(app, ["receipt", "verify", str(saved), "--replay", *([] if trusted else ["--any-key"])])
    assert done.exit_code == 4 and "somebody else names" in done.stderr and not mark.exists()


def test_private_receipts_keep_the_path_of_a_function(file: Path) -> None:
    secret = ran(f"{file}:affine", x=np.ones((1, 3), np.float32)).as_private()
    assert str(file.parent) not in secret.to_json()
    line = secret.sign()
    given = verify_receipt(line, openings=kept_openings(read_envelope(line).digest).values())
    assert Given(given).request["function"] == f"{file}:affine"


def test_a_second_run_that_differs_does_not_end_in_praise(file: Path, tmp_path: Path) -> None:
    document = plain(ran(f"{file}:affine", x=np.ones((1, 3), np.float32)).document)
    other = Artifact.array("y", np.full(document["outputs"][0]["shape"], 99, np.float32))
    document["outputs"][0] |= {"sha256": other.sha256}
    document["pumice"]["artifacts"]["outputs"]["y"] = content_entry(other)
    saved = tmp_path / "r.json"
    saved.write_bytes(sign_envelope(document, subject_of(document), own_key()))
    done = CliRunner().invoke(app, ["receipt", "verify", str(saved), "--replay"])
    assert done.exit_code == 4 and "something else" in done.stdout and "is verified" not in done.stdout
