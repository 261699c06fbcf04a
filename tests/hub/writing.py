"""Implements the endpoints that write: new repositories, uploads, commits on a parent, pull requests."""

import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from .repositories import Commit, Contents, InMemory, Kind, Repository, User, contents_of, is_lfs
from .wire import Answer, Request, answer_json, plain


class Refused(Exception):
    """A refused commit: status, the Hub's error code, message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


@dataclass
class Uploads:
    """Contents in large file storage by SHA-256, and those that a client was told to upload."""

    stored: dict[str, Contents] = field(default_factory=dict)
    expected: dict[str, int] = field(default_factory=dict)


def may_write(user: User | None, repository_id: str) -> bool:
    """Return whether a user may commit to a repository: one listed as writable, or in their own namespace."""
    return user is not None and (repository_id in user.writes or repository_id.startswith(f"{user.name}/"))


def create(request: Request, user: User | None, repositories: dict[tuple[Kind, str], Repository], url: str) -> Answer:
    """Answer POST /api/repos/create."""
    asked = json.loads(request.body)
    if user is None:
        raise Refused(401, "", "Invalid username or password.")
    name = f"{asked.get('organization') or user.name}/{asked['name']}"
    if not may_write(user, name):
        raise Refused(403, "", f"You don't have the rights to create a {asked['type']} under this namespace")
    kind: Kind = "dataset" if asked["type"] == "dataset" else "model"
    address = f"{url}/datasets/{name}" if kind == "dataset" else f"{url}/{name}"
    if (kind, name) in repositories:
        return answer_json({"error": f"You already created this {kind} repo", "url": address}, 409)
    repository = Repository(name, kind, asked.get("visibility") == "private", False, {})
    repository.commit({".gitattributes": b"*.parquet filter=lfs diff=lfs merge=lfs -text\n"}, "main", ())
    repositories[kind, name] = repository
    return answer_json({"url": address})


def preupload(request: Request, commit: Commit) -> Answer:
    """Answer POST .../preupload/{revision}: which files belong in large file storage, and which exist."""
    files = []
    for file in json.loads(request.body)["files"]:
        there = commit.files.get(file["path"])
        lfs = is_lfs(file["path"], InMemory(b"")) or file["size"] > 10_000_000
        oid = None if there is None else there.digest if is_lfs(file["path"], there) else there.digest[:40]
        files.append({"path": file["path"], "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False, "oid": oid})
    return answer_json({"files": files})


def batch(request: Request, uploads: Uploads, url: str) -> Answer:
    """Answer POST .../info/lfs/objects/batch: where to upload missing contents."""
    objects = []
    for asked in json.loads(request.body)["objects"]:
        answer: dict[str, Any] = {"oid": asked["oid"], "size": asked["size"]}
        if asked["oid"] not in uploads.stored:
            uploads.expected[asked["oid"]] = asked["size"]
            answer["actions"] = {
                "upload": {"href": f"{url}/lfs-storage/{asked['oid']}", "header": {}},
                "verify": {"href": f"{url}/lfs-verify", "header": {}},
            }
        objects.append(answer)
    return answer_json({"transfer": "basic", "objects": objects})


def upload(request: Request, oid: str, uploads: Uploads) -> Answer:
    """Answer PUT to large file storage. The address is signed, so no token is required."""
    if uploads.expected.get(oid) != len(request.body) or hashlib.sha256(request.body).hexdigest() != oid:
        raise Refused(400, "", "The upload is not what was announced")
    uploads.stored[oid] = InMemory(request.body)
    return plain(200, b"")


def verify(request: Request, uploads: Uploads) -> Answer:
    """Answer POST /lfs-verify: whether an upload has arrived."""
    asked = json.loads(request.body)
    if asked["oid"] not in uploads.stored:
        raise Refused(404, "", "Not uploaded")
    return answer_json({})


def commit(request: Request, user: User | None, repository: Repository, revision: str, uploads: Uploads, url: str) -> Answer:
    """Answer POST .../commit/{revision}: one line of JSON for each operation. A parent that is not the head is refused with 412."""
    pull = request.query.get("create_pr", [""])[0] == "1"
    if user is None:
        raise Refused(401, "", "Invalid username or password.")
    if not pull and not may_write(user, repository.id):
        raise Refused(403, "", "Forbidden: pass `create_pr=1` as a query parameter to create a Pull Request")
    if pull and not (user.discusses or may_write(user, repository.id)):
        raise Refused(403, "", "Forbidden: the token may not open discussions")
    lines = [json.loads(line) for line in request.body.splitlines()]
    parent = lines[0]["value"].get("parentCommit")
    head = repository.refs.get(revision)
    if head is None:
        raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    if parent is not None and parent != head:
        raise Refused(412, "", "A commit has happened since. Please refresh and try again.")
    files, remove = _operations(lines[1:], repository.commits[head], uploads)
    base = f"{url}/{'datasets/' if repository.kind == 'dataset' else ''}{repository.id}"
    if pull:
        repository.titles.append(lines[0]["value"]["summary"])
        number = len(repository.titles)
        revision = f"refs/pr/{number}"
        repository.refs[revision] = head
    sha = repository.commit(files, revision, remove)
    answer = {"success": True, "commitOid": sha, "commitUrl": f"{base}/commit/{sha}", "hookOutput": ""}
    return answer_json(answer | ({"pullRequestUrl": f"{base}/discussions/{number}"} if pull else {}))


def discussions(repository: Repository) -> Answer:
    """Answer GET .../discussions: the pull requests, the newest first, all of them open."""
    listed = [
        {
            **{"num": number, "title": title, "status": "open", "isPullRequest": True, "createdAt": "2026-01-01T00:00:00.000Z"},
            **{"author": {"name": "somebody"}, "repo": {"name": repository.id, "type": repository.kind}},
        }
        for number, title in enumerate(repository.titles, 1)
    ]
    return answer_json({"discussions": listed[::-1], "count": len(listed), "start": 0})


def _operations(lines: list[dict[str, Any]], head: Commit, uploads: Uploads) -> tuple[dict[str, Any], list[str]]:
    files: dict[str, Any] = {}
    remove: list[str] = []
    for line in lines:
        value = line["value"]
        if line["key"] == "file":
            files[value["path"]] = contents_of(base64.b64decode(value["content"]))
        elif line["key"] == "lfsFile":
            if value["oid"] not in uploads.stored:
                raise Refused(400, "", f"The LFS object of {value['path']} was not uploaded")
            files[value["path"]] = uploads.stored[value["oid"]]
        elif line["key"] == "deletedFile":
            if value["path"] not in head.files:
                raise Refused(404, "EntryNotFound", "A file with this name doesn't exist")
            remove.append(value["path"])
        else:
            raise Refused(400, "", f"Unknown operation {line['key']}")
    return files, remove
