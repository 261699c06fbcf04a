"""Serves the local Hub: two loopback ports (the Hub and its CDN) in one thread."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from .faults import Fault, Script
from .oauth import Application
from .repositories import Contents, Gate, Kind, Repository, User, contents_of
from .routes import Routes
from .wire import Answer, Connection, Request, Throttle, plain


class LocalHub:
    """A Hugging Face Hub on loopback: ``with LocalHub() as hub: hub.add(...)``.

    url, cdn_url: the two origins. requests: every request so far, in order of arrival.
    delay: seconds before each answer; rate: bytes per second over all connections, None for no limit;
    cdn: whether LFS files are redirected to the other origin. All may be changed while it runs.
    """

    def __init__(self, *, port: int = 0, delay: float = 0.0, rate: float | None = None, cdn: bool = False) -> None:
        self._sockets = {"hub": _listen(port), "cdn": _listen(0)}
        self._routes = Routes()
        self._routes.url = self.url = f"http://127.0.0.1:{self._sockets['hub'].getsockname()[1]}"
        self._routes.cdn_url = self.cdn_url = f"http://127.0.0.1:{self._sockets['cdn'].getsockname()[1]}"
        self._routes.cdn = cdn
        self._script = Script()
        self._throttle = Throttle()
        self._throttle.rate = rate
        self.delay = delay
        self.requests: list[Request] = []
        self._loop = asyncio.new_event_loop()
        self._conversations: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._serve, name="local-hub", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def rate(self) -> float | None:
        """Bytes per second over all connections; None for no limit."""
        return self._throttle.rate

    @rate.setter
    def rate(self, value: float | None) -> None:
        self._throttle.rate = value

    @property
    def cdn(self) -> bool:
        """True if LFS files are redirected to the CDN."""
        return self._routes.cdn

    @cdn.setter
    def cdn(self, value: bool) -> None:
        self._routes.cdn = value

    def add(
        self,
        repo_id: str,
        files: Mapping[str, bytes | Path | Contents],
        *,
        kind: Kind = "model",
        private: bool = False,
        gated: Gate = False,
        aliases: Iterable[str] = (),
        info: Mapping[str, object] | None = None,
    ) -> str:
        """Create a repository with one commit on main and return its sha.

        aliases: former names, redirected here; info: further fields of the model info (``{"config": ...}``).
        """
        repository = Repository(repo_id, kind, private, gated, info or {})
        sha = repository.commit(files, "main", ())
        self._routes.repositories[kind, repo_id] = repository
        self._routes.aliases |= {(kind, alias): repo_id for alias in aliases}
        return sha

    def commit(
        self,
        repo_id: str,
        files: Mapping[str, bytes | Path | Contents],
        *,
        revision: str = "main",
        remove: Iterable[str] = (),
        kind: Kind = "model",
    ) -> str:
        """Push a commit that adds or replaces ``files`` and return its sha. A new branch starts from main."""
        return self._routes.repositories[kind, repo_id].commit(files, revision, remove)

    def tag(self, repo_id: str, name: str, sha: str, *, kind: Kind = "model") -> None:
        """Let a tag, branch or ``refs/...`` name stand for a commit."""
        self._routes.repositories[kind, repo_id].refs[name] = sha

    def user(self, token: str, name: str, repositories: Iterable[str] = (), writes: Iterable[str] = (), *, discusses: bool = True) -> None:
        """Make ``token`` valid, with the right to read these private or gated repositories, and to write or create those in ``writes``.

        discusses: whether it may open pull requests on others.
        """
        self._routes.users[token] = User(name, frozenset(repositories), frozenset(writes), discusses)

    def application(self, client_id: str, secret: str, name: str, token: str, repositories: Iterable[str] = ()) -> dict[str, str]:
        """Let the user ``name``, who may read ``repositories``, sign in to an app, which then gets ``token``.

        Returns the variables that a Space with ``hf_oauth`` has, with the scopes of README.md.
        """
        user = User(name, frozenset(repositories))
        self._routes.provider.applications[client_id] = Application(client_id, secret, user, token)
        return {
            "OAUTH_CLIENT_ID": client_id,
            "OAUTH_CLIENT_SECRET": secret,
            "OAUTH_SCOPES": "openid profile gated-repos read-repos write-discussions",
            "OPENID_PROVIDER_URL": self.url,
        }

    def files(self, repo_id: str, *, revision: str = "main", kind: Kind = "model") -> dict[str, bytes]:
        """Return the current contents of a repository."""
        commit = self._routes.repositories[kind, repo_id].at(revision)
        assert commit is not None
        return {path: bytes(contents.read(0, contents.size)) for path, contents in commit.files.items()}

    def pull_requests(self, repo_id: str, *, kind: Kind = "model") -> int:
        """Count the pull requests on a repository."""
        return len(self._routes.repositories[kind, repo_id].titles)

    def commits(self, repo_id: str, *, kind: Kind = "model") -> list[str]:
        """Return the commits of a repository, the oldest first."""
        return list(self._routes.repositories[kind, repo_id].commits)

    def fault(self, fault: Fault) -> Fault:
        """Add a fault after the existing ones, and return it, so that its ``hits`` can be read."""
        self._script.add(fault)
        return fault

    def clear_faults(self) -> None:
        """Remove all faults."""
        self._script.clear()

    def expire_signed_urls(self) -> None:
        """Let the CDN answer 403 for every URL handed out so far."""
        self._routes.signed.clear()

    def environ(self, home: Path) -> dict[str, str]:
        """Return variables that point huggingface_hub of another process to this Hub, with ``home`` as its HF_HOME."""
        return client_environ(self.url, home)

    def totals(self) -> dict[str, int]:
        """Return counts since the start: requests, ranges (requests with a Range header), bytes (of bodies sent)."""
        done = list(self.requests)
        return {
            "requests": len(done),
            "ranges": sum(request.range is not None for request in done),
            "bytes": sum(request.sent for request in done),
        }

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        for origin, listener in self._sockets.items():
            self._loop.add_reader(listener, self._accept, origin, listener)
        try:
            self._loop.run_forever()
        finally:
            for listener in self._sockets.values():
                self._loop.remove_reader(listener)
                listener.close()
            tasks = list(self._conversations)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.close()

    def _accept(self, origin: str, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionError):  # the connection has already closed
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._converse(sock, Connection(sock, origin, self._throttle)))
        self._conversations.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._conversations.discard(task)
            sock.close()  # closed in this callback, since a task that is cancelled before its first step never runs

        task.add_done_callback(over)

    async def _converse(self, sock: socket.socket, connection: Connection) -> None:
        with suppress(ConnectionError):
            while (request := await connection.receive()) is not None:
                if request.path == "/totals":  # the only route that is not the Hub's, for HubProcess
                    await connection.send(request, plain(200, json.dumps(self.totals()).encode()), None)
                    continue
                self.requests.append(request)
                fault = self._script.take(request.method, request.path, request.range is not None)
                if fault is not None and fault.hang:
                    await asyncio.Event().wait()
                began = time.monotonic()
                while (left := began + self.delay + (fault.delay if fault is not None else 0.0) - time.monotonic()) > 0:
                    await asyncio.sleep(min(left, 0.1))  # short sleeps, so that a waiting request notices a shorter delay
                if not await connection.send(request, self._answer(request, fault), fault):
                    return
                if request.headers.get("connection", "").lower() == "close":
                    return

    def _answer(self, request: Request, fault: Fault | None) -> Answer:
        if fault is None:
            return self._routes.answer(request)
        if fault.status is not None or fault.body is not None:
            answer = plain(fault.status or 200, b"")
            answer = Answer(answer.status, answer.headers, contents_of(fault.body or b""))
        elif fault.ignore_range:
            unranged = {name: value for name, value in request.headers.items() if name != "range"}
            answer = self._routes.answer(replace(request, headers=unranged))
        else:
            answer = self._routes.answer(request)
        for name, value in fault.headers.items():
            answer.headers.pop(name, None)
            if value is not None:
                answer.headers[name] = value
        return answer


def _listen(port: int) -> socket.socket:
    listener = socket.create_server(("127.0.0.1", port), backlog=256)
    listener.setblocking(False)
    return listener


def client_environ(url: str, home: Path) -> dict[str, str]:
    """Return variables that point huggingface_hub to ``url``, without this machine's cache or login."""
    return {
        "HF_ENDPOINT": url,
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
