"""Model folders for tests: the tiny golden checkpoints with a tokeniser of words w4, w5, … beside them."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.formats import open_weights
from pumice.llm.engine import Engine
from pumice.llm.requests import Request, SamplingParams
from pumice.llm.weights import ModelWeights
from pumice.models.config import ModelArchConfig
from pumice.models.load import load_model_params
from pumice.models.memory import WholeSequences
from pumice.models.registry import get_architecture

from harness import device

if TYPE_CHECKING:
    from pumice.models.registry import CausalArchitecture
    from pumice.run.executable import Executable
    from pumice.tensor import Tensor

Array = np.ndarray[Any, Any]
GOLDENS = Path(__file__).parent / "models" / "goldens"
TEMPLATE = "{% for m in messages %}{{ m.role[0] }} {{ m.content }} {% endfor %}{% if add_generation_prompt %}a {% endif %}"
PROMPT = [5, 17, 3, 42, 9, 11, 23, 2, 30, 31, 7, 8, 19]
GREEDY = SamplingParams(temperature=0)


def make_engine(name: str, target: str = "host", /, **options: Any) -> Engine:
    """An engine for a golden checkpoint, without a tokeniser; `config` has other entries for its config.json."""
    folder = GOLDENS / name
    config = json.loads((folder / "config.json").read_text()) | options.pop("config", {})
    cfg = ModelArchConfig.from_hf(config)
    with open_weights(folder / "model.safetensors") as weights:
        params = load_model_params(cfg, weights)
        weights = ModelWeights(get_architecture(cfg.model_type), cfg, params, device(target), name=options.pop("name", ""))
        return Engine(weights, **{"context": 64, **options})


def tokens_of(e: Engine, prompt: list[int], n: int = 8, sampling: SamplingParams = GREEDY, **kwargs: Any) -> list[int]:
    return [event.token for event in e.stream([Request(prompt, sampling, n, **kwargs)])]


def settled(engine: Engine) -> bool:
    """Whether no sequence has a slot or pages, once what calls left is settled: at the end of the batch that runs."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with engine._step_lock:
            if not engine._live and engine._scheduler.statistics.pages_used == 0:
                return True
        time.sleep(0.01)
    return False


def write_tokenizer(folder: Path, vocab: int, *, closing: bool = False) -> None:
    """Words w4, w5, … and four special tokens; `closing` puts a token behind each text, as encoders have it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<unk>", "<s>", "</s>", "<pad>", *(f"w{k}" for k in range(4, vocab))]
    made = Tokenizer(models.WordLevel({w: k for k, w in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if closing:
        made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    made.add_special_tokens(words[:4])
    made.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))


def checkpoint(name: str, folder: Path, *, closing: bool = False) -> Path:
    made = folder / name
    made.mkdir()
    for file in ("config.json", "model.safetensors"):
        shutil.copy(GOLDENS / name / file, made)
    write_tokenizer(made, json.loads((made / "config.json").read_text())["vocab_size"], closing=closing)
    return made


def as_gguf(folder: Path, path: Path, dtype: str = "f32") -> Path:
    """A model folder's weights as a GGUF file, matrices in a format whose blocks fit; without a tokeniser."""
    from pumice.core import dtypes
    from pumice.core.blocks import quantize_rows
    from pumice.formats import open_weights
    from pumice.formats.gguf_writer import GgufWriter
    from pumice.formats.weights import TensorInfo
    from pumice.llm.load import read_config
    from pumice.models.to_gguf import to_gguf

    with open_weights(folder) as weights:
        metadata, tensors = to_gguf(read_config(folder, weights), weights)
        kinds = {t.name: dtypes.dtype(dtype) if len(t.shape) == 2 else dtypes.f32 for t in tensors}
        with GgufWriter(path, metadata, [TensorInfo(t.name, kinds[t.name], t.shape) for t in tensors]) as writer:
            for t in tensors:
                rows = t.rows(0, t.elements // (t.shape[-1] if len(t.shape) > 1 else 1))
                writer.write(t.name, quantize_rows(kinds[t.name], rows) if kinds[t.name].is_quant else rows)
    return path


def byte_level(folder: Path, vocab: int, *, pre: str = "gpt-2") -> None:
    """A byte-level tokeniser of single characters, a few merges and four special tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    from pumice.text import pretokenizers
    from pumice.text.vocabulary import byte_alphabet

    special = ["<unk>", "<s>", "</s>", "<pad>"]
    merges = [("e", "r"), ("Ġ", "w"), ("Ġw", "o"), ("1", "2"), ("I", "'")]
    letters = sorted(byte_alphabet(), key=lambda c: (c != "Ġ", not c.isascii(), c))
    words = [*special, *letters[: vocab - len(special) - len(merges)], *(a + b for a, b in merges)]
    splitting = pretokenizers.find(pre)
    made = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, merges, ignore_merges=splitting.whole_words))
    splits: list[Any] = [pre_tokenizers.Split(Regex(p), "isolated") for p in splitting.patterns]
    made.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if splitting.nfc:
        made.normalizer = normalizers.NFC()
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(w, special=True, normalized=False) for w in special])
    made.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "add_bos_token": True}
    settings["chat_template"] = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def llama(folder: Path, *, change: Callable[[dict[str, Array]], None] | None = None) -> Path:
    """A llama of one layer whose rows are whole blocks of 256, with random weights in float32."""
    from safetensors.numpy import save_file

    made = folder / "llama256"
    made.mkdir()
    config = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 128,
              "num_key_value_heads": 2, "intermediate_size": 512, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
              "tie_word_embeddings": False}  # fmt: skip
    (made / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    shapes = {"self_attn.q_proj": (256, 256), "self_attn.k_proj": (128, 256), "self_attn.v_proj": (128, 256),
              "self_attn.o_proj": (256, 256), "mlp.gate_proj": (512, 256), "mlp.up_proj": (512, 256),
              "mlp.down_proj": (256, 512)}  # fmt: skip
    arrays = {f"model.layers.0.{k}.weight": rng.normal(size=s).astype("f4") / 16 for k, s in shapes.items()}
    for norm in ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"):
        arrays[f"model.{norm}.weight"] = 1 + rng.normal(size=256).astype("f4") / 8
    arrays["model.embed_tokens.weight"] = rng.normal(size=(128, 256)).astype("f4")
    arrays["lm_head.weight"] = rng.normal(size=(128, 256)).astype("f4") / 16
    if change is not None:
        change(arrays)
    save_file(arrays, made / "model.safetensors")
    byte_level(made, 128)
    return made


def quantized_llama(folder: Path, to: str = "q4_0") -> Path:
    """The same as a GGUF file, its weights quantised."""
    from pumice.llm.quantize import quantize_model

    out = folder / f"llama-{to}.gguf"
    quantize_model(llama(folder), to=to, out=out)
    return out


def all_logits(arch: CausalArchitecture, cfg: ModelArchConfig) -> Callable[..., Any]:
    """Logits of every position of every sequence, all at once and without a cache: (tokens [B,T]) → [B,T,vocab]."""
    import pumice as pm

    def logits(params: Any, tokens: Tensor) -> Tensor:
        positions = pm.broadcast_to(pm.arange(tokens.shape[1], dtype="i32"), tokens.shape)
        return arch.logits(cfg, params, arch.hidden(cfg, params, tokens, positions, WholeSequences()))

    return logits


def whole_sequences(engine: Engine, most: int) -> Executable:
    """(tokens [1,T]) → [1,T,vocab] with an engine's weights but none of its steps, for sequences of up to `most` tokens."""
    import pumice as pm

    tokens = pm.spec(1, "T", dtype="i32", max=most)
    graph = pm.trace(all_logits(engine.arch, engine.cfg), params=engine.weights.params.specs, tokens=tokens)
    return pm.compile(graph, store=engine._store.child())
