"""An OpenAI-compatible server on loopback whose model is the rule-based expert: for whole runs over the wire."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from autogen_core.models import LLMMessage, SystemMessage, UserMessage

from kernelcrew.agents.recipes_client import RecipesClient


def reply_to(request: dict[str, Any]) -> dict[str, Any]:
    """The expert's answer to one chat completion request, in the protocol's form."""
    messages: list[LLMMessage] = []
    for message in request["messages"]:
        if message["role"] == "system":
            messages.append(SystemMessage(content=message["content"]))
        elif message["role"] == "user":
            messages.append(UserMessage(content=message["content"], source="user"))
    content = RecipesClient().reply(messages, []).content
    assert isinstance(content, str)
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    about = {"id": "1", "object": "chat.completion", "created": 0, "model": request["model"]}
    return {**about, "choices": [choice], "usage": usage}


class Handler(BaseHTTPRequestHandler):
    """Answers POST /v1/chat/completions."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(reply_to(request)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the tests look at the client's side."""


@contextmanager
def serve_recipes() -> Iterator[str]:
    """Serve on a free loopback port; gives the base URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
