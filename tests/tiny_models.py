"""Model folders for tests: the tiny golden checkpoints with a tokeniser of words w4, w5, … beside them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

GOLDENS = Path(__file__).parent / "models" / "goldens"
TEMPLATE = "{% for m in messages %}{{ m.role[0] }} {{ m.content }} {% endfor %}{% if add_generation_prompt %}a {% endif %}"


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
