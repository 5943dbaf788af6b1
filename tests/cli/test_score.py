"""`pumice rerank` and `pumice classify`: what they print, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pumice as pm
from cli_harness import ROOT, pumice, refused
from tiny_models import checkpoint

GOLDENS = ROOT / "tests" / "models" / "goldens" / "classifiers"
HOST = ("--device", "host")
TEXTS = ("d4 a9", "b1 c2 d3", "a12")


def test_rerank_prints_the_texts_best_first(tmp_path: Path) -> None:
    with pm.load(GOLDENS / "bert", device="host") as model:
        wanted = model.rank("a12 b7", TEXTS)
    done = pumice("rerank", GOLDENS / "bert", "a12 b7", *TEXTS, *HOST, "--json")
    assert done.returncode == 0 and done.stderr == "" and done.stdout.count("\n") == 1
    out = json.loads(done.stdout)
    assert [r["index"] for r in out["results"]] == [w.index for w in wanted] and out["query"] == "a12 b7"
    assert [r["score"] for r in out["results"]] == pytest.approx([w.score for w in wanted], abs=1e-5)
    assert [r["text"] for r in out["results"]] == [w.text for w in wanted] and out["count"] == 3
    assert out["model"]["task"] == "rerank" and out["device"]["target"] == "host" and out["timings"]["score_s"] > 0

    (tmp_path / "lines.txt").write_bytes(b"b1 c2 d3\r\n\na12\n")
    lines = pumice("rerank", GOLDENS / "bert", "a12 b7", TEXTS[0], "-f", tmp_path / "lines.txt", "--top", 2, *HOST)
    assert lines.returncode == 0 and "3 texts in" in lines.stderr
    rows = [line.split("\t") for line in lines.stdout.splitlines()]
    assert [(int(i), t) for _, i, t in rows] == [(w.index, w.text) for w in wanted[:2]]
    assert [float(score) for score, *_ in rows] == pytest.approx([w.score for w in wanted[:2]], abs=1e-4)


def test_classify_prints_a_label_for_each_text() -> None:
    done = pumice("classify", GOLDENS / "roberta", *TEXTS, *HOST, "--json")
    out = json.loads(done.stdout)
    assert done.returncode == 0 and done.stderr == "" and out["labels"] == ["bad", "so-so", "good"]
    for row, text in zip(out["results"], TEXTS, strict=True):
        assert row["text"] == text and row["score"] == max(row["scores"].values()) == row["scores"][row["label"]]
        assert sum(row["scores"].values()) == pytest.approx(1, abs=1e-5)
    lines = pumice("classify", GOLDENS / "roberta", "-f", "-", *HOST, stdin="\n".join(TEXTS).encode()).stdout.splitlines()
    assert [line.split("\t")[1:] for line in lines] == [[row["label"], row["text"]] for row in out["results"]]


def test_refusals(tmp_path: Path) -> None:
    refused(pumice("rerank", GOLDENS / "bert", "a1", *HOST), "there is no text to rank")
    refused(pumice("classify", GOLDENS / "bert", *HOST), "there is no text to classify")
    refused(pumice("rerank", GOLDENS / "bert", "a1", "-f", tmp_path / "none", *HOST), "cannot be read")
    refused(pumice("rerank", GOLDENS / "roberta", "a1", "a2", *HOST), "cannot do the task 'rerank', it can classify and embed")
    encoder = checkpoint("bert", tmp_path, closing=True)
    refused(pumice("rerank", encoder, "w5", "w6", *HOST), f"cannot do the task 'rerank', it can embed; pumice embed {encoder} …")
    assert pumice("rerank", GOLDENS / "bert", "a1", "a2", "--top", 0, *HOST).returncode == 2


def test_bench_and_inspect_take_a_cross_encoder() -> None:
    bench = json.loads(pumice("bench", GOLDENS / "bert", *HOST, "--json").stdout)
    assert [(row["work"], row["unit"]) for row in bench["results"]] == [("score 32 pairs", "pairs/s")]
    seen = json.loads(pumice("inspect", GOLDENS / "bert", *HOST, "--json").stdout)
    assert seen["step"] == "scores of texts"
