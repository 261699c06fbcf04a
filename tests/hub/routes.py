"""Answers requests: the endpoints of the Hub that the client needs, and the CDN behind them."""

import json
import re
from itertools import count
from urllib.parse import quote, urlencode

from . import writing
from .oauth import Provider
from .repositories import Commit, Contents, Kind, Repository, User, etag, is_lfs
from .wire import Answer, Request, answer_json, plain

TREE_PAGE = 1000
KINDS: dict[str, Kind] = {"models": "model", "datasets": "dataset"}
RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class HubError(Exception):
    """An error answer: status, the Hub's error code and message."""

    def __init__(self, status: int, code: str, message: str, commit: str | None = None) -> None:
        self.answer = plain(status, json.dumps({"error": message}).encode(), {"X-Error-Message": message})
        if code:
            self.answer.headers["X-Error-Code"] = code
        if commit:
            self.answer.headers["X-Repo-Commit"] = commit


class Routes:
    """The Hub's state and its routes. ``cdn``: origin to which LFS files are redirected by signed URLs."""

    def __init__(self) -> None:
        self.url = ""
        self.cdn_url = ""
        self.cdn = False
        self.repositories: dict[tuple[Kind, str], Repository] = {}
        self.aliases: dict[tuple[Kind, str], str] = {}
        self.users: dict[str, User] = {}
        self.signed: dict[str, Contents] = {}
        self.uploads = writing.Uploads()
        self.provider = Provider()
        self._serial = count()

    def answer(self, request: Request) -> Answer:
        """Answer a request, before any fault applies."""
        try:
            if request.origin == "cdn":
                return self._signed(request)
            if (signing := self.provider.answer(request, self.url, self.users, self.repositories)) is not None:
                return signing
            user = self._user(request)
            if request.method in ("POST", "PUT") and (answer := self._write(request, user)) is not None:
                return answer
            if request.segments[0] == "api":
                return self._api(request, user)
            return self._resolve(request, user)
        except writing.Refused as error:
            return HubError(error.status, error.code, error.message).answer
        except HubError as error:
            return error.answer

    def _write(self, request: Request, user: User | None) -> Answer | None:
        """Answer a request that writes; None for one that only reads by POST."""
        parts = request.segments
        if request.method == "PUT" and parts[0] == "lfs-storage" and len(parts) == 2:
            return writing.upload(request, parts[1], self.uploads)
        if parts == ["lfs-verify"]:
            return writing.verify(request, self.uploads)
        if parts == ["api", "validate-yaml"]:
            return answer_json({"errors": [], "warnings": []})
        if parts == ["api", "repos", "create"]:
            return writing.create(request, user, self.repositories, self.url)
        if parts[-4:] == ["info", "lfs", "objects", "batch"]:
            kind: Kind = "dataset" if parts[0] == "datasets" else "model"
            name = "/".join(parts[1:-4] if kind == "dataset" else parts[:-4]).removesuffix(".git")
            self._find(request, kind, name, user)
            return writing.batch(request, self.uploads, self.url)
        if parts[0] == "api" and len(parts) > 1 and parts[1] in KINDS:
            id_parts, verb, rest = _split(parts[2:], ("preupload", "commit"))
            if verb and rest:
                repository = self._find(request, KINDS[parts[1]], "/".join(id_parts), user)
                if verb == "preupload":
                    return writing.preupload(request, _commit(repository, rest[0]))
                return writing.commit(request, user, repository, rest[0], self.uploads, self.url)
        return None

    def _user(self, request: Request) -> User | None:
        if request.token is None:
            return None
        user = self.users.get(request.token)
        if user is None:
            raise HubError(401, "", "Invalid credentials in Authorization header")
        return user

    def _api(self, request: Request, user: User | None) -> Answer:
        parts = request.segments[1:]
        if parts == ["whoami-v2"]:
            if user is None:
                raise HubError(401, "", "Invalid username or password.")
            return answer_json({"type": "user", "id": user.name, "name": user.name, "orgs": [], "auth": {"type": "access_token"}})
        kind = KINDS.get(parts[0])
        if kind is None:
            raise HubError(404, "", "Not Found")
        if len(parts) == 1:
            return self._search(request, kind, user)
        id_parts, verb, rest = _split(parts[1:], ("revision", "tree", "auth-check", "discussions"))
        repository = self._find(request, kind, "/".join(id_parts), user)
        if verb == "auth-check":
            if rest == ["write"] and not writing.may_write(user, repository.id):
                raise HubError(401 if user is None else 403, "", "You do not have write access to this repository")
            return answer_json({})
        if verb == "discussions":
            return writing.discussions(repository)
        commit = _commit(repository, rest[0] if rest else "main")
        if verb == "tree":
            return self._tree(request, commit, "/".join(rest[1:]))
        return answer_json(_info(repository, commit, sizes=request.query.get("blobs", [""])[0].lower() in ("true", "1")))

    def _find(self, request: Request, kind: Kind, name: str, user: User | None) -> Repository:
        canonical = self.aliases.get((kind, name))
        if canonical is not None:  # the Hub redirects a renamed repository, both its API and its files
            error = HubError(307, "", f"Moved to {canonical}")
            error.answer.headers["Location"] = request.target.replace(name, canonical, 1)
            raise error
        repository = self.repositories.get((kind, name))
        if repository is None or (repository.private and not _may_read(user, repository)):
            if user is None:  # without a login, the Hub does not reveal whether a repository exists
                raise HubError(401, "RepoNotFound", "Invalid username or password.")
            raise HubError(404, "RepoNotFound", "Repository not found")
        return repository

    def _search(self, request: Request, kind: Kind, user: User | None) -> Answer:
        text = request.query.get("search", [""])[0].lower()
        author = request.query.get("author", [""])[0].lower()
        limit = int(request.query.get("limit", ["1000"])[0])
        start = int(request.query.get("cursor", ["0"])[0])
        found = [
            _info(repository, _commit(repository, "main"), sizes=False)
            for repository in list(self.repositories.values())
            if repository.kind == kind
            and text in repository.id.lower()
            and (not author or repository.id.lower().startswith(f"{author}/"))
            and (not repository.private or _may_read(user, repository))
        ]
        page = found[start : start + limit]
        answer = answer_json([{name: value for name, value in info.items() if name != "siblings"} for info in page])
        if start + limit < len(found):  # the Hub's limit is per page
            query = urlencode({"search": text, "author": author, "limit": limit, "cursor": start + limit})
            answer.headers["Link"] = f'<{self.url}/api/{kind}s?{query}>; rel="next"'
        return answer

    def _tree(self, request: Request, commit: Commit, folder: str) -> Answer:
        prefix = f"{folder}/" if folder else ""
        recursive = request.query.get("recursive", [""])[0].lower() in ("true", "1")
        files = sorted(path for path in commit.files if path.startswith(prefix))
        if folder and not files:
            raise HubError(404, "EntryNotFound", f"{folder} does not exist", commit.sha)
        entries: dict[str, dict[str, object]] = {}
        for path in files:
            steps = path[len(prefix) :].split("/")
            for depth in range(1, len(steps) if recursive else min(len(steps), 2)):
                parent = prefix + "/".join(steps[:depth])
                entries.setdefault(parent, {"type": "directory", "path": parent, "oid": commit.sha, "size": 0})
            if recursive or len(steps) == 1:
                entries[path] = _entry(path, commit.files[path])
        start = int(request.query.get("cursor", ["0"])[0])
        answer = answer_json(list(entries.values())[start : start + TREE_PAGE])
        if start + TREE_PAGE < len(entries):
            path = request.target.partition("?")[0]
            answer.headers["Link"] = f'<{self.url}{path}?recursive={recursive}&cursor={start + TREE_PAGE}>; rel="next"'
        return answer

    def _resolve(self, request: Request, user: User | None) -> Answer:
        parts = request.segments
        kind: Kind = "dataset" if parts[0] == "datasets" else "model"
        id_parts, verb, rest = _split(parts[1:] if kind == "dataset" else parts, ("resolve",))
        if not verb or len(rest) < 2 or request.method not in ("GET", "HEAD"):
            raise HubError(404, "", "Not Found")
        repository = self._find(request, kind, "/".join(id_parts), user)
        if repository.gated and not _may_read(user, repository):
            status, advice = (401, "Please log in.") if user is None else (403, "You are not in the authorized list.")
            raise HubError(status, "GatedRepo", f"Access to model {repository.id} is restricted. {advice}")
        commit = _commit(repository, rest[0])
        path = "/".join(rest[1:])
        contents = commit.files.get(path)
        if contents is None:
            raise HubError(404, "EntryNotFound", "Entry not found", commit.sha)
        tag = f'"{etag(path, contents)}"'
        headers = {"X-Repo-Commit": commit.sha, "ETag": tag}
        if is_lfs(path, contents):
            headers |= {"X-Linked-Size": str(contents.size), "X-Linked-Etag": tag}
            if self.cdn:
                return plain(302, b"", headers | {"Location": self._sign(contents)})
        return _file(request, contents, headers)

    def _sign(self, contents: Contents) -> str:
        serial = str(next(self._serial))
        self.signed[serial] = contents
        return f"{self.cdn_url}/signed/{contents.digest}?serial={serial}&Signature={quote('a+b/c=')}"

    def _signed(self, request: Request) -> Answer:
        contents = self.signed.get(request.query.get("serial", [""])[0])
        if contents is None:
            return plain(
                403, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>", {"Content-Type": "text/xml"}
            )
        return _file(request, contents, {"ETag": f'"{contents.digest}"'})


def _split(parts: list[str], verbs: tuple[str, ...]) -> tuple[list[str], str, list[str]]:
    for place in (1, 2):  # ids have one or two segments
        if place < len(parts) and parts[place] in verbs:
            return parts[:place], parts[place], parts[place + 1 :]
    return parts, "", []


def _may_read(user: User | None, repository: Repository) -> bool:
    return user is not None and (repository.id in user.repositories or writing.may_write(user, repository.id))


def _commit(repository: Repository, revision: str) -> Commit:
    commit = repository.at(revision)
    if commit is None:
        raise HubError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    return commit


def _entry(path: str, contents: Contents) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": path, "size": contents.size, "oid": contents.digest[:40]}
    if is_lfs(path, contents):
        entry["lfs"] = {"oid": contents.digest, "size": contents.size, "pointerSize": 134}
    return entry


def _info(repository: Repository, commit: Commit, sizes: bool) -> dict[str, object]:
    siblings: list[dict[str, object]] = []
    for path, contents in commit.files.items():
        sibling: dict[str, object] = {"rfilename": path}
        if sizes:
            sibling |= {"size": contents.size, "blobId": contents.digest[:40]}
            if is_lfs(path, contents):
                sibling["lfs"] = {"sha256": contents.digest, "size": contents.size, "pointerSize": 134}
        siblings.append(sibling)
    return {
        "id": repository.id, "modelId": repository.id, "sha": commit.sha, "private": repository.private,
        "gated": repository.gated, "disabled": False, "downloads": 0, "likes": 0, "tags": [], **repository.info,
        "siblings": siblings,
    }  # fmt: skip


def _file(request: Request, contents: Contents, headers: dict[str, str]) -> Answer:
    headers |= {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    asked = RANGE.fullmatch(request.range or "")
    if asked is None or asked[0] == "bytes=-":
        return Answer(200, headers, contents)
    if asked[1]:
        first = int(asked[1])
        last = min(int(asked[2]), contents.size - 1) if asked[2] else contents.size - 1
    else:  # a suffix range: the last bytes
        first, last = max(0, contents.size - int(asked[2])), contents.size - 1
    if first > last:
        return plain(416, b"", {"Content-Range": f"bytes */{contents.size}"})
    headers["Content-Range"] = f"bytes {first}-{last}/{contents.size}"
    return Answer(206, headers, contents, first, last - first + 1)
