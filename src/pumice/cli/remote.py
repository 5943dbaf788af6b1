"""`pumice run --server` and `pumice chat --server`: a model of a running server, asked over its API for OpenAI's clients."""

from __future__ import annotations

import http.client
import json
import ssl
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from pumice.cli import INTERRUPTED
from pumice.cli.generate import check_before_loading, interruptible
from pumice.cli.text_input import whole_prompt
from pumice.errors import InputError, PumiceError

# Names of options that the API has another name for.
_NAMES = {"repeat_penalty": "repetition_penalty"}
_FIELDS = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
)


class ServerError(PumiceError):
    """A server that cannot be reached, or that answers with an error."""

    code = "server"


def refuse_local(**given: Any) -> None:
    """Refuses options that are about this machine.

    >>> refuse_local(lora=None, draft="lookup")
    Traceback (most recent call last):
    pumice.errors.InputError: [input] --draft and --server do not go together
      hint: the server decides how it runs its models
    """
    for name, value in given.items():
        if value:
            raise InputError(f"--{name} and --server do not go together", hint="the server decides how it runs its models")


def _address(url: str) -> SplitResult:
    """Where a server is; other clients want its address with the first part of its paths, which may be there.

    >>> _address("localhost:8080/v1/").geturl(), _address("https://a.example/models").path
    ('http://localhost:8080', '/models')
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise InputError(f"--server is {url!r:.200}", hint="give an address as http://127.0.0.1:8080")
    return parts._replace(path=parts.path.rstrip("/").removesuffix("/v1"), query="", fragment="")


def _key_in(file: Path) -> str:
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"{file} cannot be read: {type(e).__name__}", hint="it holds the key and nothing else") from None
    if not key.isascii() or not key.isprintable() or not key or " " in key:
        raise InputError(f"{file} holds no key", hint="it holds the key and nothing else, as --new-key printed it")
    return key


class RemoteModel:
    """A model of a server, by its name there."""

    def __init__(self, url: str, model: str, key_file: Path | None) -> None:
        self._parts, self._model = _address(url), model
        self._key = None if key_file is None else _key_in(key_file)

    # -- commands -----------------------------------------------------------------------------------------------------
    def run(self, prompt: str | None, options: Mapping[str, Any], *, as_json: bool) -> int:
        """One answer; the exit code."""
        check_before_loading(options)
        text = whole_prompt(prompt, raw=bool(options.get("raw")))
        if options.get("forbid"):
            raise InputError("--forbid and --server do not go together", hint="use --logit-bias ID=-100")
        system = [{"role": "system", "content": options["system"]}] if options.get("system") else []
        messages = [*system, {"role": "user", "content": text}]
        with interruptible() as pressed:
            answer = self._answer(messages, options, pressed, show=not as_json, raw=text if options.get("raw") else None)
        if as_json:
            print(json.dumps({**answer, "server": self._parts.geturl(), "model": self._model}))
        else:
            print(flush=True)
            used = answer["usage"] or {}
            print(f"{used.get('completion_tokens', '?')} tokens from {self._parts.netloc}", file=sys.stderr)
        return INTERRUPTED if pressed() else 0

    def chat(self, options: Mapping[str, Any]) -> int:
        """A conversation; the exit code."""
        from pumice.cli.chat import read_message

        check_before_loading(options)
        print(f"{self._model} on {self._parts.netloc}; /reset forgets, /quit or Ctrl-D ends", file=sys.stderr)
        begin = [{"role": "system", "content": options["system"]}] if options.get("system") else []
        history = list(begin)
        while True:
            try:
                line = read_message(input).strip()
            except EOFError:
                print(file=sys.stderr)
                return 0
            except KeyboardInterrupt:
                print("\n(/quit or Ctrl-D ends)", file=sys.stderr)
                continue
            if line == "/quit":
                return 0
            if line == "/reset":
                history = list(begin)
            elif line:
                asked = [*history, {"role": "user", "content": line}]
                try:
                    with interruptible() as pressed:
                        answer = self._answer(asked, options, pressed, show=True)
                    print(flush=True)
                    history = [*asked, {"role": "assistant", "content": answer["text"]}]
                except PumiceError as e:
                    print("; ".join(filter(None, (e.message, e.hint))), file=sys.stderr)

    # -- requests -----------------------------------------------------------------------------------------------------
    def _answer(
        self, messages: list[dict[str, Any]], options: Mapping[str, Any], pressed: Any, *, show: bool, raw: str | None = None
    ) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._model, "stream": True, "stream_options": {"include_usage": True}}
        body |= {"messages": messages} if raw is None else {"prompt": raw}
        body |= {k: options[k] for k in _FIELDS if options.get(k) is not None}
        body |= {theirs: options[ours] for ours, theirs in _NAMES.items() if options.get(ours) is not None}
        if options.get("logit_bias"):
            body["logit_bias"] = {k: max(v, -100.0) for k, v in options["logit_bias"].items()}
        if options.get("logprobs") is not None:
            body |= {"logprobs": True, "top_logprobs": options["logprobs"]} if raw is None else {"logprobs": options["logprobs"]}
        if options.get("json_schema"):
            schema = {"name": "answer", "schema": json.loads(options["json_schema"]), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        text, finish, usage, logprobs = "", None, None, []
        for chunk in self._chunks("/v1/completions" if raw is not None else "/v1/chat/completions", body):
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                piece = choice["text"] if raw is not None else choice["delta"].get("content") or ""
                text += piece
                if show:
                    print(piece, end="", flush=True)
                finish = choice["finish_reason"] or finish
                if choice.get("logprobs"):
                    logprobs.append(choice["logprobs"])
            if pressed():
                finish = "cancelled"
                break
        return {"text": text, "finish_reason": finish, "usage": usage, **({"logprobs": logprobs} if logprobs else {})}

    def _chunks(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The objects of a stream of events; leaving the iteration ends the request."""
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(host, port, context=ssl.create_default_context())
        else:
            connection = http.client.HTTPConnection(host, port)
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {self._key}"} if self._key else {})}
        with closing(connection):
            try:
                connection.request("POST", self._parts.path + path, json.dumps(body), headers)
                response = connection.getresponse()
                if response.status != 200:
                    raise self._refused(response.status, response.read(1 << 20))
                for line in response:
                    if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                        chunk = json.loads(line[6:])
                        if "error" in chunk:
                            raise self._refused(200, line[6:])
                        yield chunk
            except (OSError, http.client.HTTPException) as e:
                hint = "is `pumice serve` running there?"
                if isinstance(e, ssl.SSLCertVerificationError):
                    hint = "SSL_CERT_FILE=cert.pem trusts a certificate of your own"
                elif isinstance(e, http.client.RemoteDisconnected) and self._parts.scheme == "http":
                    hint = "if the server has a certificate, its address begins with https://"
                raise ServerError(f"{self._parts.netloc} cannot be reached: {e or type(e).__name__}", hint=hint) from None

    def _refused(self, status: int, body: bytes) -> PumiceError:
        try:
            said = json.loads(body)["error"]
            message = said if isinstance(said, str) else said["message"]
        except (ValueError, KeyError, TypeError):
            message = f"it answers with status {status}"
        kind = InputError if 400 <= status < 500 else ServerError
        hint = "--server-key-file FILE names the file with the key" if status == 401 and self._key is None else ""
        return kind(f"{self._parts.netloc}: {message}", hint=hint)
