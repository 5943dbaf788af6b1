"""scikit-learn: `TextEmbedder`, a transformer that turns texts into vectors, for pipelines. Needs `pumice[sklearn]`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from pumice.errors import InputError, PumiceError
from pumice.llm.load import load

try:
    from sklearn.base import BaseEstimator, TransformerMixin
except ImportError as e:
    raise PumiceError(f"scikit-learn is not installed: {e}", hint="pip install 'pumice[sklearn]'") from None

Array = np.ndarray[Any, Any]


class TextEmbedder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Texts in, vectors out: `make_pipeline(TextEmbedder("minilm"), LogisticRegression())`.

    There is nothing to fit: the encoder was trained before. The model is loaded when it is first used.
    """

    def __init__(self, model: Any = "minilm", device: str = "auto") -> None:
        self.model = model
        self.device = device

    def fit(self, texts: Iterable[str], labels: Any = None) -> TextEmbedder:
        """Loads the encoder; the texts are not looked at."""
        self._encoder()
        return self

    def transform(self, texts: Iterable[str]) -> Array:
        """A row for each text, float32."""
        if isinstance(texts, str):
            raise InputError("the texts are one text", hint="give a list of texts")
        found: Array = self._encoder().embed([str(t) for t in texts])
        return found

    def get_feature_names_out(self, names: Any = None) -> Array:
        """Names of the columns."""
        return np.array([f"embedding{k}" for k in range(self._encoder().dim)], object)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def _encoder(self) -> Any:
        if getattr(self, "_loaded", None) is None:
            self._loaded = load(self.model, "embed", device=self.device) if isinstance(self.model, str) else self.model
        return self._loaded

    def __getstate__(self) -> dict[str, Any]:
        """What is copied: not the loaded model, which is loaded again by its name."""
        return {name: value for name, value in self.__dict__.items() if name != "_loaded"}
