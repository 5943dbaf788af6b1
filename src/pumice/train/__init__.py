"""Training: compiled train steps, and the Trainer that runs them."""

from pumice.train.bundle import export_step
from pumice.train.callbacks import Callback, EarlyStopping
from pumice.train.checkpoint import Checkpoint, Checkpoints, load_checkpoint, load_params, save_params
from pumice.train.data import Arrays, Batches, Data, Dataset, Mapped, Position, Subset, Tokens, split
from pumice.train.datasets import Characters, ImageFolder, digits, open_tokens, read_texts, text_tokens
from pumice.train.recipes import StepFunction
from pumice.train.step import TrainStep, compile_step
from pumice.train.trainer import Result, Trainer

__all__ = [
    "TrainStep", "compile_step", "StepFunction", "export_step",
    "Trainer", "Result", "Callback", "EarlyStopping",
    "Arrays", "Batches", "Data", "Dataset", "Mapped", "Position", "Subset", "Tokens", "split",
    "Characters", "ImageFolder", "digits", "open_tokens", "read_texts", "text_tokens",
    "Checkpoint", "Checkpoints", "load_checkpoint", "load_params", "save_params",
]  # fmt: skip
