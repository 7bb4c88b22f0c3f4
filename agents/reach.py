"""Whether a model can be asked at all, before anything is measured: the options' form, then one connection."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from kernelcrew.agents.clients import OPENAI_URL, make_client
from kernelcrew.errors import ModelError, UserMistake
from kernelcrew.settings import behind_proxy

CONNECT_S = 5.0
"""One attempt to connect: a server that is up accepts within milliseconds."""


def check_model(model: str, base_url: str, seed: int) -> None:
    """Refuse what could not be asked. Raises UnknownName or UserMistake for the options, ModelError for a server that
    does not accept a connection."""
    host, port = address(base_url or OPENAI_URL)
    make_client(model, base_url, seed)
    if not model.startswith("openai:"):
        if base_url:
            what = f"--base-url has no meaning with --model {model}, which asks no server"
            raise UserMistake(what, fix="leave --base-url out, or name the server's model: --model openai:NAME")
        return
    url = base_url or OPENAI_URL
    if behind_proxy(url):
        return
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError as error:
        why = "no such host" if isinstance(error, socket.gaierror) else (error.strerror or "no answer").lower()
        if isinstance(error, TimeoutError):
            why = f"nothing within {CONNECT_S:.0f} s"
        fix = "start the server, or mend --base-url" if base_url else "look at the network, or give --base-url"
        raise ModelError(f"no answer from the model server at {url} ({why})", fix=fix) from error


def address(url: str) -> tuple[str, int]:
    """Host and port of a server's URL. Raises UserMistake for what is no http address."""
    fix = "give a whole address, for instance --base-url http://127.0.0.1:8000/v1"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UserMistake(f"--base-url {url}: {error}", fix=fix) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or any(c.isspace() for c in url):
        raise UserMistake(f"--base-url {url}: no http or https address", fix=fix)
    return parts.hostname, port or (443 if parts.scheme == "https" else 80)
