"""The peers' models for bench/browser.py, made by their own tools: run it with the Python of bench/peers.sh.

python bench/browser_models.py MINILM SMOLLM2 FOLDER
MINILM is the folder and SMOLLM2 the GGUF file that Pumice runs. FOLDER gets one model a subfolder, as transformers.js reads them:
`minilm` (float32), `smollm2` (the weights of the GGUF file, 4 bits in blocks of 32 and float32 activations, by onnxruntime's own
builder for WebGPU) and `matmul.onnx`.
"""

from __future__ import annotations

import argparse
import copy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MATMUL = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("minilm", "smollm2", "folder"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    minilm, smollm2, folder = args.minilm, args.smollm2, args.folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in (
        ("matmul.onnx", make_matmul),
        ("minilm", lambda out: make_minilm(minilm, out)),
        ("smollm2", lambda out: make_smollm2(smollm2, out)),
    ):
        if not (folder / name).exists():
            print(f"making {name}", flush=True)
            with tempfile.TemporaryDirectory(dir=folder) as made:
                make(Path(made) / name)
                (Path(made) / name).rename(folder / name)


def make_matmul(path: Path) -> None:
    """A matmul of two inputs."""
    import onnx
    from onnx import TensorProto, helper

    a, b, c = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [MATMUL, MATMUL]) for name in "abc")
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "matmul", [a, b], [c])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), str(path))


def make_minilm(model: Path, out: Path) -> None:
    """The encoder up to its last hidden state, fused by onnxruntime's tool; transformers.js pools itself."""
    import torch
    from onnxruntime.transformers import optimizer
    from transformers import AutoModel

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(model, attn_implementation="eager")

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
            return self.model(**given).last_hidden_state

    hidden, example = Hidden().eval(), torch.ones(2, 16, dtype=torch.int64)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {name: {0: "batch", 1: "length"} for name in (*names, "last_hidden_state")}
    options: dict[str, Any] = {"input_names": names, "output_names": ["last_hidden_state"], "opset_version": 17, "dynamo": False}
    (out / "onnx").mkdir(parents=True)
    plain = out / "plain.onnx"
    with torch.inference_mode():
        torch.onnx.export(
            hidden, (example, torch.ones_like(example), torch.zeros_like(example)), plain, dynamic_axes=axes, **options
        )
    cfg = hidden.model.config
    fused = optimizer.optimize_model(str(plain), "bert", num_heads=cfg.num_attention_heads, hidden_size=cfg.hidden_size)
    fused.save_model_to_file(str(out / "onnx" / "model.onnx"))
    plain.unlink()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        if (model / name).exists():
            shutil.copy(model / name, out / name)


def make_smollm2(gguf: Path, out: Path) -> None:
    """The GGUF file's weights as a Hugging Face folder, then as onnxruntime's builder writes it for WebGPU, in one file."""
    import onnx
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    given: dict[str, Any] = {"gguf_file": gguf.name}
    loaded = AutoModelForCausalLM.from_pretrained(str(gguf.parent), dtype=torch.float32, **given)
    config = copy.deepcopy(loaded.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(loaded.state_dict())
    hf, built = out.with_name("hf"), out.with_name("built")
    model.save_pretrained(hf)
    AutoTokenizer.from_pretrained(str(gguf.parent), **given).save_pretrained(hf)
    command = [
        sys.executable,
        "-m",
        "onnxruntime_genai.models.builder",
        "-i",
        str(hf),
        "-o",
        str(built),
        "-p",
        "int4",
        "-e",
        "webgpu",
    ]
    command += ["--extra_options", "use_webgpu_fp32=true", "int4_block_size=32", "hf_token=false"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (out / "onnx").mkdir(parents=True)
    exported = onnx.load(str(built / "model.onnx"))
    # transformers.js makes the first, empty cache by these shapes, and takes a size that only has a name for 0.
    for value in (*exported.graph.input, *exported.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "kv_cache_dim":
                dim.dim_value = config.head_dim
    onnx.save(exported, str(out / "onnx" / "model_q4.onnx"))
    for path in hf.iterdir():
        if path.suffix in (".json", ".jinja"):
            shutil.copy(path, out / path.name)


if __name__ == "__main__":
    main()
