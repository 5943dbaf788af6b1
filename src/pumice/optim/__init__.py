"""Optimizers and learning-rate schedules: plain data, whose updates are traced into the plan of a train step."""

from pumice.optim import schedules
from pumice.optim.gradient import SGD, Adam, AdamW, Lion
from pumice.optim.matrix import Adafactor, Muon
from pumice.optim.optimizer import Optimizer, ParamGroup, global_norm
from pumice.optim.schedules import Schedule

__all__ = ["SGD", "Adam", "AdamW", "Adafactor", "ParamGroup", "Lion", "Muon", "Optimizer", "Schedule", "global_norm", "schedules"]
