"""A model hub on loopback: what huggingface_hub asks of the real one, over HTTP, with repositories in memory.

    with HubServer() as hub:
        hub.url                                # for HF_ENDPOINT
        hub.repos["me/legs"].files()           # path -> content
        hub.environment                        # for a process that uploads to it
        hub.fail("POST", "/xorbs/", status=403)  # the next such request is answered so
        hub.requests                           # each request: method, path, bytes of the body, with a token or not

Creating repositories and branches, preupload, uploads to the storage by the Xet protocol (huggingface.co/docs/xet),
commits with a parent, metadata, trees, downloads with redirects. Users are known by their tokens; a private repository
is hidden from others. Not implemented: compressed chunks, deduplication across repositories.
"""

import base64
import hashlib
import json
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import yaml
from huggingface_hub import ModelCardData

CANARY = "hf_canaryCANARYcanaryCANARYcanary0123"
"""A token, to be looked for where none may be."""
STORAGE_CANARY = "storageCANARYstorage0123"
"""The token of the storage, which the Hub issues to those who may write."""
REGULAR = (".json", ".jsonl", ".md", ".yaml", ".txt", ".jinja", ".gitattributes")


@dataclass
class Commit:
    oid: str
    files: dict[str, bytes]


@dataclass
class Repo:
    private: bool
    branches: dict[str, list[Commit]] = field(default_factory=dict)

    def files(self, branch: str = "main") -> dict[str, bytes]:
        return self.branches[branch][-1].files

    def find(self, revision: str) -> Commit | None:
        if revision in self.branches:
            return self.branches[revision][-1]
        return next((c for commits in self.branches.values() for c in commits if c.oid == revision), None)


@dataclass
class Request:
    method: str
    path: str
    length: int
    authorized: bool
    """Whether it has a user's token."""


@dataclass
class Failure:
    method: str
    pattern: str
    status: int | None
    """None: the connection is dropped, in the middle of the body if there is one. Below 0: that status, with a page."""
    body: str = ""
    times: int = 1


class HubServer:
    """Users: `tokens` maps a token to a name, and whether it may write."""

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
        self.storage_url = f"http://localhost:{self._server.server_port}"  # another origin, as that of the real Hub is

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def fail(self, method: str, pattern: str, status: int | None = None, body: str = "", times: int = 1) -> None:
        self.failures.append(Failure(method, pattern, status, body, times))

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a process that uploads to this hub."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_XET_XORB_COMPRESSION_POLICY": "none",
            "HF_XET_CLIENT_RETRY_BASE_DELAY": "50ms",
        }

    def sent(self) -> list[Request]:
        """The uploads of content to the storage, which were answered or not."""
        return [request for request in self.requests if "/v1/xorbs/" in request.path]

    def add(self, name: str, files: dict[str, bytes], *, private: bool = False) -> Repo:
        """A repository that somebody else made."""
        repo = self.repos[name] = Repo(private)
        repo.branches["main"] = [self.commit([], {".gitattributes": b"*.safetensors filter=lfs\n", **files})]
        return repo

    def commit(self, before: list[Commit], files: dict[str, bytes]) -> Commit:
        told = repr((len(before), sorted((path, hashlib.sha1(data).hexdigest()) for path, data in files.items())))
        return Commit(hashlib.sha1(f"{told}{before[-1].oid if before else ''}".encode()).hexdigest(), files)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that were ended in mid-answer are no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def is_large(path: str) -> bool:
    return not path.endswith(REGULAR)


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_GET

    def _answer(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        length = int(self.headers.get("Content-Length") or 0)
        with hub.lock:
            authorized = self._token() not in ("", STORAGE_CANARY)
            hub.requests.append(Request(self.command, path, length, authorized))
            failure = next((f for f in hub.failures if f.method == self.command and re.search(f.pattern, path)), None)
            if failure:
                failure.times -= 1
                if not failure.times:
                    hub.failures.remove(failure)
        if failure and failure.status is None:
            self.rfile.read(length // 2)
            # Closed with a reset, as by a machine on the way that fails.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        body = self.rfile.read(length)
        if failure:
            assert failure.status is not None
            if failure.status < 0:
                return self._send(-failure.status, b"<html>another server</html>")
            return self._json(failure.status, {"error": failure.body} if failure.body else {})
        with hub.lock:
            for method, pattern, action in _ROUTES:
                if method == self.command.replace("HEAD", "GET") and (match := re.fullmatch(pattern, path)):
                    return getattr(self, action)(body, *match.groups())
        self._json(404, {"error": f"no such address: {path}"})

    @property
    def user(self) -> str | None:
        return self.hub.tokens.get(self._token(), (None, False))[0]

    def _token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def _json(self, status: int, value: Any, **headers: str) -> None:
        data = json.dumps(value).encode()
        self._send(status, data, **{"Content-Type": "application/json", **headers})

    def _send(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _known(self) -> bool:
        """Whether the token is known, or none is given; else the request is answered."""
        if "Authorization" in self.headers and self.user is None:
            message = "Invalid credentials in Authorization header"
            self._json(401, {"error": f"{message}: {self._token()}"}, X_Error_Message=message)  # a careless server
            return False
        return True

    def _repo(self, name: str) -> Repo | None:
        """The repository; where the token may not see it the request is answered."""
        if not self._known():
            return None
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and self.user != name.split("/")[0]):
            status = 401 if self.user is None else 404
            self._json(status, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            return None
        return repo

    def _may_write(self, name: str) -> bool:
        if not self._known():
            return False
        if self.user is None:
            self._json(401, {"error": "Unauthorized"})
            return False
        if self.user != name.split("/")[0] or not self.hub.tokens[self._token()][1]:
            self._json(403, {"error": "You don't have the required permissions"})
            return False
        return True

    def create(self, body: bytes) -> None:
        asked = json.loads(body)
        name = f"{asked.get('organization') or self.user}/{asked['name']}"
        if not self._known():
            return None
        if name in self.hub.repos:
            return self._json(409, {"error": "You already created this model repo"})
        if self._may_write(name):
            self.hub.add(name, {}, private=asked.get("visibility") == "private")
            self._json(200, {"url": f"{self.hub.url}/{name}"})
        return None

    def info(self, body: bytes, name: str, revision: str | None = None) -> None:
        if (repo := self._repo(name)) is None:
            return None
        commit = repo.find(revision or "main")
        if commit is None:
            return self._json(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
        siblings = [
            {
                "rfilename": path,
                "size": len(data),
                "blobId": git_hash(data),
                **({"lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}}
                   if is_large(path) else {}),
            }
            for path, data in sorted(commit.files.items())
        ]  # fmt: skip
        value = {"id": name, "sha": commit.oid, "private": repo.private, "siblings": siblings, "tags": []}
        if (card := commit.files.get("README.md", b"")).startswith(b"---\n"):
            value["cardData"] = yaml.safe_load(card[4:].partition(b"\n---")[0])
        return self._json(200, value)

    def tree(self, body: bytes, name: str, revision: str) -> None:
        if (repo := self._repo(name)) is None:
            return None
        if (commit := repo.find(revision)) is None:
            return self._json(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
        entries = []
        for path, data in sorted(commit.files.items()):
            entry = {"type": "file", "path": path, "size": len(data), "oid": git_hash(data)}
            if is_large(path):
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            entries.append(entry)
        return self._json(200, entries)

    def branch(self, body: bytes, name: str, branch: str) -> None:
        if (repo := self._repo(name)) is None or not self._may_write(name):
            return None
        if branch in repo.branches:
            return self._json(409, {"error": "Reference already exists"})
        repo.branches[branch] = [*repo.branches["main"]]
        return self._json(200, {})

    def validate(self, body: bytes) -> None:
        asked = json.loads(body)
        try:
            head = yaml.safe_load(asked["content"][4:].partition("\n---")[0])
            data = ModelCardData(**head)
            assert not ("model-index" in head and not data.eval_results), "model-index is not valid"
            assert isinstance(head.get("tags"), list)
        except Exception as error:
            return self._json(400, {"errors": [{"message": str(error)}], "warnings": []})
        return self._json(200, {"errors": [], "warnings": []})

    def preupload(self, body: bytes, name: str, revision: str) -> None:
        if (repo := self._repo(name)) is None or not self._may_write(name):
            return
        files = repo.files(revision)
        told = []
        for asked in json.loads(body)["files"]:
            entry = {
                "path": asked["path"],
                "uploadMode": "lfs" if is_large(asked["path"]) else "regular",
                "shouldIgnore": False,
            }
            if (data := files.get(asked["path"])) is not None:
                entry["oid"] = hashlib.sha256(data).hexdigest() if is_large(asked["path"]) else git_hash(data)
            told.append(entry)
        self._json(200, {"files": told})

    def storage(self, body: bytes, name: str, revision: str) -> None:
        if self._repo(name) is not None and self._may_write(name):
            exp = int(time.time()) + 3600
            self._json(200, {"accessToken": STORAGE_CANARY, "exp": exp, "casUrl": self.hub.storage_url})

    def xorb(self, body: bytes, oid: str) -> None:
        if self._token() != STORAGE_CANARY:
            return self._json(401, {})
        new = oid not in self.hub.xorbs
        self.hub.xorbs[oid] = list(_chunks(body))
        return self._json(200, {"was_inserted": new})

    def shard(self, body: bytes) -> None:
        if self._token() != STORAGE_CANARY:
            return self._json(401, {})
        for oid, ranges in _files(body):
            if any(xorb not in self.hub.xorbs for xorb, _, _ in ranges):
                return self._json(400, {"error": "a block is missing"})
            data = b"".join(b"".join(self.hub.xorbs[xorb][start:end]) for xorb, start, end in ranges)
            if hashlib.sha256(data).hexdigest() != oid:
                return self._json(400, {"error": "wrong content"})
            self.hub.objects[oid] = data
        return self._json(200, {"result": 1})

    def commit(self, body: bytes, name: str, revision: str) -> None:
        if (repo := self._repo(name)) is None or not self._may_write(name):
            return None
        lines = [json.loads(line) for line in body.splitlines()]
        commits, head = repo.branches[revision], lines[0]["value"]
        if head.get("parentCommit") not in (None, commits[-1].oid):
            return self._json(412, {"error": "A commit has happened since"})
        files = dict(commits[-1].files)
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "deletedFile":
                del files[value["path"]]
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            else:
                files[value["path"]] = base64.b64decode(value["content"])
        commits.append(self.hub.commit(commits, files))
        oid = commits[-1].oid
        return self._json(200, {"success": True, "commitOid": oid, "commitUrl": f"{self.hub.url}/{name}/commit/{oid}"})

    def resolve(self, body: bytes, name: str, revision: str, path: str) -> None:
        if (repo := self._repo(name)) is None:
            return None
        commit = repo.find(revision)
        if commit is None or path not in commit.files:
            return self._json(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
        data = commit.files[path]
        if not is_large(path):
            return self._send(200, data, ETag=f'"{git_hash(data)}"', X_Repo_Commit=commit.oid)
        oid = hashlib.sha256(data).hexdigest()
        return self._send(
            302,
            b"",
            Location=f"{self.hub.storage_url}/lfs/{oid}",
            ETag=f'"{oid}"',
            X_Linked_ETag=f'"{oid}"',
            X_Linked_Size=str(len(data)),
            X_Repo_Commit=commit.oid,
        )

    def fetch(self, body: bytes, oid: str) -> None:
        if oid not in self.hub.objects:
            return self._json(404, {})
        return self._send(200, self.hub.objects[oid], ETag=f'"{oid}"')


def _chunks(xorb: bytes) -> Iterator[bytes]:
    """The chunks of a block. Each header: version, bytes in the block (3), compression, bytes of the chunk (3)."""
    at = 0
    while at < len(xorb) and not xorb.startswith(b"XETBLOB", at):
        length, compression = int.from_bytes(xorb[at + 1 : at + 4], "little"), xorb[at + 4]
        assert not compression, "the client is to send chunks as they are: see HubServer.environment"
        yield xorb[at + 8 : at + 8 + length]
        at += 8 + length


def _files(shard: bytes) -> Iterator[tuple[str, list[tuple[str, int, int]]]]:
    """SHA-256 of each file, and where it is: hash of a block, first chunk, and the one after the last.

    A shard begins with its header. All its records are of 48 bytes: for each file a header, its segments, as many
    hashes to verify them by, and its SHA-256.
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
