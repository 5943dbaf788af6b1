"""Pumice, onnxruntime-web and transformers.js on WebGPU in one Chromium: a matmul, MiniLM, SmolLM2, and the first embedding.

python bench/browser.py [--works matmul,embed,decode,first] [--rounds 5] [--tokens 4]
Needs the `dev` and `serve` extras, Chromium, node and npm, and the peers' Python (bench/peers.sh, or PUMICE_BENCH_PYTHON), which
makes the peers' models from the weights that Pumice runs. Packages and models are kept in PUMICE_HOME/bench/browser. Sides take
turns, each in a tab of its own; medians are compared. Each side does what its users do: texts in, numbers out; onnxruntime-web is
given token ids. Where a machine has no GPU, Chromium's software adapter runs all sides. `first`: from navigation to the first
embedding, with empty storage (cold) and again (warm). Writes RESULTS.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import ROOT, in_turns, medians, some_of
from report import Goal, Row, publish, this_machine

import pumice as pm
from pumice import config
from pumice.sources import resolve

PAGES = Path(__file__).parent / "browser_pages"
PACKAGES = ("onnxruntime-web@1.30.0", "@huggingface/transformers@4.3.1")
SIZE = 256
# 62 words that are a token each, between the two that surround a text: 64.
WORDS, WORD_ID, AROUND = 62, 7592, (101, 102)
TEXT = "hello " * (WORDS - 1) + "hello"
# Short: a software adapter takes minutes for a longer one with some sides.
PROMPT = "The sky is blue"
FLAGS = (
    *("--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--enable-unsafe-webgpu", "--enable-features=Vulkan"),
)
SOFTWARE = ("--use-vulkan=swiftshader", "--use-webgpu-adapter=swiftshader")
WORKS = {
    "matmul": ("pumice", "ort"),
    "embed": ("pumice", "ort", "transformers"),
    "decode": ("pumice", "ort", "transformers"),
    "first": ("pumice", "ort", "transformers"),
}
TITLES = {
    "matmul": f"f32 matmul {SIZE}³, arrays in and out",
    "embed": f"MiniLM f32, a text of {WORDS + len(AROUND)} tokens",
    "decode": "SmolLM2-135M in 4 bits, a token",
    "first": "from navigation to the first embedding of MiniLM",
}
NAMES = {"pumice": "Pumice", "ort": "onnxruntime-web", "transformers": "transformers.js"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--works", type=some_of(WORKS), default=list(WORKS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=4, help="tokens of a round after the first")
    parser.add_argument("--hardware", action="store_true", help="let Chromium take the machine's GPU")
    args = parser.parse_args()
    folder = config.home / "bench" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    install_peers(folder)
    export_ours(folder / "ours")
    rows: list[Row] = []
    with serve(folder) as address, chromium(args.hardware) as browser:
        for work in args.works:
            rows += [row for kind, times in measure(browser, address, work, args).items() for row in compared(work, kind, times)]
    publish(this_machine(), f"Chromium, {'its own choice of' if args.hardware else 'software'} adapter", rows)


def compared(work: str, kind: str, times: dict[str, float]) -> list[Row]:
    """Our milliseconds beside those of each peer."""
    title = f"{TITLES[work]}{f', {kind}' if kind else ''}"
    peers = [side for side in times if side != "pumice"]
    key = f"browser {work} {kind}".strip()
    return [
        Row(f"{key} {side}", title, "ms", times["pumice"], times[side], NAMES[side], Goal(1.0, least=False), data={"ms": times})
        for side in peers
    ]


# -- what runs ----------------------------------------------------------------------------------------------------------
def install_peers(folder: Path) -> None:
    """The peers' packages, and their models made from the same weights."""
    npm = folder / "npm"
    stamp = npm / ("-".join(PACKAGES).replace("/", "_") + ".stamp")
    if not stamp.exists():
        shutil.rmtree(npm, ignore_errors=True)
        npm.mkdir()
        (npm / "package.json").write_text('{"private": true}\n')
        subprocess.run(["npm", "install", "--silent", "--ignore-scripts", *PACKAGES], cwd=npm, check=True)
        stamp.touch()
    python = os.environ.get("PUMICE_BENCH_PYTHON", str(ROOT / ".bench-venv" / "bin" / "python"))
    models = [str(resolve(name).path) for name in ("minilm", "smollm2")]
    subprocess.run([python, str(ROOT / "bench" / "browser_models.py"), *models, str(folder / "models")], check=True)


def export_ours(folder: Path) -> None:
    """Web folders of both models and of a matmul, made anew: they are part of what is measured."""
    from pumice.web.export import export_web

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    export_web("minilm", folder / "minilm")
    export_web("smollm2", folder / "smollm2", context=512)
    square = pm.spec(SIZE, SIZE)
    export_web({"matmul": pm.trace(lambda a, b: a @ b, a=square, b=square)}, folder / "matmul")


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Everything on one port, in the order of its folders, with the headers that give pages threads."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from starlette.staticfiles import StaticFiles

    ours = folder / "ours"
    roots = {"pages": PAGES, "npm": folder / "npm" / "node_modules", "models": folder / "models"}
    roots |= {name: ours / name for name in ("minilm", "smollm2", "matmul")}
    files = Starlette(routes=[Mount(f"/{name}", StaticFiles(directory=path)) for name, path in roots.items()])
    isolation = {"opener": "same-origin", "embedder": "require-corp"}
    headers = [(f"cross-origin-{k}-policy".encode(), v.encode()) for k, v in isolation.items()]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        await files(scope, receive, with_headers)

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@contextlib.contextmanager
def chromium(hardware: bool) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=[*FLAGS, *(() if hardware else SOFTWARE)])
        yield browser
        browser.close()


# -- measuring ----------------------------------------------------------------------------------------------------------
def measure(browser: Any, address: str, work: str, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Milliseconds of each side, by kind."""
    if work == "first":
        return measure_first(browser, address, args.rounds)
    context = browser.new_context()
    context.set_default_timeout(0)
    name = work.capitalize()
    tabs = {side: open_side(context, address, side) for side in WORKS[work]}
    for side, tab in tabs.items():
        print(f"loading {work} of {NAMES[side]}", flush=True)
        tab.evaluate(f"side.open{name}()")

    def run(side: str) -> Any:
        def once(round: int) -> float:
            tabs[side].bring_to_front()
            if work == "matmul":
                times = tabs[side].evaluate("([n, size]) => side.runMatmul(n, size)", [5, SIZE])
            elif work == "embed":
                times = tabs[side].evaluate("(given) => side.runEmbed(1, given)", text_of(side))
            else:
                times = tabs[side].evaluate("([n, given]) => side.runDecode(n, given)", [args.tokens, prompt_of(side)])["times"]
            return statistics.median(times)

        return once

    # A decode is long enough as it is: the time of its prompt is not counted, and with it goes most of the compiling.
    found = medians(in_turns({side: run(side) for side in tabs}, args.rounds, warm=0 if work == "decode" else 1))
    if work == "embed":
        check_same({side: tab.evaluate("window.vector") for side, tab in tabs.items()})
    context.close()
    return {"": found}


def measure_first(browser: Any, address: str, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds from navigation to the first embedding: with empty storage, and with what that left."""
    found: dict[str, dict[str, list[float]]] = {kind: {side: [] for side in WORKS["first"]} for kind in ("cold", "warm")}

    def visit(side: str) -> Any:
        def once(round: int) -> None:
            context = browser.new_context()
            context.set_default_timeout(0)
            for kind in found:
                begin = time.perf_counter()
                tab = open_side(context, address, side)
                tab.evaluate("async (given) => { await side.openEmbed(); await side.runEmbed(1, given); }", text_of(side))
                found[kind][side].append(1e3 * (time.perf_counter() - begin))
                tab.close()
            context.close()

        return once

    in_turns({side: visit(side) for side in WORKS["first"]}, rounds, warm=0)
    return {kind: medians(sides) for kind, sides in found.items()}


def open_side(context: Any, address: str, side: str) -> Any:
    tab = context.new_page()
    tab.goto(f"{address}/pages/side.html?side={side}")
    tab.wait_for_function("window.ready")
    return tab


def text_of(side: str) -> Any:
    return [AROUND[0], *[WORD_ID] * WORDS, AROUND[1]] if side == "ort" else TEXT


def prompt_of(side: str) -> Any:
    """The prompt, or its tokens for a side that has no tokenizer."""
    if side != "ort":
        return PROMPT
    from tokenizers import Tokenizer

    path = config.home / "bench" / "browser" / "models" / "smollm2" / "tokenizer.json"
    return Tokenizer.from_file(str(path)).encode(PROMPT, add_special_tokens=False).ids


def check_same(vectors: dict[str, list[float]]) -> None:
    """All sides compute the same embedding, or the comparison means nothing."""
    import numpy as np

    ours = np.array(vectors["pumice"])
    for side, vector in vectors.items():
        cosine = float(ours @ np.array(vector) / np.linalg.norm(ours) / np.linalg.norm(vector))
        if cosine < 0.999:
            raise SystemExit(f"{NAMES[side]} computes another embedding: the cosine is {cosine:.4f}")


if __name__ == "__main__":
    main()
