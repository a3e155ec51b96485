"""A proxy in front of MLflow's server that goes wrong in chosen ways, as networks and servers do."""

import http.client
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlsplit

FOREVER = 10**9


@dataclass
class Fault:
    """What happens to the next requests that match.

    Attributes
    ----------
    request : str
        A regular expression for the method and the path, such as "POST .*/runs/create".
    status : int or None
        The answer instead of the server's; None drops the connection without one.
    forwarded : bool
        The server gets the request all the same: it is the answer that is lost.
    delay : float or None
        Seconds to wait before the server's own answer, instead of another one.
    after : int
        How many matching requests go through before the first that does not.
    times : int
        How many go wrong.
    """

    request: str
    status: int | None = None
    forwarded: bool = False
    delay: float | None = None
    after: int = 0
    times: int = 1

    def strikes(self, request: str) -> bool:
        """Count a request and return whether it goes wrong."""
        if not re.match(self.request, request) or self.times == 0:
            return False
        if self.after:
            self.after -= 1
            return False
        self.times -= 1
        return True


@dataclass
class FaultyServer:
    """The proxy: its address, the faults to come, and what it was asked."""

    url: str
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    lock: Any = field(default_factory=Lock)

    def fail(self, request: str, **how: Any) -> Fault:
        """Let requests that match go wrong."""
        fault = Fault(request, **how)
        self.faults.append(fault)
        return fault

    def mend(self) -> None:
        """Let everything through again."""
        self.faults.clear()

    def asked(self, request: str) -> int:
        """Return how many requests matched."""
        return sum(bool(re.match(request, known)) for known in self.requests)

    def fault_of(self, request: str) -> Fault | None:
        with self.lock:
            self.requests.append(request)
            return next((fault for fault in self.faults if fault.strikes(request)), None)


@contextmanager
def faulty(upstream: str) -> Iterator[FaultyServer]:
    """Run the proxy in front of a server."""
    target = urlsplit(upstream).netloc

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = proxy.fault_of(f"{self.command} {self.path}")
            if fault is None or fault.delay is not None:
                time.sleep(0 if fault is None or fault.delay is None else fault.delay)
                self._answer(*self._forward(body))
                return
            if fault.forwarded:
                self._forward(body)
            if fault.status is not None:
                told = b'{"error_code": "INTERNAL_ERROR", "message": "no space left on device"}'
                self._answer(fault.status, [("Content-Type", "application/json")], told)

        def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            connection = http.client.HTTPConnection(target, timeout=60)
            kept = {
                k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")
            }
            connection.request(self.command, self.path, body=body or None, headers=kept)
            answer = connection.getresponse()
            said = answer.status, answer.getheaders(), answer.read()
            connection.close()
            return said

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            with suppress(ConnectionError):  # whoever asked may have lost patience
                self.send_response(status)
                ours = ("transfer-encoding", "content-length", "connection", "server", "date")
                for name, value in headers:
                    if name.lower() not in ours:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815 - the base class's names

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy = FaultyServer(f"http://127.0.0.1:{server.server_port}")
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
