"""What the second start of `pumice run` imports: nothing that only tracing, planning and other calls need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cli_harness import RUN, environment
from tiny_models import checkpoint

# It says which modules there are when the command is over, with a mark before them.
CODE = (
    "import sys; from pumice.cli.main import main\n"
    "try: main()\n"
    "except SystemExit as e: assert not e.code, e\n"
    "print('MODULES', *sys.modules)"
)
# Tracing and planning; what other devices, calls and options need; slow modules of the standard library and numpy.
UNUSED = (
    "pumice.passes", "pumice.reference", "pumice.kernels", "pumice.plan.build", "pumice.run.compile",
    "pumice.backends.webgpu", "pumice.receipts", "pumice.routes", "pumice.run.cooperative", "pumice.serve", "pumice.train",
    "pumice.web", "asyncio", "email", "importlib.metadata", "numba", "numpy.random", "pydantic", "ssl", "statistics", "wgpu",
)  # fmt: skip


def start(model: Path) -> tuple[str, set[str]]:
    words = ["run", str(model), "w5 w6 w7", "--raw", "--temperature", "0", "--max-tokens", "4", *map(str, RUN)]
    done = subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, text=True, env=environment(), timeout=300)
    assert done.returncode == 0, done.stderr
    text, _, modules = done.stdout.rpartition("MODULES ")
    return text, set(modules.split())


def test_the_second_start_imports_only_what_it_uses(tmp_path: Path) -> None:
    model = checkpoint("llama", tmp_path)
    (first, _), (second, modules) = start(model), start(model)
    assert first == second and "pumice.llm.engine" in modules and "pumice.backends.host.device" in modules
    assert [name for name in UNUSED if name in modules] == []
