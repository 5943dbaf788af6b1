"""Writes how llama.cpp splits texts under each name of a pre-tokeniser, in an environment of its own.

    python -m venv /tmp/goldens && /tmp/goldens/bin/pip install llama-cpp-python==0.3.36 gguf
    /tmp/goldens/bin/python tools/make_pretokenizer_goldens.py

The vocabulary is made for it: its merges turn each text into one token, so whatever is split shows in the ids.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "text" / "data" / "pretokenizers.json"
TEXTS = [
    "I'm 1234567 naïve   x!?\n",
    " HelloWorld fooBAR ABCdef it's We'Ve I'LL",
    "a                     b",
    "an old cat 12 345,678.90",
    "Ali'den geldi, 你好，Hello한글 ㄱㄴ ㄅㄆ こんにちは カタカナ",
    " \r\n\r\n\t x  \n\n y \n",
    "def f(x):\n    return x**2  # comment/\n//",
    "１２３ ½ ² Ⅷ ٣ 123٣",
    "Привет мир! ¿Qué? «да» <s>$+=~`^|",
    "\t\n  x    y..., --- 'quoted' \"text\"",
]


def byte_alphabet() -> list[str]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def learn(texts: list[list[str]]) -> list[tuple[str, str]]:
    """Merges, the most frequent pair first, until every text is one piece."""
    merges: list[tuple[str, str]] = []
    while pairs := Counter(pair for pieces in texts for pair in pairwise(pieces)):
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for pieces in texts:
            at = 0
            while at < len(pieces) - 1:
                if (pieces[at], pieces[at + 1]) == best:
                    pieces[at : at + 2] = ["".join(best)]
                at += 1
    return merges


def ids_of(name: str, tokens: list[str], merges: list[str]) -> list[list[int]]:
    """What llama.cpp makes of the texts."""
    import gguf
    import llama_cpp

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        writer = gguf.GGUFWriter(path, "gpt2")
        for add in (writer.add_context_length, writer.add_embedding_length, writer.add_block_count, writer.add_head_count):
            add(8)
        writer.add_feed_forward_length(8)
        writer.add_layer_norm_eps(1e-5)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(name)
        writer.add_token_list(tokens)
        writer.add_token_types([1] * len(tokens))
        writer.add_token_merges(merges)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
        found = [model.tokenize(text.encode(), add_bos=False, special=False) for text in TEXTS]
        model.close()
        return found


def main() -> None:
    sys.path.insert(0, str(ROOT / "src"))
    from pumice.text import pretokenizers

    alphabet = byte_alphabet()
    pairs = learn([[alphabet[byte] for byte in text.encode()] for text in TEXTS])
    tokens = [*alphabet, *dict.fromkeys("".join(pair) for pair in pairs)]
    merges = [" ".join(pair) for pair in pairs]
    groups: dict[str, list[str]] = {}
    for name in pretokenizers.names():
        groups.setdefault(json.dumps(ids_of(name, tokens, merges)), []).append(name)
    rows = [{"names": names, "ids": json.loads(ids)} for ids, names in groups.items()]
    DATA.write_text(json.dumps({"tokens": tokens, "merges": merges, "texts": TEXTS, "rows": rows}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
