"""EmbeddingModel: what `pm.load` gives for an encoder: texts in, pooled and normalised vectors out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

import pumice as pm
from pumice.core.fields import Fields
from pumice.core.json_file import read_json_list, read_optional_json
from pumice.errors import FormatError, InputError
from pumice.formats.bundle import MANIFEST, BundleWeights
from pumice.formats.weights import WeightFile
from pumice.hooks import ReportErrors
from pumice.llm.encoder_receipts import EncoderRun
from pumice.llm.encoders import Array, EncoderModel, text_list
from pumice.models.config import ModelArchConfig
from pumice.models.load import LoadedParams
from pumice.models.pooling import pool
from pumice.models.registry import EncoderArchitecture
from pumice.run.device import Device
from pumice.sources import ProgressCallback
from pumice.tensor import Tensor
from pumice.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pumice.receipts.receipt import Receipt

# By llama.cpp's numbers, from 1 on.
POOLINGS = ("mean", "cls", "last")


@dataclass(frozen=True)
class Pooling:
    """How token vectors become a text's vector: mode mean, cls or last; whether it is scaled to length 1; longest input.

    With `lower_case` texts are lower-cased first, whatever the tokeniser does.
    """

    mode: str = "mean"
    normalize: bool = True
    max_tokens: int | None = None
    lower_case: bool = False

    @staticmethod
    def from_folder(folder: Path) -> Pooling:
        """By the sentence-transformers files next to the weights; mean and normalised without them."""
        refuse_prompts(folder)
        if not (folder / "modules.json").is_file():
            return Pooling(**text_settings(folder))
        mode, normalize, encoder = "mean", False, folder
        for m in read_json_list(folder / "modules.json"):
            if not isinstance(m, dict):
                raise FormatError(
                    f"modules.json of {folder} lists {m!r:.60}, which is no module", hint="download the model again"
                )
            kind = str(m.get("type", "")).rsplit(".", 1)[-1]
            if kind == "Pooling":
                mode = _pooling_mode(read_optional_json(_inside(folder, m.get("path", "")) / "config.json"), folder)
            elif kind == "Normalize":
                normalize = True
            elif kind == "Transformer":
                encoder = _inside(folder, m.get("path", ""))
            else:
                raise FormatError(
                    f"{folder} has the module {kind!r:.60}, which is not supported", hint="Pooling and Normalize are"
                )
        return Pooling(mode, normalize, **text_settings(encoder))


def pooling_of_gguf(metadata: Mapping[str, Any], folder: Path) -> Pooling:
    """By the GGUF file's metadata or, without it, by the files next to it."""
    beside = Pooling.from_folder(folder)
    fields = Fields(metadata, "the GGUF metadata")
    name = f"{fields.text('general.architecture')}.pooling_type"
    kind = fields.whole(name, 0, least=0)
    if kind == 0:
        return beside
    if kind > len(POOLINGS):
        raise fields.refuse(f"{name} = {kind}", "1 (mean), 2 (cls) and 3 (last) are supported")
    return replace(beside, mode=POOLINGS[kind - 1])


def read_pooling(path: Path, weights: WeightFile) -> Pooling:
    """How the model at a path pools: by its own files, or by a bundle's manifest."""
    if isinstance(weights, BundleWeights):
        return _bundle_pooling(weights)
    folder = path if path.is_dir() else path.parent
    return pooling_of_gguf(weights.metadata, folder) if weights.kind == "gguf" else Pooling.from_folder(folder)


def _bundle_pooling(weights: BundleWeights) -> Pooling:
    fields = Fields(weights.metadata.get("encoder", {}), f"the encoder of {MANIFEST}")
    mode = fields.text("pooling")
    if mode not in POOLINGS:
        raise fields.refuse(f"pooling = {mode!r:.60}", f"{', '.join(POOLINGS)} are supported")
    return Pooling(mode, fields.flag("normalized"), fields.whole("max_tokens"), fields.flag("lower_case"))


def _inside(folder: Path, path: object) -> Path:
    """The folder of a module, which must be one below the model's."""
    if not isinstance(path, str) or Path(path).is_absolute() or ".." in Path(path).parts:
        raise FormatError(f"modules.json of {folder} has the path {path!r:.60}", hint="a path inside the model's folder")
    return folder / path


def text_settings(folder: Path) -> dict[str, Any]:
    """What the file of a Transformer module says about texts: it is named after the first models of the library."""
    kinds = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    found = (read_optional_json(folder / f"sentence_{kind}_config.json") for kind in kinds)
    fields = Fields(next((settings for settings in found if settings), {}), f"the sentence-transformers settings of {folder}")
    longest = fields.get("max_seq_length")
    if longest is None:
        longest = Fields(read_optional_json(folder / "tokenizer_config.json"), "tokenizer_config.json").get("model_max_length")
    return {
        # As large as 1e30 where the authors did not know.
        "max_tokens": longest if isinstance(longest, int) and longest > 0 else None,
        "lower_case": fields.flag("do_lower_case"),
    }


def _pooling_mode(config: Mapping[str, Any], folder: Path) -> str:
    names = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
    chosen = [names.get(k, k) for k, v in config.items() if k.startswith("pooling_mode") and v is True]
    if (named := config.get("pooling_mode")) is not None:
        # Newer versions of the library name it, or several.
        chosen = ["last" if mode == "lasttoken" else str(mode) for mode in (named if isinstance(named, list) else [named])]
    if len(chosen) != 1 or chosen[0] not in names.values():
        raise FormatError(
            f"{folder} pools by {' and '.join(map(repr, chosen))[:200] or 'nothing'}", hint="mean, cls and last are supported"
        )
    return chosen[0]


def refuse_prompts(folder: Path) -> None:
    """A prompt that the library puts before every text unless told otherwise; those to be chosen by name are the caller's."""
    fields = Fields(read_optional_json(folder / "config_sentence_transformers.json"), "config_sentence_transformers.json")
    name, prompts = fields.text("default_prompt_name", ""), fields.section("prompts")
    if name and prompts.get(name) != "":
        hint = f"set it to null, and put the prompt before the texts: {prompts.get(name)!r:.200}"
        raise fields.refuse(f"default_prompt_name = {name!r:.60}", hint)


def encoder_graph(arch: EncoderArchitecture, cfg: ModelArchConfig, pooling: Pooling) -> Callable[..., Tensor]:
    """(tokens [B,T], length [B]) → [B, hidden]: the encoder followed by pooling and normalisation."""

    def embed(params: Any, tokens: Tensor, length: Tensor) -> Tensor:
        pooled = pool(arch.hidden(cfg, params, tokens, length=length), length, pooling.mode)
        if not pooling.normalize:
            return pooled
        return pooled / pm.maximum(pm.sqrt(pm.square(pooled).sum(axis=-1, keepdims=True)), 1e-12)

    return embed


def _several(texts: Any) -> list[Any]:
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise InputError(f"the texts are {type(texts).__name__}", hint="give a list of lists of token ids")
    return list(texts)


def _token_ids(number: int, text: Any) -> list[int]:
    """The ids of one text as ints; the model's vocabulary limits them when it runs."""
    hint = "give a list of token ids, whole numbers from 0 on"
    if isinstance(text, str) or not isinstance(text, Iterable):
        raise InputError(f"text {number} is {type(text).__name__}", hint=hint)
    found = list(text)
    for i in found:
        if not isinstance(i, (int, np.integer)) or isinstance(i, bool) or i < 0:
            raise InputError(f"text {number} holds {i!r}, which is no token id", hint=hint)
    return [int(i) for i in found]


class EmbeddingModel(EncoderModel):
    """A text encoder on a device. A context manager; `close()` frees it."""

    def __init__(
        self,
        arch: EncoderArchitecture,
        cfg: ModelArchConfig,
        params: LoadedParams,
        tokenizer: Tokenizer,
        device: Device,
        pooling: Pooling,
        **options: Any,
    ) -> None:
        self.pooling, self.dim = pooling, cfg.hidden
        longest = min(pooling.max_tokens or cfg.max_positions, cfg.max_positions)
        graph = encoder_graph(arch, cfg, pooling)
        options |= {"width": cfg.hidden, "max_tokens": longest, "lower_case": pooling.lower_case}
        super().__init__(graph, params, tokenizer, device, **options)

    @overload
    def embed(
        self, texts: str | Sequence[str], *, progress: ProgressCallback | None = None, receipt: Literal[False] = False
    ) -> Array: ...
    @overload
    def embed(
        self, texts: str | Sequence[str], *, progress: ProgressCallback | None = None, receipt: Literal[True]
    ) -> tuple[Array, Receipt]: ...
    def embed(
        self, texts: str | Sequence[str], *, progress: ProgressCallback | None = None, receipt: bool = False
    ) -> Array | tuple[Array, Receipt]:
        """One vector per text, float32 [n, dim], in the texts' order. Longer texts are cut at the model's own limit.

        With `receipt` the vectors and what proves them: `vectors, receipt = model.embed(texts, receipt=True)`.
        """
        with ReportErrors("embed", self.name):
            items = text_list(texts)
            self._require_open()
            return self._embed(self.tokenizer.encode_batch(items), items if receipt else None, progress, receipt=receipt)

    @overload
    def embed_tokens(
        self, texts: Sequence[Sequence[int]], *, progress: ProgressCallback | None = None, receipt: Literal[False] = False
    ) -> Array: ...
    @overload
    def embed_tokens(
        self, texts: Sequence[Sequence[int]], *, progress: ProgressCallback | None = None, receipt: Literal[True]
    ) -> tuple[Array, Receipt]: ...
    def embed_tokens(
        self, texts: Sequence[Sequence[int]], *, progress: ProgressCallback | None = None, receipt: bool = False
    ) -> Array | tuple[Array, Receipt]:
        """The same for texts that are token ids already, with the tokens that mark their beginning and end."""
        with ReportErrors("embed", self.name):
            self._require_open()
            return self._embed(texts, None, progress, receipt=receipt)

    def _embed(
        self, tokens: Any, texts: list[str] | None, progress: ProgressCallback | None, *, receipt: bool
    ) -> Array | tuple[Array, Receipt]:
        ran = EncoderRun()
        found = self._run(
            progress, "embed", ran, tokens=[self._cut(_token_ids(k, ids)) for k, ids in enumerate(_several(tokens))]
        )
        if not receipt:
            return found
        from pumice.receipts.artifacts import Artifact

        pooling = self.pooling
        request = {"pooling": pooling.mode, "normalize": pooling.normalize, "lower_case": pooling.lower_case}
        inputs = [] if texts is None else [Artifact.json("texts", texts)]
        return found, ran.receipt(self, "embed", inputs, [Artifact.array("vectors", found)], request)

    def _cut(self, ids: list[int]) -> list[int]:
        """The first tokens that fit, the closing special token kept."""
        return ids if len(ids) <= self.max_tokens else [*ids[: self.max_tokens - 1], ids[-1]]
