"""The cache of compiled kernels: what is in it is used without numba, what is wrong with it is made anew."""

from __future__ import annotations

import ast
import ctypes
import inspect
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pumice import config
from pumice.backends.host.native import fused, jit, kernel_tasks, levels
from pumice.backends.host.native.sizes import ROW_HEADER, bytes_known
from pumice.backends.host.threads.pool import compiled_at
from pumice.core import kept, special
from pumice.core.kept import keep, read_kept
from pumice.errors import DeviceError, PumiceWarning
from pumice.ir.registry import get_op

pytestmark = pytest.mark.skipif(not jit.available(), reason="numba is not installed")
if jit.available():
    from pumice.backends.host.native import compiled, machine_code
    from pumice.backends.host.native.machine_code import MachineCode
    from pumice.backends.host.native.object_code import load_object

HOST = Path(jit.__file__).parents[1]
NAME = "prepare_row"


@pytest.fixture(autouse=True)
def nothing_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test sees the warnings that a new process would give."""
    monkeypatch.setattr(kept, "_reported", set())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with what a call from Python needs and one kernel."""
    folder = tmp_path_factory.mktemp("home")
    with config.override(home=folder):
        MachineCode().prepare(["serve", "sleepers", "run_tasks", NAME], None)
    return folder


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that are compiled from here on."""
    names: list[str] = []
    original = compiled.llvm_text

    def watched(name: str, symbol: str) -> str:
        names.append(name)
        return original(name, symbol)

    monkeypatch.setattr(compiled, "llvm_text", watched)
    return names


def file_of(home: Path) -> Path:
    (found,) = (home / "kernels").glob(f"*/{NAME}.o")
    return found


def sums_by(address: int) -> list[float]:
    """What the kernel at an address makes of 0…63: sums over each 16, behind the factor of the row."""
    x, known = np.arange(64, dtype=np.float32), np.zeros(bytes_known(64) // 4, np.float32)
    words = np.array([x.ctypes.data, 0, 0, known.ctypes.data, 1, 64, 0], np.int64)
    compiled_at(address)(words.ctypes.data, 0, 1)
    return [float(s) for s in known[ROW_HEADER // 4 :][:4]]


EXPECTED = [120.0, 376.0, 632.0, 888.0]


def test_a_kernel_is_compiled_once(home: Path, compilations: list[str]) -> None:
    with config.override(home=home):
        assert sums_by(MachineCode().address(NAME)) == EXPECTED
    assert compilations == []
    assert [p.name for p in file_of(home).parent.iterdir() if p.suffix != ".o"] == []  # nothing half-written


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign"])
def test_what_is_damaged_is_made_anew(home: Path, damage: str, compilations: list[str]) -> None:
    path = file_of(home)
    good = path.read_bytes()
    bad = {"cut": good[:-9], "flipped": good[:-9] + bytes([good[-9] ^ 1]) + good[-8:], "empty": b"", "foreign": b"\x7fELF" * 99}
    path.write_bytes(bad[damage])
    with config.override(home=home):
        assert sums_by(MachineCode().address(NAME)) == EXPECTED
    assert compilations == [NAME] and read_kept(path) is not None


def test_each_level_has_a_cache_of_its_own(home: Path) -> None:
    with config.override(home=home):
        folders = [MachineCode(level=level)._folder for level in levels.available()]
    assert None not in folders and len(set(folders)) == len(folders)


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, compilations: list[str]) -> None:
    (tmp_path / "kernels").write_text("a file where the folder should be")
    with config.override(home=tmp_path), pytest.warns(PumiceWarning, match="cannot be written"):
        assert sums_by(MachineCode().address(NAME)) == EXPECTED
    assert compilations == [NAME]


@pytest.mark.parametrize("bits", [0o770, 0o702], ids=oct)
def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path, bits: int, compilations: list[str]) -> None:
    """What lies in it may be anybody's code: kernels are compiled in memory."""
    with config.override(home=tmp_path):
        MachineCode().address(NAME)
        file_of(tmp_path).parent.chmod(bits)
        before = file_of(tmp_path).read_bytes()
        with pytest.warns(PumiceWarning, match="written by other users"):
            assert sums_by(MachineCode().address(NAME)) == EXPECTED
    assert compilations == [NAME, NAME] and file_of(tmp_path).read_bytes() == before


def test_an_entry_that_does_not_define_its_kernel_is_made_anew(tmp_path: Path, compilations: list[str]) -> None:
    """Under a right digest and name: its address would be 0, and calling it end the process."""
    with config.override(home=tmp_path):
        MachineCode().prepare([NAME, "norm_f32"], None)
        path = file_of(tmp_path)
        other = read_kept(path.with_name("norm_f32.o"))
        assert other is not None
        keep(path, other)
        assert sums_by(MachineCode().address(NAME)) == EXPECTED
        assert compilations == [NAME, "norm_f32", NAME]
        assert sums_by(MachineCode().address(NAME)) == EXPECTED
    assert len(compilations) == 3


def test_an_entry_under_the_name_of_another_kernel_is_made_anew(tmp_path: Path, compilations: list[str]) -> None:
    with config.override(home=tmp_path):
        MachineCode().prepare([NAME, "norm_f32"], None)
        file_of(tmp_path).with_name("norm_f32.o").rename(file_of(tmp_path))
        assert sums_by(MachineCode().address(NAME)) == EXPECTED
    assert compilations[2:] == [NAME]


def test_a_kernel_without_an_address_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "define void @something_else() {\n ret void\n}"
    monkeypatch.setattr(compiled, "llvm_text", lambda name, symbol: text)
    with config.override(home=tmp_path), pytest.raises(DeviceError, match="odd has no address"):
        MachineCode().address("odd")
    assert not list(tmp_path.rglob("odd*"))


def test_what_is_compiled_on_first_need_is_told(tmp_path: Path) -> None:
    reported: list[int] = []
    with config.override(home=tmp_path), jit.report_compilation(reported.append):
        for _ in range(2):
            code = MachineCode(jit._before_compiling)
            assert sums_by(code.address(NAME)) == sums_by(code.address(NAME)) == EXPECTED
        assert reported == [0]
        code.address("rope_f32")
        assert reported == [0, 1]
    code.address("norm_f32")
    assert reported == [0, 1]


def test_only_what_is_missing_is_reported(home: Path, compilations: list[str]) -> None:
    seen: list[tuple[int, int]] = []
    with config.override(home=home):
        file_of(home).unlink()
        MachineCode().prepare(["serve", NAME], lambda done, total: seen.append((done, total)))
        assert seen == [(0, 1), (1, 1)]
        MachineCode().prepare(["serve", NAME], lambda done, total: seen.append((done, total)))
    assert len(seen) == 2 and compilations == [NAME]


def test_threads_that_ask_at_once(home: Path) -> None:
    with config.override(home=home), ThreadPoolExecutor(8) as pool:
        code = MachineCode()
        assert len(set(pool.map(code.address, [NAME] * 32))) == 1


def test_a_kernel_that_calls_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "declare void @no_such_function_here()\ndefine void @pumice_odd() {\n call void @no_such_function_here()\n ret void\n}"
    monkeypatch.setattr(compiled, "llvm_text", lambda name, symbol: text)
    with config.override(home=tmp_path), pytest.raises(RuntimeError, match="no_such_function_here"):
        MachineCode().address("odd")
    assert not list(tmp_path.rglob("odd*"))


def test_a_later_process_needs_neither_numba_nor_llvm(home: Path) -> None:
    program = f"""
import sys
import numpy as np
from pumice.backends.host.native import jit
from pumice.backends.host.native.kernel_tasks import Task
x, known = np.arange(64, dtype=np.float32), np.zeros({bytes_known(64) // 4}, np.float32)
words = (x.ctypes.data, 0, 0, known.ctypes.data, 1, 64, 0)
jit.kernels().run([Task({NAME!r}, words, 1, 64)])
print(known[{ROW_HEADER // 4} :][:4].tolist() == {EXPECTED}, "numba" in sys.modules, "llvmlite" in sys.modules)
"""
    env = {**os.environ, "PUMICE_HOME": str(home), "PYTHONPATH": str(HOST.parents[2])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
    by_llvm = sys.platform != "linux" or levels.current().machine != "x86_64"
    assert done.stdout.split() == ["True", "False", str(by_llvm)]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have LLVM load the objects")
@pytest.mark.parametrize(
    ("text", "answer", "ours"),
    [
        ("define i64 @f(i64 %x) {\n %y = mul i64 %x, 3\n ret i64 %y\n}", 33, True),
        # A constant in memory, a function of the C library and one of its own, each by an absolute address.
        (
            "@t = private constant [2 x i64] [i64 5, i64 7]\ndeclare i64 @labs(i64)\n"
            "define i64 @f(i64 %x) {\n %p = getelementptr [2 x i64], ptr @t, i64 0, i64 1\n %v = load volatile i64, ptr %p\n"
            " %a = call i64 @labs(i64 -6)\n %s = call i64 @g(i64 %v, i64 %a)\n ret i64 %s\n}\n"
            "define i64 @g(i64 %x, i64 %y) noinline optnone {\n %z = add i64 %x, %y\n ret i64 %z\n}",
            13,
            True,
        ),
        ("@n = global i64 4\ndefine i64 @f(i64 %x) {\n %v = load volatile i64, ptr @n\n ret i64 %v\n}", 4, False),
    ],
    ids=["plain", "addresses", "memory to write"],
)
def test_objects_are_loaded_here_or_by_llvm(
    text: str, answer: int, ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if levels.current().machine != "x86_64":
        pytest.skip("LLVM loads objects of other processors")
    asked: list[str] = []
    original = MachineCode._add_by_llvm
    monkeypatch.setattr(MachineCode, "_add_by_llvm", lambda self, *args: asked.append(args[0]) or original(self, *args))
    with config.override(home=tmp_path):
        for _ in range(2):  # compiled, and from the cache
            code = MachineCode()  # what LLVM has loaded goes with it
            address = code.address("odd", lambda symbol: text.replace("@f(", f"@{symbol}("))
            assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(11) == answer
    assert bool(asked) != ours


def test_what_is_no_object_is_not_loaded(home: Path) -> None:
    good = read_kept(file_of(home))
    assert good is not None
    for bad in (b"", b"\x7fELF", good[:100], good[: len(good) // 2], b"\0" * 64 + good[64:]):
        assert load_object(bad, f"pumice_{NAME}") is None
    assert load_object(good, "something_else") is None


def test_the_digest_covers_all_that_is_compiled() -> None:
    """Every module of this package that the kernels come from, found by following imports."""
    package = "pumice.backends.host"
    found, left = set(), [HOST / "native" / "compiled.py", HOST / "native" / "codegen" / "fused_code.py"]
    while left:
        path = left.pop()
        if path in found:
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package):
                origin = HOST.joinpath(*(node.module or "").removeprefix(package).split(".")[1:])
                modules = [origin / f"{a.name}.py" for a in node.names] if origin.is_dir() else [origin.with_suffix(".py")]
                assert all(m.is_file() for m in modules), ast.unparse(node)
                left += modules
    assert len(found) > 20
    assert found <= set(machine_code.sources())


def test_the_digest_covers_the_functions_of_elementwise_ops() -> None:
    sources = {str(path) for path in machine_code.sources()}
    assert special.__file__ in sources
    for op in {op for ops in fused.KNOWN.values() for op in ops}:
        assert inspect.getsourcefile(get_op(op).infer) in sources, op


def test_the_kernels_of_a_graph() -> None:
    import pumice as pm

    def model(params: dict[str, pm.Tensor], x: pm.Tensor) -> pm.Tensor:
        return pm.silu(pm.qmatmul(pm.rms_norm(x, axes=1, eps=1e-5), params["w"]))

    packed = pm.trace(model, params={"w": pm.spec(64, 32, dtype="q8_0")}, x=pm.spec("T", 32))
    between = ["norm_f32", "map_silu"]
    matmuls = ["interleave_rows", "prepare_row", "matvec_q8_0", "pack_rows_f32", "matmul_q8_0"]
    assert kernel_tasks.kernels_for(packed) == [*matmuls, *between]
    plain = pm.trace(lambda x: pm.silu(x), x=pm.spec(4))
    assert kernel_tasks.kernels_for(plain) == []

    def attending(params: dict[str, pm.Tensor], x: pm.Tensor) -> pm.Tensor:
        q = model(params, x).reshape(1, 1, -1, 64)
        return pm.attention(q, q, q)

    # Single queries and prompts have a kernel each.
    many = pm.trace(attending, params={"w": pm.spec(64, 32, dtype="q8_0")}, x=pm.spec("T", 32))
    assert set(kernel_tasks.kernels_for(many)) - set(kernel_tasks.kernels_for(packed)) == {"attend_f32", "attend_many_f32"}


def test_code_outlives_what_python_knows_of_it() -> None:
    # Threads of the pool run kernels until the process ends, which is after Python has cleared the modules.
    script = """
import gc, time
import numpy as np
import pumice as pm
from pumice.backends.host.native import object_code

exe = pm.compile(lambda x: pm.softmax(pm.relu(x @ x) + 1.0), x=pm.spec(300, 300), device="host")
exe.run(x=np.ones((300, 300), "f4"))
vars(object_code).clear()
gc.collect()
time.sleep(0.2)
exe.run(x=np.ones((300, 300), "f4"))
print("alive")
"""
    environment = os.environ | {"PUMICE_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stdout == "alive\n", done.stderr
