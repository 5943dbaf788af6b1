"""Fine-tuning on tiny checkpoints: documents, packing, gradients as PEFT has them, frozen weights, and what is saved."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import pumice as pm
from pumice import optim, train
from pumice.cli.main import app
from pumice.errors import CheckpointMismatch, DataError, InputError, PumiceError, UnknownName
from pumice.formats import open_weights
from pumice.llm.finetune import (
    CausalModel,
    Document,
    LoraSettings,
    next_token_loss,
    open_source,
    pack,
    read_documents,
    save_adapter,
    save_model,
)
from pumice.llm.finetune.source import BaseModel
from pumice.llm.load import read_config
from pumice.models.load import LoadedParams
from pumice.models.lora import linear_layers
from pumice.models.peft import read_adapter
from pumice.models.registry import get_architecture
from pumice.text.template import ChatTemplate
from tiny_models import TEMPLATE, as_gguf, checkpoint

GOLDEN = Path(__file__).parents[1] / "language_models" / "golden"
FIELDS = ("tokens", "labels", "positions", "segments")
CHATS = [
    {"messages": [{"role": "user", "content": f"w{k} w{k + 1}"}, {"role": "assistant", "content": f"w{k + 2} w{k + 3}"}]}
    for k in range(10, 30, 2)
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    made = {name: checkpoint(name, home) for name in ("llama", "gpt2", "gpt_neox", "lfm2")}
    for folder in made.values():
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    return made


@pytest.fixture
def source(folders):
    return open_source(str(folders["llama"]))


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def documents(source, path):
    return read_documents([path], source.tokenizer, source.template, source.cfg.vocab)


def compiled(model, length, optimizer=None, batch=4, **options):
    inputs = dict.fromkeys(FIELDS, pm.spec("B", length, dtype="i32"))
    return train.compile_step(
        model, next_token_loss, optimizer or optim.AdamW(0.02), inputs, max=batch, aux=True, **{"device": "host", **options}
    )


def chat_batch(source, tmp_path, length=16):
    return pack(documents(source, lines(tmp_path / "chats.jsonl", CHATS)), length).fields


def gguf_source(path, like: BaseModel):
    """A GGUF file without a tokeniser, as a source."""
    weights = open_weights(path)
    cfg = read_config(path, weights)
    return BaseModel("tiny", path, weights, cfg, get_architecture(cfg.model_type), like.tokenizer, like.template)


# --- documents ---


def test_what_is_learned(source, tmp_path):
    rows = [{"text": "w5 w6 w7"}, {"prompt": "w5 w6 ", "completion": "w7 w8"}, {"messages": CHATS[0]["messages"] * 2}]
    text, completion, chat = documents(source, lines(tmp_path / "x.jsonl", [*rows]))
    end = source.tokenizer.encode("</s>", add_special=False)[0]
    assert text.tokens.tolist() == [5, 6, 7, end] and text.learned.all() and text.divisible
    assert completion.tokens.tolist() == [5, 6, 7, 8, end]
    assert completion.learned.tolist() == [False, False, True, True, True]
    # The template is "u QUESTION a ANSWER …", and its words are unknown to the vocabulary.
    assert chat.tokens.tolist() == [0, 10, 11, 0, 12, 13, 0, 10, 11, 0, 12, 13, end]
    assert np.flatnonzero(chat.learned).tolist() == [4, 5, 10, 11, 12]


def test_templates_that_rewrite_history_teach_the_last_answer(source, tmp_path):
    # Only the last answer is shown in full, as models do that think aloud.
    rewriting = ChatTemplate(
        "{% for m in messages %}{{ m.role[0] }} {% if m.role == 'assistant' and loop.last %}w4 {% endif %}{{ m.content }} "
        "{% endfor %}{% if add_generation_prompt %}a {% endif %}"
    )
    path = lines(tmp_path / "x.jsonl", [{"messages": CHATS[0]["messages"] * 2}])
    (found,) = read_documents([path], source.tokenizer, rewriting, source.cfg.vocab)
    assert found.skipped == 1
    assert found.tokens[found.learned].tolist()[:3] == [4, 12, 13]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "no JSON"),
        ("[1]", "no JSON object"),
        ('{"txt": "w5"}', "none of text, messages, completion"),
        ('{"text": "w5", "messages": []}', "text and messages at once"),
        ('{"text": 5}', "'text' is 5"),
        ('{"prompt": "w5"}', "'completion' is None"),
        ('{"prompt": "w5", "completion": ""}', "completion is empty"),
        ('{"messages": "w5"}', "'messages' is 'w5'"),
        ('{"messages": [{"role": "user", "content": "w5"}]}', "no answer"),
        ('{"messages": [{"role": "assistant", "content": "\\ud800"}]}', ""),
    ],
)
def test_bad_lines_are_named(source, tmp_path, line, said):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "w5"}\n\n' + line + "\n")
    with pytest.raises(DataError) as caught:
        documents(source, path)
    assert f"{path}, line 3: " in str(caught.value) and said in str(caught.value)
    assert caught.value.fields["line"] == 3


def test_chats_need_a_template_and_tokens_a_place(source, tmp_path):
    path = lines(tmp_path / "x.jsonl", CHATS[:1])
    with pytest.raises(DataError, match="no chat template"):
        read_documents([path], source.tokenizer, None, source.cfg.vocab)
    with pytest.raises(DataError, match="line 1: the token 13 is beyond"):
        read_documents([path], source.tokenizer, source.template, 13)


# --- packing ---


def test_every_learned_token_is_a_label_once():
    rng = np.random.default_rng(3)
    made = [
        Document(rng.integers(0, 1000, n).astype(np.int32), rng.random(n) < 0.7, divisible=bool(n % 2))
        for n in rng.integers(2, 40, 60)
    ]
    for packing in (True, False):
        rows = pack(made, 16, packing=packing)
        fields = rows.fields
        kept = [d for d in made if not d.divisible]
        wanted = sum(int(d.learned[1:16].sum()) for d in kept)
        wanted += sum(int(d.learned[k + 1 : k + 16].sum()) for d in made if d.divisible for k in range(0, len(d), 16))
        assert rows.learned == wanted == (fields["labels"] >= 0).sum()
        assert rows.truncated == sum(len(d) > 16 for d in kept) and rows.cut == sum(max(len(d) - 16, 0) for d in kept)
        assert f"{rows.truncated} documents were longer" in " ".join(rows.notes())
        at = np.argwhere(fields["labels"] >= 0)
        for row, column in at:
            assert fields["labels"][row, column] == fields["tokens"][row, column + 1]
            assert fields["segments"][row, column] == fields["segments"][row, column + 1] > 0
            assert fields["positions"][row, column] + 1 == fields["positions"][row, column + 1]
    assert pack(made, 16).filled > 0.9 > pack(made, 16, packing=False).filled


def test_documents_without_anything_to_learn_are_left_out():
    silent = Document(np.arange(20, dtype=np.int32), np.arange(20) > 17)
    heard = Document(np.arange(4, dtype=np.int32), np.ones(4, np.bool_))
    rows = pack([silent, heard], 16)
    assert (rows.dropped, rows.learned, len(rows)) == (1, 3, 1)
    with pytest.raises(DataError, match="none of 1 documents"):
        pack([silent], 16)


def test_documents_in_a_row_do_not_see_each_other(source, tmp_path):
    made = documents(source, lines(tmp_path / "x.jsonl", CHATS[:3]))
    packed, single = (pack(made, 24, packing=p).fields for p in (True, False))
    assert len(packed["tokens"]) == 1 and len(single["tokens"]) == 3
    with compiled(CausalModel(source.cfg, source.params), 24) as step:
        inputs = {name: pm.spec("B", 24, dtype="i32") for name in ("tokens", "positions", "segments")}
        with step.forward(None, inputs, max=4) as exe:
            together = exe.run({name: packed[name] for name in inputs})[0]
            apart = exe.run({name: single[name] for name in inputs})
        start = 0
        for row, document in enumerate(made):
            np.testing.assert_allclose(together[start : start + len(document)], apart[row, : len(document)], atol=2e-5)
            start += len(document)


# --- gradients ---


@pytest.mark.parametrize(
    "golden", ["golden/llama", "golden/gpt2", "golden/gpt_neox", "golden_tables/llama", "golden_tables/gpt2"]
)
def test_loss_and_gradients_are_those_of_peft(folders, golden):
    golden = GOLDEN.parent / golden
    with np.load(golden / "expected.npz") as file:
        want = dict(file)
    found = open_source(str(folders[golden.name]))
    model = CausalModel(found.cfg, found.params, adapter=read_adapter(found.cfg, golden))
    shape = want["tokens"].shape
    labels = np.full(shape, -100, np.int32)
    labels[:, :-1] = want["labels"][:, 1:]
    batch = {"tokens": want["tokens"].astype(np.int32), "labels": labels, "segments": np.ones(shape, np.int32)}
    batch["positions"] = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
    with compiled(model, shape[1], optim.SGD(1.0)) as step:
        before = step.params()
        loss, _ = step(batch)
        after = step.params()
    assert loss == pytest.approx(float(want["loss"]), rel=1e-5)
    layers = {layer.names[0]: path for path, layer in linear_layers(found.cfg).items()}
    compared = 0
    for key, gradient in want.items():
        if key.startswith("grad "):
            module, _, part = key.removeprefix("grad base_model.model.").removesuffix(".weight").rpartition(".lora_")
            path = f"lora.{layers[module]}.{part.removeprefix('embedding_')}"
            error = np.linalg.norm(before[path] - after[path] - gradient) / np.linalg.norm(gradient)
            assert error < 1e-4, path
            compared += 1
    assert compared == len(model.adapter_names())
    for path, value in before.items():
        if path.startswith("base."):
            assert value.tobytes() == after[path].tobytes(), path


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0"])
def test_a_packed_base_teaches_what_its_values_teach(folders, source, tmp_path, dtype):
    batch = chat_batch(source, tmp_path)
    packed = gguf_source(as_gguf(folders["llama"], tmp_path / "packed.gguf", dtype), source)
    model = CausalModel(packed.cfg, packed.params, LoraSettings(rank=2, targets=("all-linear",)))
    assert {p.dtype.name for n, p in model.named_parameters().items() if n.endswith("q.weight")} == {dtype}
    plain = CausalModel(packed.cfg, packed.params)
    with compiled(plain, 16) as step:
        unpacked = {name.removeprefix("base."): value for name, value in step.params().items()}
    wide = as_f32(packed.params, unpacked)
    twin = CausalModel(packed.cfg, wide, LoraSettings(rank=2, targets=("all-linear",)))
    results = []
    for made in (model, twin):
        with compiled(made, 16, optim.SGD(0.5)) as step:
            # Two steps: at first B is 0, and A takes no gradient.
            losses = [step({k: v[:4] for k, v in batch.items()})[0] for _ in range(2)]
            results.append((losses, step.executable.params(made.adapter_names())))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-5)
    for name, value in results[1][1].items():
        moved = value - twin.init()[name]
        assert np.linalg.norm(results[0][1][name] - value) < 1e-3 * np.linalg.norm(moved), name


def as_f32(loaded, arrays):
    """Params of the same names, in f32."""

    wide = {path: pm.spec(*spec.type.static_shape) for path, spec in loaded.specs.items()}
    return LoadedParams(wide, arrays, loaded.nbytes)


# --- training ---


def test_adapters_learn_and_the_rest_stays(source, tmp_path):
    batch = chat_batch(source, tmp_path)
    model = CausalModel(source.cfg, source.params, LoraSettings(rank=4, dropout=0.1, targets=("q_proj", "v", "down_proj")))
    with compiled(model, 16) as step:
        before = step.params()
        losses = [step({k: v[:4] for k, v in batch.items()})[0] for _ in range(30)]
        after = step.params()
        saved = step.state_dict()
        assert losses[-1] < 0.7 * losses[0]
        assert set(saved["params"]) == set(model.adapter_names()), "a checkpoint holds no frozen weights"
        for name, value in before.items():
            same = value.tobytes() == after[name].tobytes()
            assert same == name.startswith("base."), name
        # Frozen weights are those of the file, in its dtype.
        assert before["base.layers.0.mixer.q.weight"].dtype.name == source.params.arrays["layers.0.mixer.q.weight"].dtype.name
        step.reset()
        step.load_state_dict(saved)
        np.testing.assert_array_equal(step.params()["lora.layers.1.mixer.v.B"], after["lora.layers.1.mixer.v.B"])


def test_the_saved_adapter_gives_the_trained_logits(source, folders, tmp_path):
    batch = chat_batch(source, tmp_path)
    model = CausalModel(source.cfg, source.params, LoraSettings(rank=4, alpha=6.0))
    with compiled(model, 16) as step:
        for _ in range(5):
            step({k: v[:4] for k, v in batch.items()})
        folder = save_adapter(step, source, tmp_path / "adapter")
        inputs = {name: pm.spec(1, 16, dtype="i32") for name in ("tokens", "positions")}
        tokens = np.arange(20, 36, dtype=np.int32)
        with step.forward(None, inputs) as exe:
            trained = exe.run(tokens=tokens[None], positions=np.arange(16, dtype=np.int32)[None])[0]
        with pytest.raises(InputError, match="only adapters were trained"):
            save_model(step, source, tmp_path / "model")
    with pm.load(folders["llama"], device="host", context=32, lora=folder) as loaded:
        np.testing.assert_allclose(loaded.engine.logits(tokens.tolist()), trained, atol=2e-5)
    # And it can be trained further.
    again = CausalModel(source.cfg, source.params, adapter=read_adapter(source.cfg, folder))
    assert again.scales == pytest.approx(model.scales) and set(again.adapter_names()) == set(model.adapter_names())


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_a_whole_model_learns_and_is_saved(source, folders, tmp_path, kind):
    batch = chat_batch(source, tmp_path)
    found = source if kind == "folder" else gguf_source(as_gguf(folders["llama"], tmp_path / "m.gguf", "q8_0"), source)
    model = CausalModel(found.cfg, found.params)
    with compiled(model, 16, optim.AdamW(0.005)) as step:
        losses = [step({k: v[:4] for k, v in batch.items()})[0] for _ in range(12)]
        assert losses[-1] < 0.6 * losses[0]
        path = save_model(step, found, tmp_path / "out")
        trained = step.params()
        with pytest.raises(InputError, match="has no adapter"):
            save_adapter(step, found, tmp_path / "adapter")
    if kind == "folder":
        with pm.load(path, device="host", context=32) as loaded:
            assert len(loaded.generate("w5", temperature=0, max_tokens=3).tokens) >= 1
        again = open_source(str(path))
    else:
        again = gguf_source(path, source)
    for name, value in again.params.arrays.items():
        np.testing.assert_array_equal(value, trained[f"base.{name}"], err_msg=name)


@pytest.mark.parametrize("adapters", [None, LoraSettings(rank=4, targets=("in_proj", "q"))])
def test_short_convolutions_learn(folders, tmp_path, adapters):
    found = open_source(str(folders["lfm2"]))
    batch = {k: v[:4] for k, v in chat_batch(found, tmp_path).items()}
    model, rate = CausalModel(found.cfg, found.params, adapters), 0.005 if adapters is None else 0.05
    with compiled(model, 16, optim.AdamW(rate)) as step:
        before = step.params()
        losses = [step(batch)[0] for _ in range(15)]
        changed = {name for name, value in step.params().items() if not np.array_equal(value, before[name])}
        assert losses[-1] < 0.7 * losses[0]
        assert changed == (set(model.adapter_names()) if adapters else set(before))
        path = save_adapter(step, found, tmp_path / "out") if adapters else save_model(step, found, tmp_path / "out")
        trained = step.forward(None, {name: pm.spec(1, 16, dtype="i32") for name in ("tokens", "positions")})
        tokens = np.arange(20, 36, dtype=np.int32)
        with trained as exe:
            want = exe.run(tokens=tokens[None], positions=np.arange(16, dtype=np.int32)[None])[0]
    options = {"device": "host", "context": 32}
    with pm.load(folders["lfm2"], lora=path, **options) if adapters else pm.load(path, **options) as loaded:
        np.testing.assert_allclose(loaded.engine.logits(tokens.tolist()), want, atol=5e-5)


def test_half_precision_learns_too(source, tmp_path):
    batch = {k: v[:4] for k, v in chat_batch(source, tmp_path).items()}
    model = CausalModel(source.cfg, source.params, LoraSettings(rank=4))
    with compiled(model, 16, precision="f16") as step:
        losses = [step(batch)[0] for _ in range(20)]
        assert losses[-1] < 0.9 * losses[0] and step.skipped < 5


@pytest.mark.gpu
@pytest.mark.slow
def test_a_gpu_learns_the_same(source, tmp_path):
    batch = {k: v[:2] for k, v in chat_batch(source, tmp_path).items()}
    losses = {}
    for device in ("host", "webgpu"):
        model = CausalModel(source.cfg, source.params, LoraSettings(rank=2, dropout=0.1, targets=("q", "down")))
        with compiled(model, 16, device=device) as step:
            losses[device] = [step(batch)[0] for _ in range(3)]
    np.testing.assert_allclose(losses["webgpu"], losses["host"], rtol=1e-3)


def test_tables_and_heads_learn_where_they_are_named(source, tmp_path):
    batch = {k: v[:2] for k, v in chat_batch(source, tmp_path).items()}
    model = CausalModel(source.cfg, source.params, LoraSettings(rank=2, dropout=0.1, targets=("embed_tokens", "lm_head")))
    assert set(model.scales) == {"embed", "head"}
    assert "embed" not in CausalModel(source.cfg, source.params, LoraSettings(targets=("all-linear",))).scales
    with compiled(model, 16) as step:
        losses = [step(batch)[0] for _ in range(15)]
        save_adapter(step, source, tmp_path / "adapter")
    assert losses[-1] < 0.9 * losses[0]
    assert set(read_adapter(source.cfg, tmp_path / "adapter")) == {"embed", "head"}


def test_layers_that_are_not_there_are_named(source):
    with pytest.raises(UnknownName, match="no linear layers 'c_attn'"):
        CausalModel(source.cfg, source.params, LoraSettings(targets=("c_attn",)))
    with pytest.raises(InputError, match="rank of 0"):
        LoraSettings(rank=0)


# --- the command ---


def config(tmp_path, model, **changes):
    lines(tmp_path / "chats.jsonl", [*CHATS, *CHATS])
    settings = {"length": 16, "batch": 2, **changes}
    table = "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
    text = f'recipe = "finetune"\n[model]\nname = "{model}"\nrank = 2\ndropout = 0.1\n[data]\nfiles = ["chats.jsonl"]\n{table}\n'
    path = tmp_path / "tune.toml"
    path.write_text(text + "[optimizer]\nlr = 0.02\n[run]\nepochs = 2\nevery = 2\n")
    return path


def tune(path, out, *changes):
    settings = [word for change in changes for word in ("--set", change)]
    found = CliRunner().invoke(app, ["train", str(path), "--device", "host", "--out", str(out), "--json", *settings])
    if isinstance(found.exception, PumiceError):
        raise found.exception
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_the_command_leaves_an_adapter_that_changes_answers(folders, tmp_path):
    path = config(tmp_path, folders["llama"])
    result = tune(path, tmp_path / "run")
    assert any("documents in" in note for note in result["notes"])
    assert result["measured"]["documents"] == 18 and result["validation"]["loss"] > 0
    with pm.load(folders["llama"], device="host", context=32) as plain:
        before = plain.engine.logits([5, 6, 7])
    with pm.load(folders["llama"], device="host", context=32, lora=result["measured"]["adapter"]) as tuned:
        assert np.abs(tuned.engine.logits([5, 6, 7]) - before).max() > 0.01
    alone = tune(path, tmp_path / "alone", "data.validation=0", "run.epochs=1")
    assert alone["measured"]["documents"] == 20 and alone["validation"] == {}
    further = tune(path, tmp_path / "more", f"model.adapter={result['measured']['adapter']}")
    assert further["loss"] < result["loss"]


def test_a_run_goes_on_exactly_and_only_beside_its_own_model(folders, tmp_path):
    path = config(tmp_path, folders["llama"])
    whole = tune(path, tmp_path / "whole")
    tune(path, tmp_path / "parts", "run.epochs=1")
    command = ["train", str(path), "--device", "host", "--out", str(tmp_path / "parts"), "--json", "--resume"]
    resumed = CliRunner().invoke(app, command)
    assert resumed.exit_code == 0, resumed.output
    assert json.loads(resumed.stdout)["loss"] == whole["loss"]
    adapters = [(tmp_path / run / "adapter" / "adapter_model.safetensors").read_bytes() for run in ("whole", "parts")]
    assert adapters[0] == adapters[1]
    tuned = tune(config(tmp_path, folders["llama"]), tmp_path / "full", "model.method=full", "run.epochs=1")
    changed = CliRunner().invoke(app, [*command, "--set", f"model.name={tuned['measured']['model']}"])
    assert isinstance(changed.exception, CheckpointMismatch) and "model" in str(changed.exception)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("model.name=", "model.name is missing"),
        ("data.files=['no.jsonl']", "names no file"),
        ("data.length=4096", "the model sees 128 tokens"),
        ("data.validation=1.5", "a share of 1.5"),
        ("model.targets=['nothing']", "no linear layers 'nothing'"),
        ("model.method=dora", "'model.method' is 'dora'"),
        ("model.ranks=3", "there is no setting 'model.ranks'"),
    ],
)
def test_wrong_settings_are_named(folders, tmp_path, change, said):
    with pytest.raises(InputError) as caught:
        tune(config(tmp_path, folders["llama"]), tmp_path / "run", change)
    assert said in str(caught.value)
    assert not (tmp_path / "run").exists()
