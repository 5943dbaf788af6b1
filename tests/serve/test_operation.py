"""Running a server: health, metrics, logs, keys and their limits, where it listens, TLS, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import io
import json
import os
import re
import select
import signal
import ssl
import stat
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from prometheus_client.parser import text_string_to_metric_families

import pumice as pm
from cli_harness import command, environment
from pumice.errors import FormatError, GraphError, InputError
from pumice.receipts.verify import verify_receipt
from pumice.serve.bodies import Body
from pumice.serve.facts import JsonLog, RequestFacts, place_of
from pumice.serve.hosts import Call
from pumice.serve.keys import ApiKey, hash_key, new_key, read_keys
from pumice.serve.server import ModelServer
from pumice.serve.settings import HostSettings, ServerSettings
from pumice.serve.spec import ModelSpec
from pumice.serve.worker import ModelWorker
from serve.conftest import wait_until_ready
from serve.raw_http import ask, connect, exchange, read_all, request
from serve.serving import LONG_CONTEXT, ends_of_answers, language_model, language_spec

SECRET = "a very secret prompt"
CHAT: Any = {"model": "tiny", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 4, "ignore_eos": True}


def test_health_and_metrics(server: ModelServer) -> None:
    assert ask(server, "/health", method="GET")[2] == {"status": "ok"}
    status, _, body = ask(server, "/ready", method="GET")
    assert status == 200 and body["models"]["tiny"] == "ready"
    assert ask(server, "/v1/chat/completions", CHAT)[0] == 200 and ask(server, "/v1/chat/completions", {})[0] == 400
    text = ask(server, "/metrics", method="GET")[2].decode()
    found = {f.name: f for f in text_string_to_metric_families(text)}
    tokens = {s.labels["model"]: s.value for s in found["pumice_generation_tokens"].samples}
    first = {s.labels["model"]: s.value for s in found["pumice_time_to_first_token_seconds"].samples if s.name.endswith("_count")}
    statuses = {(s.labels["route"], s.labels["status"]) for s in found["pumice_http_responses"].samples}
    assert tokens["tiny"] >= 4 and first["tiny"] >= 1
    assert {("/v1/chat/completions", "200"), ("/v1/chat/completions", "400")} <= statuses
    assert found["pumice_cache_pages_free"].samples and found["pumice_worker_memory_bytes"].samples[0].value > 1e6
    states = {s.labels["state"]: s.value for s in found["pumice_model_state"].samples if s.labels["model"] == "tiny"}
    assert states["ready"] == 1 and sum(states.values()) == 1
    assert ask(server, "/nothing", method="GET")[2]["error"]["code"] == "unknown_url"
    assert ask(server, "/v1/chat/completions", method="GET")[0] == 405
    assert "/nothing" not in ask(server, "/metrics", method="GET")[2].decode()


def test_answers_are_given_again_where_the_server_keeps_them(models: list[ModelSpec]) -> None:
    settings = ServerSettings(port=0, drain_seconds=2, models=HostSettings(cache=1 << 20))
    with ModelServer(models[:2], settings, log=JsonLog(quiet=True)) as server:
        wait_until_ready(server)
        same = [ask(server, "/v1/chat/completions", {**CHAT, "temperature": 0})[2] for _ in range(3)]
        seeded = [ask(server, "/v1/chat/completions", {**CHAT, "seed": 5})[2] for _ in range(2)]
        for _ in range(2):
            assert ask(server, "/v1/chat/completions", CHAT)[0] == 200  # drawn anew each time
        streamed = exchange(
            server, request("/v1/chat/completions", json.dumps({**CHAT, "temperature": 0, "stream": True}).encode())
        )
        for answers in (same, seeded):
            assert len({json.dumps([a["choices"], a["usage"]["completion_tokens"]]) for a in answers}) == 1
        assert same[0]["choices"][0]["message"]["content"] == "".join(
            json.loads(line)["choices"][0]["delta"].get("content") or ""
            for line in re.findall(r"data: ({.*})", streamed[2].decode())
        )
        until = time.monotonic() + 20
        found: dict[str, float] = {}
        while found.get("pumice_response_cache_hits") != 4 and time.monotonic() < until:  # workers count once a second
            text = ask(server, "/metrics", method="GET")[2].decode()
            families = {f.name: f.samples for f in text_string_to_metric_families(text)}
            found = {name: samples[0].value for name, samples in families.items() if "response_cache" in name}
            time.sleep(0.1)
    assert (found["pumice_response_cache_hits"], found["pumice_response_cache_misses"]) == (4, 2)
    assert found["pumice_response_cache_answers"] == 2 and found["pumice_response_cache_bytes"] > 512


class _Recorder(trace.TracerProvider):
    """Keeps the spans that are ended, as an SDK would."""

    def __init__(self) -> None:
        self.spans: list[_Recorded] = []

    def get_tracer(self, *_: Any, **__: Any) -> trace.Tracer:
        return _RecordingTracer(self)


class _Recorded(trace.NonRecordingSpan):
    def __init__(self, name: str, parent: trace.SpanContext) -> None:
        super().__init__(trace.INVALID_SPAN_CONTEXT)
        self.name, self.parent, self.attributes = name, parent, dict[str, Any]()

    def update_name(self, name: str) -> None:
        self.name = name

    def set_attributes(self, attributes: Any) -> None:
        self.attributes |= attributes


class _RecordingTracer(trace.Tracer):
    def __init__(self, provider: _Recorder) -> None:
        self._provider = provider

    def start_span(self, name: str, context: Any = None, *_: Any, **__: Any) -> trace.Span:
        span = _Recorded(name, trace.get_current_span(context).get_span_context())
        self._provider.spans.append(span)
        return span

    @contextlib.contextmanager
    def start_as_current_span(self, name: str, context: Any = None, *_: Any, **__: Any) -> Iterator[trace.Span]:
        yield self.start_span(name, context)


def test_requests_are_spans(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = _Recorder()
    monkeypatch.setattr(trace, "get_tracer", lambda *_: recorder.get_tracer())
    parent = f"00-{'1' * 32}-{'2' * 16}-01"
    assert ask(server, "/v1/chat/completions", CHAT, traceparent=parent)[0] == 200
    for _ in range(100):
        if recorder.spans and recorder.spans[0].attributes:
            break
        time.sleep(0.02)
    (span,) = recorder.spans
    assert span.name == "POST /v1/chat/completions" and span.parent.trace_id == int("1" * 32, 16)
    assert span.attributes["gen_ai.request.model"] == "tiny" and span.attributes["gen_ai.usage.output_tokens"] == 4
    assert span.attributes["http.response.status_code"] == 200 and SECRET not in str(span.attributes)


def one_model(specs: list[ModelSpec], log: JsonLog | None = None, **settings: Any) -> ModelServer:
    given = ServerSettings(port=0, drain_seconds=settings.pop("drain_seconds", 2), **settings)
    return ModelServer([dataclasses.replace(specs[0], slots=2)], given, log=log or JsonLog(quiet=True))


def test_keys_and_logs(models: list[ModelSpec], tmp_path: Path) -> None:
    """Without a key only the health is told; each key has its limits; the log has ids and counts, and no text of anybody."""
    file = tmp_path / "keys"
    key, slow = new_key(file, "me"), new_key(file, "slow")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and key not in file.read_text()
    file.write_text(file.read_text().replace(hash_key(slow), f"{hash_key(slow)} per_minute=2 concurrent=1"))
    log = io.StringIO()
    with one_model(models, JsonLog(log), key_file=str(file)) as server:
        wait_until_ready(server)
        for path in ("/v1/models", "/metrics", "/api/tags", "/v1/messages", "/tokenize"):
            assert ask(server, path, method="GET")[0] == 401, path
        status, _, body = ask(server, "/v1/models", method="GET", Authorization="Bearer guess")
        assert status == 401 and body["error"]["code"] == "invalid_api_key"
        assert ask(server, "/v1/messages", {}, x_api_key="guess")[2]["error"]["type"] == "authentication_error"
        assert ask(server, "/v1/models", method="GET", Authorization=f"Bearer {key}")[0] == 200
        status, headers, body = ask(server, "/v1/chat/completions", CHAT, x_api_key=key)
        assert status == 200 and headers["x-request-id"].startswith("req_")
        assert [ask(server, "/v1/models", method="GET", x_api_key=slow)[0] for _ in range(3)] == [200, 200, 429]
        status, again, _ = ask(server, "/v1/models", method="GET", x_api_key=slow)
        assert status == 429 and 1 <= int(again["retry-after"]) <= 60
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    entry = next(e for e in lines if e.get("id") == headers["x-request-id"])
    assert [e["route"] for e in lines if e.get("status") == 429] == ["/v1/models"] * 2
    assert entry["key"] == "me" and entry["completion_tokens"] == 4 and entry["model"] == "tiny" and entry["status"] == 200
    assert SECRET not in log.getvalue() and body["choices"][0]["message"]["content"] not in log.getvalue()
    assert key not in log.getvalue() and "guess" not in log.getvalue()


def test_receipts_of_every_answer(models: list[ModelSpec], tmp_path: Path) -> None:
    """Each is found by the id of its request, verifies, and holds what the client got."""
    settings = ServerSettings(port=0, drain_seconds=2, models=HostSettings(receipts=str(tmp_path)))
    with ModelServer(models, settings, log=JsonLog(quiet=True)) as server:
        wait_until_ready(server)
        two = {"model": "tiny", "prompt": ["a", "b"], "n": 2, "max_tokens": 3, "ignore_eos": True}
        for path, body, count in (
            ("/v1/chat/completions", CHAT, 1),
            ("/v1/completions", two, 4),
            ("/v1/embeddings", {"model": "bert", "input": ["w5"] * 40}, 2),
            ("/v1/rerank", {"model": "rank", "query": "a1", "documents": ["b2", "c3"]}, 1),
        ):
            status, headers, answer = ask(server, path, body)
            assert status == 200
            found = sorted(tmp_path.glob(f"{headers['x-request-id']}-*.json"))
            assert len(found) == count, (path, found)
            for file in found:
                assert verify_receipt(file.read_bytes()).contents, (path, file)
            if path == "/v1/chat/completions":
                said = verify_receipt(found[0].read_bytes()).contents["text"].decode()
                assert answer["choices"][0]["message"]["content"] == said


def test_files_of_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# mine\na {'0' * 64} concurrent=3\n")
    assert read_keys(file) == [ApiKey("a", "0" * 64, concurrent=3)]
    with pytest.raises(InputError, match="already"):
        new_key(file, "a")
    for text in ("sk-plain-key\n", f"a {'0' * 64} rights=all\n"):
        file.write_text(text)
        with pytest.raises(FormatError) as wrong:
            read_keys(file)
        assert "sk-plain" not in str(wrong.value)
    file.write_text("")
    with pytest.raises(InputError, match="no key"):
        read_keys(file)


def test_strangers_are_kept_out(server: ModelServer, models: list[ModelSpec]) -> None:
    with pytest.raises(InputError, match="can be reached from other machines"):
        ModelServer(models, ServerSettings(host="0.0.0.0", port=0))
    assert ask(server, "/v1/models", method="GET", Host="evil.example")[0] == 421
    assert ask(server, "/v1/models", method="GET", Host=f"localhost:{server.port}")[0] == 200
    assert ask(server, "/v1/chat/completions", CHAT, Origin="http://evil.example")[0] == 403
    status, headers, _ = ask(server, "/v1/models", method="OPTIONS", Origin="http://evil.example")
    assert status == 403 and "access-control-allow-origin" not in headers
    with one_model(models, origins=("http://app.example",)) as other:
        # As OpenAI's client in a page asks: with headers of its own.
        wanted = "authorization,content-type,x-stainless-lang,x-stainless-retry-count"
        asks = {"Origin": "http://app.example", "Access_Control_Request_Headers": wanted}
        status, headers, _ = ask(other, "/v1/models", method="OPTIONS", **asks)
        assert status == 204 and headers["access-control-allow-origin"] == "http://app.example"
        assert headers["access-control-allow-headers"] == wanted and headers["access-control-expose-headers"]
        status, headers, _ = ask(other, "/health", method="GET", Origin="http://app.example")
        assert status == 200 and headers["access-control-allow-origin"] == "http://app.example"


def test_a_full_queue_and_slow_answers(models: list[ModelSpec]) -> None:
    """Beyond the queue a request is refused at once, with the time to come back; one that takes too long ends."""
    settings: dict[str, Any] = {"models": HostSettings(queue=1), "request_seconds": 1.5}
    with one_model(models, **settings) as server:
        wait_until_ready(server)
        long = json.dumps({**CHAT, "max_tokens": 1900, "ignore_eos": True, "n": 2}).encode()
        found: list[Any] = []
        threads = [
            threading.Thread(target=lambda: found.append(exchange(server, request("/v1/chat/completions", long))))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        statuses = sorted(status for status, _, _ in found)
        assert set(statuses) <= {200, 429, 504} and statuses.count(429) >= 4
        assert all(int(headers["retry-after"]) >= 1 for status, headers, _ in found if status == 429)
        assert ask(server, "/v1/chat/completions", CHAT)[0] == 200


def test_limits_of_a_server(models: list[ModelSpec]) -> None:
    with one_model(models, most_tokens=5, most_choices=2) as server:
        status, _, body = ask(server, "/v1/chat/completions", {**CHAT, "max_tokens": 6})
        assert status == 400 and body["error"]["param"] == "max_tokens"
        assert ask(server, "/v1/chat/completions", {**CHAT, "n": 3})[2]["error"]["param"] == "n"
        free = {k: v for k, v in CHAT.items() if k != "max_tokens"} | {"ignore_eos": True}
        assert ask(server, "/v1/chat/completions", free)[2]["usage"]["completion_tokens"] == 5


@pytest.fixture
def tls_files(tmp_path: Path) -> dict[str, Any]:
    """The settings of a certificate for localhost."""
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"],
        capture_output=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("needs openssl")
    return {"certificate": str(tmp_path / "cert.pem"), "private_key": str(tmp_path / "key.pem")}


def test_tls(models: list[ModelSpec], tls_files: dict[str, Any]) -> None:
    trust = ssl.create_default_context(cafile=tls_files["certificate"])
    with one_model(models, connections=20, head_seconds=1.0, **tls_files) as server:

        def serves() -> None:
            with urllib.request.urlopen(f"https://localhost:{server.port}/health", context=trust) as response:
                assert json.load(response) == {"status": "ok"}

        serves()
        body = json.dumps({**CHAT, "stream": True, "max_tokens": 300}).encode()
        with connect(server) as plain, trust.wrap_socket(plain, server_hostname="localhost") as connection:
            connection.sendall(request("/v1/chat/completions", body))
            assert read_all(connection).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert ask(server, "/health", method="GET")[0] == 0, "nobody is served in the clear"
        # Connections that never begin the handshake count as others do, and go as they do.
        idle = [connect(server) for _ in range(60)]
        try:
            serves()
            assert len([c for c in idle if select.select([c], [], [], 0)[0]]) >= 40, "those beyond the limit were ended"
            time.sleep(1.3)
            assert all(read_all(c) == b"" for c in idle), "the others go by themselves"
        finally:
            for connection in idle:
                connection.close()
        serves()


def test_tls_files_that_cannot_be_used(models: list[ModelSpec], tls_files: dict[str, Any]) -> None:
    certificate, key = tls_files.values()
    for files, words in (
        ({"certificate": certificate}, "both"),
        ({"certificate": key, "private_key": certificate}, "do not fit together"),
        ({"certificate": "nothing.pem", "private_key": key}, "No such file"),
    ):
        with pytest.raises(InputError, match=words):
            one_model(models, **files)


def test_requests_end_before_the_server_does(models: list[ModelSpec]) -> None:
    """SIGTERM: what is being answered is finished, new requests are refused, the process ends with 0."""
    args = ["serve", f"tiny={models[0].source}", "--port", 0, "--device", "host", "--context", 2048, "--json"]
    with subprocess.Popen(command(*args), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()) as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]

        class Running:
            pass

        server: Any = Running()
        server.port, server.url = port, f"http://127.0.0.1:{port}"
        wait_until_ready(server)
        body = json.dumps({**CHAT, "max_tokens": 700, "ignore_eos": True, "stream": True}).encode()
        with connect(server) as connection:
            connection.sendall(request("/v1/chat/completions", body))
            begun = connection.recv(4096)
            process.send_signal(signal.SIGTERM)
            answer = begun + read_all(connection)
        assert b"data: [DONE]" in answer and answer.count(b"chat.completion.chunk") > 500
        assert process.wait(30) == 0
    assert not any(name.isdigit() and _is_worker_of(int(name), process.pid) for name in os.listdir("/proc"))


def _is_worker_of(pid: int, parent: int) -> bool:
    try:
        return f"PPid:\t{parent}\n" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_requests_leave_nothing_behind(server: ModelServer) -> None:
    """What a request held is free when it is over: Python looks for cycles so seldom that large prompts would fill the memory."""
    one = {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 2}
    gc.collect()
    gc.disable()
    before = _held()  # by other tests' servers and clients
    try:
        for path, body, status in (
            ("/v1/chat/completions", CHAT, 200),
            ("/v1/chat/completions", {**CHAT, "stream": True}, 200),
            ("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": "a" * 200_000}]}, 400),
            ("/v1/chat/completions", {**CHAT, "n": 0}, 400),
            ("/v1/chat/completions", {**CHAT, "model": "other"}, 404),
            ("/v1/completions", one, 200),
            ("/v1/completions", {**one, "max_tokens": 5000}, 400),
            ("/v1/completions", {**one, "prompt": [[70], [99999]]}, 400),
            ("/nothing", {}, 404),
        ):
            assert ask(server, path, body)[0] == status
            until = time.monotonic() + 10
            while left := [type(o) for key, o in _held().items() if key not in before]:
                assert time.monotonic() < until, (path, status, left)
                time.sleep(0.02)
    finally:
        gc.enable()


def _held() -> dict[int, object]:
    """What is in memory of requests, but for the last call itself, which stays in the queue until the next."""
    found = [o for o in gc.get_objects() if isinstance(o, Body | RequestFacts | Call)]
    return {id(o): o for o in found if not isinstance(o, Call) or o.payload}


def test_faults_of_a_worker_are_logged_without_their_text(
    models: list[ModelSpec], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> list[int]:
        raise ValueError(SECRET)

    async def work() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        worker = ModelWorker(model, sent.append)
        worker.take({"op": "tokenize", "id": 1, "text": SECRET})
        while not sent:
            await asyncio.sleep(0.01)
        return sent

    with pm.load(models[0].source, device="host", context=64) as model:
        monkeypatch.setattr(model.tokenizer, "encode", fail)
        (answer,) = asyncio.run(work())
    assert answer["ev"] == "error" and SECRET not in str(answer)
    written = capfd.readouterr().err
    entry = json.loads(written)
    assert entry["event"] == "fault" and entry["kind"] == "ValueError" and "serve/worker.py:" in entry["where"]
    assert SECRET not in written


def test_a_clone_that_has_the_name_of_the_package_is_not_taken_for_it() -> None:
    with pytest.raises(GraphError) as found:
        exec(compile("pm.zeros(-1)", "/home/pumice/app.py", "exec"), {"pm": pm})
    place, _, line = place_of(found.value).rpartition(":")
    assert (Path(pm.__file__).parent / place).is_file() and line.isdigit()
    with pytest.raises(ZeroDivisionError) as other:
        exec(compile("1 / 0", "/home/pumice/app.py", "exec"))
    assert place_of(other.value) == ""


def test_a_client_that_goes_away_frees_its_slots(tmp_path: Path) -> None:
    model = language_spec(language_model(tmp_path, context=LONG_CONTEXT), context=LONG_CONTEXT)
    with one_model([model]) as server:
        wait_until_ready(server)
        assert server.api is not None
        host = server.api.pool.hosts["tiny"]
        reasons = ends_of_answers(host)
        for stream in (True, False):
            many = {"max_tokens": LONG_CONTEXT - 200, "ignore_eos": True, "stream": stream, "n": 4}
            with connect(server) as connection:
                connection.sendall(request("/v1/chat/completions", json.dumps({**CHAT, **many}).encode()))
                if stream:
                    assert connection.recv(4096)
                while not host.running:
                    time.sleep(0.01)
            while not host.idle:
                time.sleep(0.01)
        assert "length" not in reasons
