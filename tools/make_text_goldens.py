"""Writes the golden files of tests/text with `transformers` and plain Python, in an environment of its own.

    python -m venv /tmp/goldens && /tmp/goldens/bin/pip install transformers jinja2 regex gguf sentencepiece
    /tmp/goldens/bin/python tools/make_text_goldens.py --smollm2 MODEL.gguf --minilm FOLDER

Without an option only the files that need nothing more are written. The suite reads the results and needs none of this.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent.parent / "tests" / "text" / "data"

# The texts that a template may print for begin and end of text.
TOKENS = {
    "chatml": ("<s>", "<|im_end|>"),
    "chatml-generation": ("<s>", "<|im_end|>"),
    "command-r": ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    "deepseek-llm": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "deepseek-r1": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "gemma": ("<bos>", "<eos>"),
    "gemma3": ("<bos>", "<eos>"),
    "granite3": ("<|end_of_text|>", "<|end_of_text|>"),
    "llama2": ("<s>", "</s>"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>"),
    "llama3.2": ("<|begin_of_text|>", "<|eot_id|>"),
    "mistral": ("<s>", "</s>"),
    "mistral-nemo": ("<s>", "</s>"),
    "olmo2": ("<|endoftext|>", "<|endoftext|>"),
    "phi3": ("<s>", "<|endoftext|>"),
    "qwen2": ("<|endoftext|>", "<|im_end|>"),
    "qwen2.5": ("<|endoftext|>", "<|im_end|>"),
    "qwen3": ("<|endoftext|>", "<|im_end|>"),
    "smollm2": ("<|im_start|>", "<|im_end|>"),
    "zephyr": ("<s>", "</s>"),
}

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'The weather <now> & here: "it\'s" 21 °C',
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
USER, REPLY = (
    {"role": "user", "content": "  Hi there!\n"},
    {"role": "assistant", "content": "Hello. <b>&amp;</b> 'quoted' \"text\""},
)
SYSTEM = {"role": "system", "content": "Answer in one word."}
CALL = {"id": "abc123def", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
TEXT_CALL = {**CALL, "function": {"name": "weather", "arguments": '{"city": "Zürich"}'}}
RESULT = {"role": "tool", "content": "21 °C", "tool_call_id": "abc123def"}
ASKED = {"role": "user", "content": "Weather in Zürich? 天气 🌦"}

CASES: dict[str, dict[str, Any]] = {
    "one question": {"messages": [USER]},
    "no generation prompt": {"messages": [USER, REPLY], "add_generation_prompt": False},
    "conversation": {"messages": [SYSTEM, USER, REPLY, ASKED]},
    "no system": {"messages": [USER, REPLY, ASKED]},
    "roles out of order": {"messages": [USER, USER]},
    "unknown role": {"messages": [USER, {"role": "narrator", "content": "Meanwhile"}]},
    "empty content": {"messages": [{"role": "user", "content": ""}]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": " part "}, {"type": "image"}]}]},
    "tools": {"messages": [SYSTEM, ASKED], "tools": [WEATHER, WEATHER]},
    "tool round trip": {
        "messages": [ASKED, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT],
        "tools": [WEATHER],
    },
    "two calls as text": {
        "messages": [ASKED, {"role": "assistant", "content": None, "tool_calls": [TEXT_CALL, TEXT_CALL]}, RESULT, RESULT],
    },
    "thinking": {
        "messages": [ASKED, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nRain."}, USER],
        "enable_thinking": False,
    },
}
# Templates that print today's date get it as a variable.
ALWAYS = {"date_string": "01 Jan 2025"}


def chat_goldens() -> dict[str, Any]:
    """What `transformers` renders, or the error that it raises, for every template and case."""
    from transformers.utils.chat_template_utils import render_jinja_template

    renders: dict[str, dict[str, Any]] = {}
    for path in sorted((DATA / "templates").glob("*.jinja")):
        bos, eos = TOKENS[path.stem]
        renders[path.stem] = {"bos_token": bos, "eos_token": eos, "renders": {}}
        for name, case in CASES.items():
            given = {"add_generation_prompt": True, "tools": None, **case}
            messages = given.pop("messages")
            try:
                rendered, _ = render_jinja_template(
                    [messages], chat_template=path.read_text(encoding="utf-8"), bos_token=bos, eos_token=eos, **ALWAYS, **given
                )
                result = {"text": rendered[0]}
            except Exception as error:
                result = {"error": type(error).__name__, "message": str(error)}
            renders[path.stem]["renders"][name] = result
    return {"cases": {name: {**ALWAYS, **case} for name, case in CASES.items()}, "templates": renders}


TEXTS = [
    "",
    " ",
    "Hello",
    "The capital of France is",
    "  multiple   spaces\tand\ttabs\n\n\nlines  ",
    "Don't you're we'll I'D THEY'VE",
    "1234567890 3.14159 ½ ² Ⅷ ٣",
    "Café déjà vu – naïve, Ångström.",
    "e\u0301 decomposed",
    "你好，世界！こんにちは 안녕하세요",
    "Привет мир שלום עולם مرحبا",
    "🌦️👩‍👩‍👧‍👦🇨🇭",
    "def f(x):\n    return x**2  # comment\n",
    "<|im_start|>user\nHi<|im_end|>\n",
    "a<|im_end|>b <|endoftext|> c",
    "\u0000\u0001\u001f\u007f\u0080\ufeff\ufffd",
    "[CLS] [SEP] ##ing unaffable",
    "https://example.org/a?b=c&d=%20#e",
    "zero\u200bwidth\u00a0space",
    "ΑΒΓ αβγ ÄÖÜ äöü ß ẞ",
    "x" * 200,
]


def byte_level_goldens(path: Path) -> list[list[Any]]:
    """Ids by the textbook: split with the published expressions, then merge the pair that was learnt first."""
    import gguf
    import regex

    fields = {key: field for key, field in gguf.GGUFReader(path).fields.items() if key.startswith("tokenizer.ggml")}
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    ids = {token: i for i, token in enumerate(tokens)}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(fields["tokenizer.ggml.merges"].contents())}
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in printable]
    letter = {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}
    words = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")

    def encode_word(word: str) -> list[int]:
        parts = [letter[byte] for byte in word.encode()]
        while len(parts) > 1:
            rank, at = min((ranks.get(pair, len(ranks)), at) for at, pair in enumerate(pairwise(parts)))
            if rank == len(ranks):
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [ids[part] for part in parts]

    def encode(text: str) -> list[int]:
        found: list[int] = []
        for piece in regex.split("(" + "|".join(map(regex.escape, special)) + ")", text):
            if piece in special:
                found.append(ids[piece])
                continue
            for stretch in regex.findall(r"\p{N}|[^\p{N}]+", piece):
                for word in words.findall(stretch):
                    found += encode_word(word)
        return found

    return [[text, encode(text)] for text in TEXTS]


def sentencepiece_goldens(kind: str, **options: Any) -> dict[str, Any]:
    """A tiny SentencePiece model, as GGUF key-values, and what the original library makes of the texts."""
    import sentencepiece

    chooser = random.Random(0)
    sentence = "the cat sat on a mat and then that other hat thing went to sleep in the garden with its kittens"
    words = sentence.split()
    corpus = [" ".join(chooser.choices(words, k=8)) for _ in range(400)]
    settings = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "add_dummy_prefix": True, **options}
    with tempfile.TemporaryDirectory() as folder:
        prefix = str(Path(folder) / "tiny")
        if rules := settings.pop("rules", None):
            settings["normalization_rule_tsv"] = str(Path(folder) / "rules.tsv")
            Path(settings["normalization_rule_tsv"]).write_text(rules)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus),
            model_prefix=prefix,
            model_type=kind,
            user_defined_symbols=["<turn>"],
            **settings,
        )
        model = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
    size = model.get_piece_size()

    def type_of(i: int) -> int:
        checks = ((model.is_unknown, 2), (model.is_control, 3), (model.is_byte, 6), (model.is_unused, 5))
        return next((value for check, value in checks if check(i)), 4 if model.id_to_piece(i) == "<turn>" else 1)

    metadata = {
        "model": {"bpe": "llama", "unigram": "t5"}[kind],
        "tokens": [model.id_to_piece(i) for i in range(size)],
        "scores": [model.get_score(i) for i in range(size)],
        "token_type": [type_of(i) for i in range(size)],
        "bos_token_id": model.bos_id(),
        "eos_token_id": model.eos_id(),
        "unknown_token_id": model.unk_id(),
    }
    if kind == "unigram":
        metadata["add_space_prefix"] = settings["add_dummy_prefix"]
        metadata["remove_extra_whitespaces"] = settings["remove_extra_whitespaces"]
        if rules:
            metadata["precompiled_charsmap"] = list(charsmap(model.serialized_model_proto()))
    texts = [*TEXTS, *corpus[:20], "thethethe  sat\nhatmatkittens<0x0A>", "ｃat  ﬁt ½", " the ", "   "]
    rows = [[text, model.encode(text), model.decode(model.encode(text))] for text in texts if "\x00" not in text]
    return {"metadata": {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}, "rows": rows}


def charsmap(model: bytes) -> bytes:
    """The compiled normalisation in a SentencePiece model: field 2 (precompiled_charsmap) of field 3 (normalizer_spec)."""
    return protobuf_field(protobuf_field(model, 3), 2)


def protobuf_field(data: bytes, wanted: int) -> bytes:
    """The bytes of the first field of that number, among fields of bytes, varints and 32-bit numbers."""

    def varint(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            value |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 128:
                return value, at

    at = 0
    while at < len(data):
        key, at = varint(at)
        if key & 7 == 2:
            length, at = varint(at)
            if key >> 3 == wanted:
                return data[at : at + length]
            at += length
        else:
            at = varint(at)[1] if key & 7 == 0 else at + 4
    return b""


# Some of SentencePiece's usual rules (code points in hex: what they become), which as a whole take 240 kB.
RULES = "\n".join(["FF43\t63", "FB01\t66 69", "BD\t31 2F 32", "9\t20", "A\t20", "A0\t20", "65 301\tE9", "200B\t"]) + "\n"


def file_goldens(folder: Path) -> list[list[Any]]:
    """Ids and decoded text by `transformers`."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = []
    for text in TEXTS:
        ids = tokenizer(text, truncation=False, padding=False)["input_ids"]
        rows.append([text, ids, tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)])
    return rows


def write(name: str, value: object, indent: int | None = 1) -> None:
    """One golden file."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    (DATA / name).write_text(text + "\n", encoding="utf-8")
    print("wrote", DATA / name)


def main() -> None:
    """Writes what can be written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", type=Path, help="the GGUF file of SmolLM2")
    parser.add_argument("--minilm", type=Path, help="the folder of all-MiniLM-L6-v2")
    options = parser.parse_args()
    write("chat_goldens.json", chat_goldens())
    write("sentencepiece.json", sentencepiece_goldens("bpe", vocab_size=380, byte_fallback=True), indent=None)
    plain = sentencepiece_goldens("unigram", vocab_size=44, add_dummy_prefix=False)
    ruled = sentencepiece_goldens("unigram", vocab_size=44, rules=RULES, remove_extra_whitespaces=True)
    with_bytes = sentencepiece_goldens("unigram", vocab_size=300, byte_fallback=True)
    write("unigram.json", {"plain": plain, "rules": ruled, "bytes": with_bytes}, indent=None)
    if options.smollm2:
        write("smollm2_tokens.json", byte_level_goldens(options.smollm2))
    if options.minilm:
        write("minilm_tokens.json", file_goldens(options.minilm))


if __name__ == "__main__":
    main()
