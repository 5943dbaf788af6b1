"""Write tests/train/golden with PyTorch: what optimizers, losses, schedules and whole models give there.

Run it with a Python that has torch and safetensors: `python tools/make_train_goldens.py`. The tests themselves need neither.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as tf
from safetensors.torch import save_file
from torch import nn

FOLDER = Path(__file__).parents[1] / "tests" / "train" / "golden"
STEPS = 5


def main() -> None:
    torch.manual_seed(5)
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in (("optimizers", optimizers), ("schedules", schedules), ("losses", losses)):
        np.savez_compressed(FOLDER / f"{name}.npz", **make())
    model_goldens("gpt", TinyGPT(), gpt_batch)
    model_goldens("conv", TinyConv(), conv_batch)


# --- optimizers: five steps of a regression, the parameters after each ---

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "sgd nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.05),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "adam decay": lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1),
    "adamw clip": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1),
    "muon": lambda p: torch.optim.Muon(p, lr=0.05, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.05, weight_decay=0.1),
}


def optimizers() -> dict[str, np.ndarray]:
    x, y = torch.randn(16, 4), torch.randn(16, 3)
    w, b = torch.randn(3, 4) * 0.5, torch.randn(3) * 0.5
    out = {"x": x.numpy(), "y": y.numpy(), "w": w.numpy(), "b": b.numpy()}
    for name, make in OPTIMIZERS.items():
        params = [nn.Parameter(w.clone()), nn.Parameter(b.clone())]
        # PyTorch's Muon takes matrices only.
        chosen = params[:1] if name == "muon" else params
        optimizer = make(chosen)
        found = []
        for _ in range(STEPS):
            loss = ((torch.tanh(x @ params[0].T + params[1]) - y) ** 2).mean()
            optimizer.zero_grad()
            params[1].grad = None
            loss.backward()
            if name == "adamw clip":
                nn.utils.clip_grad_norm_(chosen, 0.05)
            optimizer.step()
            found.append([p.detach().clone().numpy() for p in params])
        out[f"{name}/w"] = np.stack([f[0] for f in found])
        out[f"{name}/b"] = np.stack([f[1] for f in found])
    return out


def schedules() -> dict[str, np.ndarray]:
    kinds = {
        "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20, eta_min=0.1),
        "linear": lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.25, 20),
        "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 6, 0.5),
        "multi_step": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 11], 0.1),
        "one_cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 1.0, total_steps=21),
    }
    out = {}
    for name, make in kinds.items():
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule = make(optimizer)
        rates = []
        for _ in range(20):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        out[name] = np.array(rates)
    return out


# --- losses: values and gradients ---


def losses() -> dict[str, np.ndarray]:
    logits, weight = torch.randn(6, 5), torch.rand(5) + 0.5
    targets = torch.tensor([0, 4, 2, -100, 1, 2])
    a, b = torch.randn(4, 3), torch.randn(4, 3)
    p, half = torch.softmax(torch.randn(4, 3), -1), torch.rand(4, 3)
    out = {"logits": logits, "weight": weight, "targets": targets.to(torch.int32), "a": a, "b": b, "p": p, "half": half}

    def cases(r: dict[str, str]) -> dict[str, tuple]:
        return {
            "cross_entropy": (logits, lambda x: tf.cross_entropy(x, targets, **r)),
            "cross_entropy ignore 2": (logits, lambda x: tf.cross_entropy(x, targets.clamp(min=0), ignore_index=2, **r)),
            "cross_entropy smooth": (logits, lambda x: tf.cross_entropy(x, targets, label_smoothing=0.2, **r)),
            "cross_entropy weight": (logits, lambda x: tf.cross_entropy(x, targets, weight=weight, **r)),
            "cross_entropy both": (logits, lambda x: tf.cross_entropy(x, targets, weight=weight, label_smoothing=0.2, **r)),
            "nll": (logits, lambda x: tf.nll_loss(torch.log_softmax(x, -1), targets, weight=weight, **r)),
            "mse": (a, lambda x: tf.mse_loss(x, b, **r)),
            "l1": (a, lambda x: tf.l1_loss(x, b, **r)),
            "huber": (a, lambda x: tf.huber_loss(x, b, delta=0.7, **r)),
            "bce": (a, lambda x: tf.binary_cross_entropy_with_logits(x, half, pos_weight=weight[:3], **r)),
            "kl": (a, lambda x: tf.kl_div(torch.log_softmax(x, -1), p, **r)),
        }

    for reduction in ("mean", "sum", "none"):
        for name, (x, loss) in cases({"reduction": reduction}).items():
            leaf = x.clone().requires_grad_()
            value = loss(leaf)
            (value * torch.arange(1.0, value.numel() + 1).reshape(value.shape)).sum().backward()
            out[f"{name}/{reduction}"] = value.detach()
            out[f"{name}/{reduction}/grad"] = leaf.grad
    return {name: value.numpy() for name, value in out.items()}


# --- whole models: weights as a state dict, the loss of a batch and all gradients ---


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Module()
        self.mlp.fc1, self.mlp.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
        y = self.norm1(x)
        x = x + self.attn(y, y, y, attn_mask=hidden, need_weights=False)[0]
        return x + self.mlp.fc2(tf.gelu(self.mlp.fc1(self.norm2(x)), approximate="tanh"))


class TinyGPT(nn.Module):
    def __init__(self, vocab: int = 37, width: int = 24, heads: int = 3, context: int = 12, layers: int = 2) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        for p in self.parameters():  # nothing stays at its special first value
            p.data += 0.1 * torch.randn_like(p)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.wte.weight.T

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self(tokens[:, :-1])
        return tf.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


def gpt_batch() -> dict[str, torch.Tensor]:
    return {"tokens": torch.randint(0, 37, (3, 13))}


class TinyConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 16, 3, stride=2, groups=2, bias=False), nn.GroupNorm(4, 16)
        self.fc = nn.Linear(16 * 3 * 3, 5)
        for p in self.parameters():
            p.data += 0.1 * torch.randn_like(p)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = tf.max_pool2d(torch.relu(self.norm1(self.conv1(x))), 2)
        h = torch.relu(self.norm2(self.conv2(h)))
        return tf.cross_entropy(self.fc(h.flatten(1)), y)


def conv_batch() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(6, 2, 14, 14), "y": torch.randint(0, 5, (6,))}


def model_goldens(name: str, model: nn.Module, make_batch) -> None:
    # A tied or shared tensor would be refused; nothing is shared in the state dict itself.
    save_file({k: v.clone() for k, v in model.state_dict().items()}, FOLDER / f"{name}.safetensors")
    batch = make_batch()
    loss = model.loss(**batch)
    loss.backward()
    out = {f"batch/{k}": v.numpy().astype(np.float32 if v.is_floating_point() else np.int32) for k, v in batch.items()}
    out["loss"] = loss.detach().numpy()
    out |= {f"grad/{k}": p.grad.numpy() for k, p in model.named_parameters()}
    # What training changed besides: running statistics.
    out |= {f"buffer/{k}": b.numpy() for k, b in model.named_buffers()}
    np.savez_compressed(FOLDER / f"{name}.npz", **out)


if __name__ == "__main__":
    main()
