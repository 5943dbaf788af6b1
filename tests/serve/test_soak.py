"""Five minutes at twice the capacity: no request is lost, every refusal says when to come back, and memory does not grow."""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cli_harness import command, environment
from pumice.serve.spec import ModelSpec

SECONDS, SLOTS, QUEUE = 300.0, 8, 8


def resident(pid: int) -> int:
    """Bytes of a process and those that it started."""
    total = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
                if int(folder.name) == pid or int(status["PPid"]) == pid:
                    total += int(status["VmRSS"].split()[0]) * 1024
            except (OSError, KeyError, ValueError):
                continue
    return total


@pytest.mark.slow
def test_twice_the_capacity(models: list[ModelSpec]) -> None:
    args = ["serve", f"tiny={models[0].source}", "--port", 0, "--device", "host", "--slots", SLOTS, "--queue", QUEUE, "--json"]
    with subprocess.Popen(command(*args, "--quiet"), stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        counts: dict[int, int] = {}
        wrong: list[Any] = []
        ending = threading.Event()

        def client(k: int) -> None:
            connection, number = http.client.HTTPConnection("127.0.0.1", port, timeout=120), 0
            while not ending.is_set():
                number += 1
                body: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": f"{k} and {number}"}]}
                body |= {"max_tokens": 16, "ignore_eos": True, "stream": number % 2 == 0}
                connection.request("POST", "/v1/chat/completions", json.dumps(body))
                response = connection.getresponse()
                answer = response.read()
                counts[response.status] = counts.get(response.status, 0) + 1
                if response.status == 429:
                    if int(response.headers.get("Retry-After", 0)) < 1:
                        wrong.append(answer)
                    time.sleep(0.05)  # a client that listens would wait longer
                elif response.status != 200 or not (
                    b"[DONE]" in answer if body["stream"] else b'"completion_tokens":16' in answer
                ):
                    wrong.append((response.status, answer[:300]))
            connection.close()

        threads = [threading.Thread(target=client, args=(k,)) for k in range(2 * (SLOTS + QUEUE))]
        for thread in threads:
            thread.start()
        time.sleep(SECONDS / 5)
        before = resident(process.pid)
        time.sleep(SECONDS * 4 / 5)
        after = resident(process.pid)
        ending.set()
        for thread in threads:
            thread.join()
        process.terminate()
        assert process.wait(60) == 0
    assert not wrong, wrong[:3]
    assert counts[200] > 100 and counts[429] > 100
    assert after < before * 1.05 + (4 << 20), (before, after)
