"""A scripted OpenAI-compatible server on loopback: each request is kept, and answered by the next line of a script."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Request = dict[str, Any]
Line = Callable[[Request], tuple[int, Any]]
"""From a request's JSON to a status and a body (JSON, or text as it is)."""


@dataclass
class Server:
    """What a test looks at."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


def says(text: str, finish: str = "stop") -> Line:
    """A completion with this text."""
    return lambda request: (200, _completion(request, {"role": "assistant", "content": text}, finish))


def calls(name: str, arguments: dict[str, Any]) -> Line:
    """A completion that calls one tool."""
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return lambda request: (200, _completion(request, message, "tool_calls"))


def fails(status: int, message: str) -> Line:
    """An error in the protocol's form."""
    return lambda request: (status, {"error": {"message": message, "type": "error"}})


@contextmanager
def serve(script: Sequence[Line]) -> Iterator[Server]:
    """Serve a script; its last line answers all further requests."""
    seen = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            line = script[min(len(seen.requests), len(script) - 1)]
            seen.requests.append(request)
            seen.headers.append({name.lower(): value for name, value in self.headers.items()})
            status, body = line(request)
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if isinstance(body, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: the test looks at what was kept."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    seen.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _completion(request: Request, message: dict[str, Any], finish: str) -> dict[str, Any]:
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": request["model"],
        "choices": [{"index": 0, "finish_reason": finish, "message": message}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }
