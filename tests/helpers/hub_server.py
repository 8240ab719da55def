"""A model hub on loopback: the HTTP API that huggingface_hub uses, with repositories in memory.

    with HubServer() as hub:
        hub.url                                # for HF_ENDPOINT
        hub.repos["me/legs"].files()           # path -> content
        hub.environment                        # for a process that uploads to it
        hub.fail("POST", "/xorbs/", status=403)  # the next such request fails like this
        hub.requests                           # each request: method, path, whether it had a token

Implements creating repositories and branches, preupload, storage uploads by the Xet protocol (huggingface.co/docs/xet),
commits with a parent, metadata, trees, and downloads with redirects. Users are known by their tokens; a private
repository is hidden from others. Not implemented: compressed chunks, deduplication across repositories.
"""

import base64
import hashlib
import json
import re
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import yaml
from huggingface_hub import ModelCardData
from huggingface_hub.utils.sha import git_hash

CANARY = "hf_canaryCANARYcanaryCANARYcanary0123"
"""Token that tests search for in places where it must not occur."""
STORAGE_CANARY = "storageCANARYstorage0123"
"""Token for the storage, which the hub issues to users who may write."""
REGULAR = (".json", ".jsonl", ".md", ".yaml", ".txt", ".jinja", ".gitattributes")


@dataclass
class Commit:
    files: dict[str, bytes]
    oid: str = field(default_factory=partial(secrets.token_hex, 20))


@dataclass
class Repo:
    private: bool
    branches: dict[str, list[Commit]] = field(default_factory=dict)

    def files(self, branch: str = "main") -> dict[str, bytes]:
        return self.branches[branch][-1].files

    def commit(self, files: dict[str, bytes], branch: str = "main") -> Commit:
        """Replace all files of the branch in a new commit."""
        commit = Commit(files)
        self.branches.setdefault(branch, []).append(commit)
        return commit

    def find(self, revision: str) -> Commit | None:
        if revision in self.branches:
            return self.branches[revision][-1]
        return next((c for commits in self.branches.values() for c in commits if c.oid == revision), None)


@dataclass
class Request:
    method: str
    path: str
    authorized: bool
    """Whether the request has a user's token."""


@dataclass
class Failure:
    method: str
    pattern: str
    status: int | None
    """HTTP status; None drops the connection, in the middle of the body if there is one."""
    body: str | bytes = ""
    """Error message, or bytes that are sent unchanged."""
    location: str = ""
    """Server to redirect to."""

    def answer(self, path: str) -> "Answer":
        assert self.status is not None
        if isinstance(self.body, bytes):
            return self.status, self.body, {"Location": f"{self.location}{path}"} if self.location else {}
        return _json(self.status, {"error": self.body} if self.body else {})


class HubServer:
    """A hub on loopback. `tokens` maps each token to a user name and whether the token may write."""

    def __init__(self) -> None:
        self.tokens: dict[str, tuple[str, bool]] = {}
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, bytes] = {}
        """Large files by SHA-256."""
        self.xorbs: dict[str, list[bytes]] = {}
        """Chunks of the uploaded blocks, by the hash of the block."""
        self.requests: list[Request] = []
        self.failures: list[Failure] = []
        self.lock = threading.RLock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.storage_url = f"http://localhost:{self._server.server_port}"  # another origin, as with the real hub

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def fail(self, method: str, pattern: str, status: int | None = None, body: str | bytes = "", **more: Any) -> None:
        self.failures.append(Failure(method, pattern, status, body, **more))

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for a process that uploads to this hub."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_XET_XORB_COMPRESSION_POLICY": "none",
            "HF_XET_CLIENT_RETRY_BASE_DELAY": "50ms",
        }

    def sent(self) -> list[Request]:
        """Return the uploads of content to the storage, including unanswered ones."""
        return [request for request in self.requests if "/v1/xorbs/" in request.path]

    def add(self, name: str, files: dict[str, bytes], *, private: bool = False) -> Repo:
        """Add a repository that another user created."""
        repo = self.repos[name] = Repo(private)
        repo.commit({".gitattributes": b"*.safetensors filter=lfs\n", **files})
        return repo


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect during a response, as expected in tests."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def is_large(path: str) -> bool:
    return not path.endswith(REGULAR)


class _Refused(Exception):
    """Raised to end a request with this status, body and headers."""

    def __init__(self, status: int, value: Any = None, **headers: str):
        super().__init__(status)
        self.answer = _json(status, value or {}, **headers)


Answer = tuple[int, bytes, dict[str, str]]


def _json(status: int, value: Any, **headers: str) -> Answer:
    return status, json.dumps(value).encode(), {"Content-Type": "application/json", **headers}


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        length = int(self.headers.get("Content-Length") or 0)
        with hub.lock:
            hub.requests.append(Request(self.command, path, self._token not in ("", STORAGE_CANARY)))
            failure = next((f for f in hub.failures if self.command in f.method and re.search(f.pattern, path)), None)
            if failure:
                hub.failures.remove(failure)
        if failure and failure.status is None:
            self.rfile.read(length // 2)
            # Reset the connection, as if a machine between client and server failed.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        body = self.rfile.read(length)
        with hub.lock:
            status, data, headers = failure.answer(path) if failure else self._answer(path, body)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_HEAD = do_POST = do_PUT = do_GET

    def _answer(self, path: str, body: bytes) -> Answer:
        method = self.command.replace("HEAD", "GET")
        for known, pattern, action in _ROUTES:
            if method == known and (match := re.fullmatch(pattern, path)):
                try:
                    answer: Answer = getattr(self, action)(body, *match.groups())
                    return answer
                except _Refused as refused:
                    return refused.answer
        return _json(404, {"error": f"no such address: {path}"})

    @property
    def _token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    @property
    def _user(self) -> str | None:
        """Return the user who sent the request, or None if it has no token."""
        user = self.hub.tokens.get(self._token, (None, False))[0]
        if "Authorization" in self.headers and user is None:
            message = "Invalid credentials in Authorization header"
            # The body repeats the token, which clients must not print.
            raise _Refused(401, {"error": f"{message}: {self._token}"}, X_Error_Message=message)
        return user

    def _repo(self, name: str, *, write: bool = False) -> Repo:
        """Return the repository if the token may read it or, with `write`, write to it."""
        user, repo = self._user, self.hub.repos.get(name)
        if repo is None or (repo.private and user != name.split("/")[0]):
            raise _Refused(401 if user is None else 404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        if write:
            self._check_writer(name)
        return repo

    def _check_writer(self, name: str) -> None:
        if self._user != name.split("/")[0] or not self.hub.tokens[self._token][1]:
            raise _Refused(403, {"error": "You don't have the required permissions"})

    def _commit(self, name: str, revision: str) -> Commit:
        if (commit := self._repo(name).find(revision)) is None:
            raise _Refused(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
        return commit

    def create(self, body: bytes) -> Answer:
        options = json.loads(body)
        name = f"{options.get('organization') or self._user}/{options['name']}"
        if name in self.hub.repos:
            return _json(409, {"error": "You already created this model repo"})
        self._check_writer(name)
        self.hub.add(name, {}, private=options.get("visibility") == "private")
        return _json(200, {"url": f"{self.hub.url}/{name}"})

    def info(self, body: bytes, name: str, revision: str = "main") -> Answer:
        commit = self._commit(name, revision)
        siblings = [
            {"rfilename": each["path"], "size": each["size"], "blobId": each["oid"]} for each in _entries(commit.files)
        ]
        value = {"id": name, "sha": commit.oid, "private": self._repo(name).private, "siblings": siblings, "tags": []}
        if (card := commit.files.get("README.md", b"")).startswith(b"---\n"):
            value["cardData"] = yaml.safe_load(card[4:].partition(b"\n---")[0])
        return _json(200, value)

    def tree(self, body: bytes, name: str, revision: str) -> Answer:
        return _json(200, _entries(self._commit(name, revision).files))

    def branch(self, body: bytes, name: str, branch: str) -> Answer:
        repo = self._repo(name, write=True)
        if branch in repo.branches:
            return _json(409, {"error": "Reference already exists"})
        repo.branches[branch] = [*repo.branches["main"]]
        return _json(200, {})

    def validate(self, body: bytes) -> Answer:
        try:
            head = yaml.safe_load(json.loads(body)["content"][4:].partition("\n---")[0])
            assert ModelCardData(**head).eval_results or "model-index" not in head, "model-index is not valid"
            assert isinstance(head.get("tags"), list)
        except Exception as error:
            return _json(400, {"errors": [{"message": str(error)}], "warnings": []})
        return _json(200, {"errors": [], "warnings": []})

    def preupload(self, body: bytes, name: str, revision: str) -> Answer:
        files, found = self._repo(name, write=True).files(revision), []
        for path in (each["path"] for each in json.loads(body)["files"]):
            entry = {"path": path, "uploadMode": "lfs" if is_large(path) else "regular", "shouldIgnore": False}
            if (data := files.get(path)) is not None:
                entry["oid"] = hashlib.sha256(data).hexdigest() if is_large(path) else git_hash(data)
            found.append(entry)
        return _json(200, {"files": found})

    def storage(self, body: bytes, name: str, revision: str) -> Answer:
        self._repo(name, write=True)
        exp = int(time.time()) + 3600
        return _json(200, {"accessToken": STORAGE_CANARY, "exp": exp, "casUrl": self.hub.storage_url})

    def xorb(self, body: bytes, oid: str) -> Answer:
        if self._token != STORAGE_CANARY:
            return _json(401, {})
        new = oid not in self.hub.xorbs
        self.hub.xorbs[oid] = list(_chunks(body))
        return _json(200, {"was_inserted": new})

    def shard(self, body: bytes) -> Answer:
        if self._token != STORAGE_CANARY:
            return _json(401, {})
        for oid, ranges in _files(body):
            if any(xorb not in self.hub.xorbs for xorb, _, _ in ranges):
                return _json(400, {"error": "a block is missing"})
            data = b"".join(b"".join(self.hub.xorbs[xorb][start:end]) for xorb, start, end in ranges)
            if hashlib.sha256(data).hexdigest() != oid:
                return _json(400, {"error": "wrong content"})
            self.hub.objects[oid] = data
        return _json(200, {"result": 1})

    def commit(self, body: bytes, name: str, revision: str) -> Answer:
        repo = self._repo(name, write=True)
        lines, last = [json.loads(line) for line in body.splitlines()], repo.branches[revision][-1]
        if lines[0]["value"].get("parentCommit") not in (None, last.oid):
            return _json(412, {"error": "A commit has happened since"})
        files = dict(last.files)
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "deletedFile":
                del files[value["path"]]
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            else:
                files[value["path"]] = base64.b64decode(value["content"])
        oid = repo.commit(files, revision).oid
        return _json(200, {"success": True, "commitOid": oid, "commitUrl": f"{self.hub.url}/{name}/commit/{oid}"})

    def resolve(self, body: bytes, name: str, revision: str, path: str) -> Answer:
        commit = self._commit(name, revision)
        if path not in commit.files:
            raise _Refused(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
        data = commit.files[path]
        if not is_large(path):
            return 200, data, {"ETag": f'"{git_hash(data)}"', "X_Repo_Commit": commit.oid}
        oid = hashlib.sha256(data).hexdigest()
        headers = {"Location": f"{self.hub.storage_url}/lfs/{oid}", "ETag": f'"{oid}"', "X_Linked_ETag": f'"{oid}"'}
        return 302, b"", {**headers, "X_Linked_Size": str(len(data)), "X_Repo_Commit": commit.oid}

    def fetch(self, body: bytes, oid: str) -> Answer:
        if oid not in self.hub.objects:
            return _json(404, {})
        return 200, self.hub.objects[oid], {"ETag": f'"{oid}"'}


def _entries(files: dict[str, bytes]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path, data in sorted(files.items()):
        found.append({"type": "file", "path": path, "size": len(data), "oid": git_hash(data)})
        if is_large(path):
            found[-1]["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return found


def _chunks(xorb: bytes) -> Iterator[bytes]:
    """Yield the chunks of a block. Each chunk's header has a version, its size in the block (3 bytes), the compression,
    and its uncompressed size (3 bytes)."""
    at = 0
    while at < len(xorb) and not xorb.startswith(b"XETBLOB", at):
        length, compression = int.from_bytes(xorb[at + 1 : at + 4], "little"), xorb[at + 4]
        assert not compression, "the client is to send chunks as they are: see HubServer.environment"
        yield xorb[at + 8 : at + 8 + length]
        at += 8 + length


def _files(shard: bytes) -> Iterator[tuple[str, list[tuple[str, int, int]]]]:
    """Yield the SHA-256 and the location of each file: hash of a block, index of the first chunk, and index after the
    last.

    A shard begins with its header. All of its records have 48 bytes: for each file, a header, its segments, one
    verification hash per segment, and its SHA-256.
    """
    at = 48
    while shard[at : at + 32] != b"\xff" * 32:
        flags, count = struct.unpack_from("<II", shard, at + 32)
        segments = range(at + 48, at + 48 * (count + 1), 48)
        ranges = [(_hex(shard, each), *struct.unpack_from("<II", shard, each + 40)) for each in segments]
        at += 48 * (1 + count * (2 if flags & 1 << 31 else 1))
        assert flags & 1 << 30, "with its SHA-256"
        yield _hex(shard, at), ranges
        at += 48


def _hex(shard: bytes, at: int) -> str:
    return "".join(f"{each:016x}" for each in struct.unpack_from("<4Q", shard, at))


_NAME = r"([^/]+/[^/]+?)"
_ROUTES = (
    ("POST", r"/api/repos/create", "create"),
    ("POST", r"/api/validate-yaml", "validate"),
    ("POST", rf"/api/models/{_NAME}/branch/(.+)", "branch"),
    ("POST", rf"/api/models/{_NAME}/preupload/(.+)", "preupload"),
    ("POST", rf"/api/models/{_NAME}/commit/(.+)", "commit"),
    ("GET", rf"/api/models/{_NAME}/tree/([^/]+)", "tree"),
    ("GET", rf"/api/models/{_NAME}/revision/(.+)", "info"),
    ("GET", rf"/api/models/{_NAME}", "info"),
    ("GET", rf"/api/models/{_NAME}/xet-write-token/(.+)", "storage"),
    ("POST", r"/v1/xorbs/default/([0-9a-f]{64})", "xorb"),
    ("POST", r"/v1/shards", "shard"),
    ("GET", r"/lfs/([0-9a-f]{64})", "fetch"),
    ("GET", rf"/{_NAME}/resolve/([^/]+)/(.+)", "resolve"),
)
