"""What ships for browsers is what its sources give: the same bytes, in the sizes that were promised, all of it in the wheel."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pumice.serve.page import STATIC as SERVED
from pumice.web import STATIC, page_files
from web_packages import WEB, modules

ROOT = WEB.parent


def built_in(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


BUILT = built_in(STATIC)
# What may look like an address: this machine, names of namespaces and statements, names that never resolve.
NO_REQUESTS = re.compile(r"https?://(127\.0\.0\.1|localhost|www\.w3\.org/|in-toto\.io/Statement/|[\w.]+\.invalid/)")
KB = 1024


def gzipped(*names: str) -> int:
    """Bytes that files take on their way to a browser."""
    return sum(len(gzip.compress(BUILT[name].read_bytes(), 9)) for name in names)


@pytest.fixture(scope="module")
def packages() -> Path:
    """node_modules with just the versions of package-lock.json: others may build other bytes."""
    found = modules()
    pinned = json.loads((WEB / "package-lock.json").read_text())["packages"]
    for name in ("esbuild", "typescript", "@huggingface/tokenizers", "@huggingface/jinja"):
        installed = json.loads((found / name / "package.json").read_text())["version"]
        assert installed == pinned[f"node_modules/{name}"]["version"], f"{name} is another version: run `npm ci` in web/"
    return found


@pytest.mark.parametrize(("options", "shipped"), [([], STATIC), (["--server"], SERVED)])
def test_a_rebuild_gives_the_same_bytes(packages: Path, tmp_path: Path, options: list[str], shipped: Path) -> None:
    line = ["node", str(WEB / "build.mjs"), *options, "--out", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    made, there = built_in(tmp_path), built_in(shipped)
    stale = sorted(name for name in made.keys() | there.keys() if _bytes(made.get(name)) != _bytes(there.get(name)))
    assert stale == [], "built files are stale: `make web` builds them again"


def _bytes(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()


def test_the_sources_pass_strict_type_checks(packages: Path) -> None:
    options = json.loads((WEB / "tsconfig.json").read_text())["compilerOptions"]
    assert options["strict"] and options["noUncheckedIndexedAccess"]
    tsc = packages / "typescript" / "bin" / "tsc"
    done = subprocess.run(["node", str(tsc), "-p", str(WEB)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout


def test_the_runtime_and_the_page_are_small() -> None:
    runtime, page = gzipped("pumice.js", "worker.js"), gzipped(*page_files())
    print(f"runtime {runtime} bytes, page {page} bytes, gzipped")
    assert runtime <= 60_000, "pumice.js and worker.js, gzipped, are what every page that uses Pumice loads"
    # All files of a web folder beside the model: runtime, tokenizer, pages, styles, icons, licences.
    assert page <= 200 * KB


def test_built_files_can_be_reviewed() -> None:
    """Whole lines, names as in the sources, nothing that runs text as code, no address outside."""
    for name, path in [(n, p) for folder in (STATIC, SERVED) for n, p in built_in(folder).items() if n.endswith(".js")]:
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) > len(text) / 120, f"{name} looks minified"
        assert not re.search(r"\beval\(|new Function\(", text), name
        assert "sourceMappingURL" not in text and str(ROOT) not in text
        if name != "text.js":  # which has other people's code: their error messages name addresses
            addresses = set(re.findall(r"https?://\w[^\s\"'`)]+", text))
            assert [a for a in addresses if not NO_REQUESTS.match(a)] == [], name


def test_licences_of_bundled_packages_come_along() -> None:
    notice = BUILT["LICENSES.txt"].read_text()
    for name, licence in (("@huggingface/tokenizers", "Apache-2.0"), ("@huggingface/jinja", "MIT")):
        version = json.loads((WEB / "package.json").read_text())["dependencies"][name]
        assert f"{name} {version} ({licence})" in notice
    assert "Apache License" in notice and "Permission is hereby granted" in notice
    bundled = set(re.findall(r"^// node_modules/(@?[^/]+/[^/]+)", BUILT["text.js"].read_text(), re.M))
    assert bundled == {"@huggingface/tokenizers", "@huggingface/jinja"}
    others = (BUILT[name].read_text() for name in BUILT if name.endswith(".js") and name != "text.js")
    assert not any("// node_modules/" in text for text in others)


def test_the_lock_file_names_no_registry_and_pins_all() -> None:
    lock = json.loads((WEB / "package-lock.json").read_text())
    about = json.loads((WEB / "package.json").read_text())
    for name, entry in lock["packages"].items():
        assert "resolved" not in entry and (not name or entry["integrity"])
    root = lock["packages"][""]
    for kind in ("dependencies", "devDependencies"):
        assert root[kind] == about[kind] and all(re.fullmatch(r"[0-9.]+", version) for version in about[kind].values())
    assert set(about["dependencies"]) == {"@huggingface/tokenizers", "@huggingface/jinja"}
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{about["version"]}"' in project and f'license = "{about["license"]}"' in project


@pytest.fixture(scope="module")
def package(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The npm package as it is published."""
    folder = tmp_path_factory.mktemp("npm") / "node_modules" / "@pumice" / "web"
    folder.mkdir(parents=True)
    shutil.copy(WEB / "package.json", folder)
    line = ["node", str(WEB / "build.mjs"), "--package", "--out", str(folder / "dist")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_npm_package_has_all_that_it_exports(package: Path) -> None:
    about = json.loads((WEB / "package.json").read_text())
    targets = {t for e in about["exports"].values() for t in (e.values() if isinstance(e, dict) else [e])} | {about["types"]}
    for target in targets - {"./package.json"}:
        assert (package / target).is_file(), target
    made = {path.relative_to(package / "dist").as_posix(): path for path in (package / "dist").rglob("*") if path.is_file()}
    # The same code as in the wheel, but for packages that npm installs beside it.
    for name in ("pumice.js", "worker.js", "react.js"):
        assert made[name].read_bytes() == BUILT[name].read_bytes()
    outside = set(re.findall(r"^import .* from \"([^.\"][^\"]*)\"", made["text.js"].read_text(), re.M))
    assert outside == set(about["dependencies"])
    assert "index.html" not in made
    for name, path in made.items():
        if name.endswith(".d.ts"):
            for imported in re.findall(r"(?:from |import\()\"(\.[^\"]+)\"", path.read_text()):
                assert imported.endswith(".js") and (path.parent / imported.replace(".js", ".d.ts")).is_file(), (name, imported)


def test_users_of_the_package_can_check_their_types(packages: Path, package: Path) -> None:
    """A program that uses the package as npm installs it passes `tsc --strict`, by both ways of resolving modules."""
    root = package.parents[2]
    for name in ("@types", "csstype"):
        (root / "node_modules" / name).symlink_to(packages.resolve() / name)
    (root / "use.mts").write_text(
        'import { load, caches, PumiceError, type Model, type Answer } from "@pumice/web";\n'
        'import { useModel, useChat, useEmbedding } from "@pumice/web/react";\n'
        'const model: Model = await load("./", { progress: (p) => console.log(p.phase, p.loaded / p.total) });\n'
        "for await (const piece of model.generate('Hi', { maxTokens: 3, temperature: 0 })) piece.toUpperCase();\n"
        "const answer: Answer = await model.chat({ system: 'Be brief.' }).send('Hi').result;\n"
        "const [vector] = await model.embed([answer.text]);\n"
        "vector?.length.toFixed();\n"
        "try { await caches.list(); } catch (e) { if (e instanceof PumiceError) console.log(e.code, e.hint); }\n"
        "void [useModel, useChat, useEmbedding];\n"
        "// @ts-expect-error: no such option\n"
        "model.generate('Hi', { warmth: 1 });\n"
    )
    tsc = packages / "typescript" / "bin" / "tsc"
    for module, resolution in (("esnext", "bundler"), ("nodenext", "nodenext")):
        options = ["--strict", "--noEmit", "--target", "es2022", "--lib", "es2023,dom,dom.iterable"]
        line = ["node", str(tsc), *options, "--module", module, "--moduleResolution", resolution, str(root / "use.mts")]
        done = subprocess.run(line, cwd=root, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout


def test_the_wheel_has_every_built_file(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    (tree / "src" / "pumice").mkdir(parents=True)
    shutil.copy(ROOT / "src" / "pumice" / "__init__.py", tree / "src" / "pumice")
    for part in (STATIC.parent, SERVED.parent):
        shutil.copytree(part, tree / "src" / "pumice" / part.name, ignore=shutil.ignore_patterns("__pycache__"))
    line = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(tree)]
    if _has_setuptools():
        line.append("--no-build-isolation")
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env={**os.environ, "PIP_RETRIES": "1"})
    if done.returncode and re.search(r"No matching distribution|Could not find a version|connection", done.stderr):
        pytest.skip("pip cannot fetch setuptools 77: a package index that has it, or setuptools itself, would run this")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        for folder in (STATIC, SERVED):
            inside, files = f"pumice/{folder.parent.name}/static/", built_in(folder)
            for name, path in files.items():
                assert packed.read(inside + name) == path.read_bytes()
            assert sum(name.startswith(inside) for name in packed.namelist()) == len(files)


def _has_setuptools() -> bool:
    if importlib.util.find_spec("setuptools") is None:
        return False
    from importlib.metadata import version

    return int(version("setuptools").split(".")[0]) >= 77
