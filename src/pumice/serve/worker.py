"""A worker: the process that owns one model and its device, and answers the frames of the API process until that closes it."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from pumice.errors import DeviceLost, InputError, PumiceError
from pumice.llm.cross_encoder import CrossEncoder
from pumice.llm.embed import EmbeddingModel
from pumice.llm.handles import Handle
from pumice.llm.load import load
from pumice.llm.model import LanguageModel
from pumice.llm.requests import sampling_of
from pumice.llm.response_cache import cache_of
from pumice.llm.step_inputs import RULES
from pumice.serve.api_errors import as_data, let_go
from pumice.serve.conversations import answer_grammar, knows_tools, render_conversation, tool_format
from pumice.serve.facts import JsonLog, place_of
from pumice.serve.frames import Frame, pack, receive
from pumice.serve.lengths import check_prompt, check_text
from pumice.serve.warm import compiler_is_loaded, warm_up

if TYPE_CHECKING:
    from pumice.llm.answers import Generation
    from pumice.receipts.receipt import Receipt

# The exit code of a worker whose device is lost: a new process gets a new device.
DEVICE_LOST = 75
_STATISTICS_SECONDS = 1.0
# Texts that an encoder runs before it looks whether they are still wanted.
_TEXTS_AT_ONCE = 32

AnyModel = LanguageModel | EmbeddingModel | CrossEncoder


def describe_model(model: AnyModel) -> dict[str, Any]:
    """What the API process needs to know of a model."""
    found: dict[str, Any] = {
        "task": model.info["task"],
        "architecture": model.info["architecture"],
        "format": model.info["format"],
    }
    found |= {"device": model.describe_device(), "precision": model.info["precision"]}
    if isinstance(model, LanguageModel):
        found |= {"context": model.engine.context, "vocab": model.engine.cfg.vocab, "chat": model.template is not None}
        found |= {"tools": knows_tools(model), "tool_format": tool_format(model).name, "load_s": model.load_s}
        drawn = sampling_of(model.info["defaults"])
        found |= {"defaults": dict(model.info["defaults"]), "sampling": {name: getattr(drawn, name) for name in RULES}}
    else:
        found |= {"context": model.max_tokens, "vocab": model.tokenizer.vocab_size}
        if isinstance(model, EmbeddingModel):
            found["dim"] = model.dim
    return found


class ModelWorker:
    """Answers frames with a model. `send` takes the frames that go back."""

    def __init__(self, model: AnyModel, send: Callable[[Frame], None], *, receipts: str | None = None) -> None:
        self.model, self._send, self._receipts = model, send, receipts
        self._tasks: dict[int, asyncio.Task[None]] = {}
        # Templates, tokenisers and grammars are slow at times: tokens of others do not wait for them.
        self._preparing = ThreadPoolExecutor(2, "pumice-prepare")
        self._encoding = ThreadPoolExecutor(1, "pumice-encode")
        self.answered = 0

    def take(self, frame: Frame) -> None:
        """Starts, or cancels, what a frame asks for."""
        number = frame["id"]
        if frame["op"] == "cancel":
            if number in self._tasks:
                self._tasks[number].cancel()
            return
        task = asyncio.get_running_loop().create_task(self._answer(frame))
        self._tasks[number] = task

        def end(task: asyncio.Task[None]) -> None:
            del self._tasks[number]
            if task.cancelled():  # possibly before its first step
                self._send({"id": number, "ev": "error", "error": {**as_data(InputError("cancelled")), "code": "cancelled"}})

        task.add_done_callback(end)

    async def _answer(self, frame: Frame) -> None:
        number, lost = frame["id"], False
        try:
            async for part in self._OPS[frame["op"]](self, frame):
                self._send({"id": number, **part})
            self._send({"id": number, "ev": "done"})
            self.answered += 1
        except Exception as e:
            lost = isinstance(e, DeviceLost)
            self._send({"id": number, "ev": "error", "error": as_data(e)})
            if not lost and not isinstance(e, PumiceError):
                # By its kind and place alone: what it says may hold somebody's text.
                JsonLog().event("fault", kind=type(e).__name__, where=place_of(e))
            let_go(e)
        if lost:
            # Frames that are on their way still go out.
            asyncio.get_running_loop().call_later(0.2, os._exit, DEVICE_LOST)

    # -- answers ----------------------------------------------------------------------------------------------------
    async def _generate(self, frame: Frame) -> AsyncIterator[Frame]:
        loop = asyncio.get_running_loop()
        starting = loop.run_in_executor(self._preparing, self._submit, frame)
        try:
            handle, prompt = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread cannot be stopped; what it starts is ended at once.
            starting.add_done_callback(lambda done: None if done.cancelled() or done.exception() else done.result()[0].cancel())
            raise
        try:
            yield {"ev": "start", "prompt_tokens": prompt, "tool_format": tool_format(self._language()).name}
            wants_logprobs = frame["options"].get("logprobs") is not None
            read = [0] * len(handle.answers)
            async for piece in handle:
                answer = handle.answers[piece.choice]
                part: Frame = {"ev": "piece", "choice": piece.choice, "text": str(piece), "tokens": len(answer.tokens)}
                if wants_logprobs:
                    part["logprobs"] = [self._with_bytes(e) for e in (answer.logprobs or [])[read[piece.choice] :]]
                    read[piece.choice] += len(part["logprobs"])
                if piece.answer is not None:
                    part |= {"reason": answer.finish_reason, "stop": answer.stop_string, "usage": answer.usage}
                    part |= {"seed": answer.seed, "timings": answer.timings}
                    if self._receipts:
                        await loop.run_in_executor(self._preparing, self._keep_receipt_of, answer, frame, piece.choice)
                yield part
        finally:
            if not handle.done:
                handle.cancel()

    def _submit(self, frame: Mapping[str, Any]) -> tuple[Handle, int]:
        """Encodes a request and hands it to the engine; the number of its prompt's tokens."""
        model = self._language()
        options = {k: v for k, v in frame["options"].items() if v is not None}
        context = model.engine.context
        if "messages" in frame:
            text = check_prompt(render_conversation(model, frame), context, "messages")
            tokens = model.tokenizer.encode(text, add_special=False)
        elif "tokens" in frame:
            tokens = list(frame["tokens"])
            _check_tokens(tokens, model.engine.cfg.vocab, "prompt")
        else:
            tokens = model.encode_prompt(check_prompt(frame["text"], context, "prompt"), raw=True)
        room = context - len(tokens)
        if room < 1:
            raise InputError(
                f"the prompt has {len(tokens)} tokens, the context holds {context}",
                hint="shorten it, or start the server with a larger --context",
                context=context,
                prompt_tokens=len(tokens),
                name="messages" if "messages" in frame else "prompt",
            )
        most = min(room, frame["most_tokens"]) if frame.get("most_tokens") else room
        options.setdefault("max_tokens", model.info["defaults"].get("max_tokens", most))
        if not frame.get("strict"):
            options["max_tokens"] = min(options["max_tokens"], most)
        options["grammar"] = answer_grammar(model, frame)
        if self._receipts:
            options["cache"] = False  # a receipt is of a run
        order = {"client": frame.get("client", ""), "deadline": frame.get("deadline")}
        handle = model.engine.submit(tokens, n=frame.get("n", 1), strict=True, **order, **options)
        return handle, len(tokens)

    def _with_bytes(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        def spelled(e: Mapping[str, Any]) -> dict[str, Any]:
            raw = self._language().tokenizer.token_bytes(e["id"]) or str(e["token"]).encode()
            return {"token": e["token"], "id": e["id"], "logprob": e["logprob"], "bytes": list(raw)}

        return {**spelled(entry), "top": [spelled(e) for e in entry["top"]]}

    def _keep_receipt_of(self, answer: Generation, frame: Mapping[str, Any], number: int) -> None:
        self._keep_receipt(answer.receipt, frame, number)

    def _keep_receipt(self, receipt: Receipt, frame: Mapping[str, Any], number: int) -> None:
        """Writes a receipt under the id of its request, which the client knows as well."""
        assert self._receipts is not None
        receipt.save(os.path.join(self._receipts, f"{frame['request']}-{number}.json"))

    # -- encoders ---------------------------------------------------------------------------------------------------
    async def _embed(self, frame: Frame) -> AsyncIterator[Frame]:
        model = self.model
        if not isinstance(model, EmbeddingModel):
            raise InputError("this model makes no embeddings", hint="choose an encoder, such as minilm", name="model")
        items: list[list[int]] = []
        given = frame["texts"] if "texts" in frame else frame["tokens"]
        for at in range(0, len(given), _TEXTS_AT_ONCE):
            some = given[at : at + _TEXTS_AT_ONCE]
            ids = await self._in_turn(model.tokenizer.encode_batch, some) if "texts" in frame else some
            for item in ids:
                _check_tokens(item, model.tokenizer.vocab_size, "input")
            longest = max(map(len, ids))
            if longest > model.max_tokens and not frame.get("truncate"):
                message = f"a text has {longest} tokens, this model takes {model.max_tokens}"
                hint = "split it, or let /api/embed truncate it"
                raise InputError(message, hint=hint, context=model.max_tokens, prompt_tokens=longest, name="input")
            # What the model cuts off, all but the token that ends a text, is not kept until then.
            items += [i if len(i) <= model.max_tokens else [*i[: model.max_tokens], i[-1]] for i in ids]
        yield {"ev": "start", "prompt_tokens": sum(min(len(i), model.max_tokens) for i in items)}
        for at in range(0, len(items), _TEXTS_AT_ONCE):
            vectors = await self._proven(model.embed_tokens, items[at : at + _TEXTS_AT_ONCE], frame, at // _TEXTS_AT_ONCE)
            yield {"ev": "vectors", "vectors": np.asarray(vectors, np.float32).tolist()}

    async def _rank(self, frame: Frame) -> AsyncIterator[Frame]:
        model, query = self.model, frame["query"]
        if not isinstance(model, CrossEncoder):
            raise InputError("this model ranks no texts", hint="choose a cross-encoder", name="model")
        if len(model.labels) != 1:
            raise InputError(f"this model has {len(model.labels)} labels, and no single score to rank by", name="model")
        texts, tokens = frame["texts"], 0

        def count(some: Sequence[tuple[str, ...]]) -> int:
            return sum(len(p.ids) for p in model.tokenizer.encode_pairs(some, longest=model.max_tokens))

        for at in range(0, len(texts), _TEXTS_AT_ONCE):
            tokens += await self._in_turn(count, [(query, t) for t in texts[at : at + _TEXTS_AT_ONCE]])
        yield {"ev": "start", "prompt_tokens": tokens}
        for at in range(0, len(texts), _TEXTS_AT_ONCE):
            some = [(query, t) for t in texts[at : at + _TEXTS_AT_ONCE]]
            scores = await self._proven(model.scores, some, frame, at // _TEXTS_AT_ONCE)
            yield {"ev": "scores", "scores": np.asarray(scores).tolist()}

    async def _proven(self, work: Callable[..., Any], given: Any, frame: Frame, number: int) -> Any:
        """What an encoder gives for some texts, with a receipt where the server keeps them."""
        if not self._receipts:
            return await self._in_turn(work, given)
        found, receipt = await self._in_turn(partial(work, receipt=True), given)
        await asyncio.get_running_loop().run_in_executor(self._preparing, self._keep_receipt, receipt, frame, number)
        return found

    async def _in_turn(self, work: Callable[[Any], Any], given: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._encoding, work, given)

    # -- texts ------------------------------------------------------------------------------------------------------
    async def _tokenize(self, frame: Frame) -> AsyncIterator[Frame]:
        model, tokenizer = self.model, self.model.tokenizer
        context = model.engine.context if isinstance(model, LanguageModel) else model.max_tokens

        def work() -> Frame:
            if "messages" in frame:
                text = check_text(render_conversation(self._language(), frame), context, "messages")
                tokens = tokenizer.encode(text, add_special=False)
            else:
                text = check_text(frame["text"], context, frame.get("name", "prompt"))
                tokens = tokenizer.encode(text, add_special=frame.get("add_special", True))
            if not frame.get("with_texts"):
                return {"ev": "tokens", "tokens": tokens}
            spelled = {t: tokenizer.decode([t], skip_special=False) for t in set(tokens)}
            return {"ev": "tokens", "tokens": tokens, "texts": [spelled[t] for t in tokens]}

        yield await asyncio.get_running_loop().run_in_executor(self._preparing, work)

    async def _detokenize(self, frame: Frame) -> AsyncIterator[Frame]:
        tokens, tokenizer = frame["tokens"], self.model.tokenizer
        _check_tokens(tokens, tokenizer.vocab_size, "tokens")
        decoding = partial(tokenizer.decode, tokens, skip_special=False)
        yield {"ev": "text", "text": await asyncio.get_running_loop().run_in_executor(self._preparing, decoding)}

    def _language(self) -> LanguageModel:
        if not isinstance(self.model, LanguageModel):
            raise InputError("this model generates no text", hint="choose a language model", name="model")
        return self.model

    _OPS: ClassVar = {"generate": _generate, "embed": _embed, "rank": _rank, "tokenize": _tokenize, "detokenize": _detokenize}

    # -- life -------------------------------------------------------------------------------------------------------
    def statistics(self) -> dict[str, Any]:
        """Counts of the engine, and the memory of this process."""
        found: dict[str, Any] = {"ev": "stats", "rss": _resident_bytes(), "answered": self.answered, "tasks": len(self._tasks)}
        if isinstance(self.model, LanguageModel):
            found["engine"] = self.model.engine.statistics._asdict()
            if self.model.response_cache is not None:
                found["cache"] = self.model.response_cache.statistics._asdict()
        return found

    def close(self) -> None:
        """Ends what is being answered, and frees the device."""
        for task in list(self._tasks.values()):
            task.cancel()
        self._preparing.shutdown(wait=True, cancel_futures=True)
        self._encoding.shutdown(wait=True, cancel_futures=True)
        self.model.close()


def _check_tokens(tokens: Sequence[int], vocab: int, name: str) -> None:
    wrong = next((t for t in tokens if not 0 <= t < vocab), None)
    if wrong is not None:
        raise InputError(
            f"the token {wrong} is not in the vocabulary of {vocab}", hint="token ids are this model's own", name=name
        )


def _resident_bytes() -> int:
    """The memory of this process that is in use; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _start_again(first: Frame, sink: int) -> NoReturn:
    """Become a new process of the same model, which finds all kernels in the cache: the compiler's memory is free then."""
    os.dup2(sink, 1)
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "pumice.serve.worker", json.dumps(first)])


async def serve(source: int, sink: int, given: Frame | None = None) -> int:
    """Load the model that the first frame names, answer frames from a pipe until it ends; the exit code.

    `given` is that frame where another process has read it.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb"))
    transport, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(sink, "wb"))

    def send(frame: Frame) -> None:
        transport.write(pack(frame))

    first = await receive(reader) if given is None else given
    if first is None:
        return 0

    def prepare() -> AnyModel:
        model: AnyModel = load(first["model"], **first["options"])
        warm_up(model)
        if isinstance(model, LanguageModel):
            model.response_cache = cache_of(first.get("cache"))
        return model

    try:
        model = await loop.run_in_executor(None, prepare)
    except Exception as e:
        send({"ev": "failed", "error": as_data(e)})
        await asyncio.sleep(0.1)
        return 1
    if given is None and compiler_is_loaded():
        model.close()
        _start_again(first, sink)
    # Python looks through everything for cycles at times, some 30 ms that a first token would wait: the model needs no look.
    gc.collect()
    gc.freeze()
    worker = ModelWorker(model, send, receipts=first.get("receipts"))
    send({"ev": "ready", "info": describe_model(model)})

    async def report() -> None:
        last: dict[str, Any] = {}
        while True:
            now = worker.statistics()
            if now != last:
                send(now)
                last = now
            await asyncio.sleep(_STATISTICS_SECONDS)

    reporting = loop.create_task(report())
    while (frame := await receive(reader)) is not None:
        if frame["op"] == "close":
            break
        worker.take(frame)
    reporting.cancel()
    worker.close()
    return 0


def main() -> None:
    """The process: frames come from standard input and leave by standard output, which nothing else may write to."""
    # Ctrl-C and a service manager's signal reach all processes: the API process decides when a worker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Where a worker is that seems to hang: kill -USR1 PID.
    faulthandler.register(signal.SIGUSR1)
    sink = os.dup(1)
    os.dup2(2, 1)
    given = json.loads(sys.argv[1]) if len(sys.argv) > 1 else None
    code = asyncio.run(serve(os.dup(0), sink, given))
    sys.stderr.flush()
    # Threads of drivers may not end by themselves.
    os._exit(code)


if __name__ == "__main__":
    main()
