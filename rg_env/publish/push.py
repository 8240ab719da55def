"""Publish a model: find it, export it if necessary, and upload it with its card in one commit.

push(PushRequest(Path("outputs/RUN"), "me/legs"))       # returns the URL
preview(PushRequest(Path("outputs/RUN"), "me/legs"))    # lists the files and shows the card

huggingface_hub uploads large files first (Xet), then commits all files at once, so a repository never shows a partial
upload. Data already on the Hub, for example from an interrupted upload, is not sent again. Every error message is a
single line and contains no token.

`rg_env.json` (`Marker`) records the run that a repository belongs to and the files that were pushed. A later push uses
the marker to decide whether it may write to the repository and which files to delete.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token, set_client_factory
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import disable_progress_bars
from huggingface_hub.utils.sha import git_hash
from pydantic import BaseModel, ValidationError

from rg_env.core.hub import LOGIN, PushRequest, repo_problem, revision_problem
from rg_env.core.run_folder import RunFolder
from rg_env.core.text import listed, one_line
from rg_env.errors import HubError, InputError, RGEnvError
from rg_env.publish.card import card, find_license
from rg_env.publish.checkpoint import Checkpoint, find_checkpoint
from rg_env.publish.contents import CURVE, Files, check_secrets, published_files

Say = Callable[[str], None]
CARD, MARKER = "README.md", "rg_env.json"
TIMEOUT_S = 300.0
"""Seconds without data after which a request fails. Without a limit, huggingface_hub would wait forever."""
_REFUSALS = {
    401: f"the Hub rejected the token{{because}}; {LOGIN}",
    403: "the token has no write access to {repo}{because}: use one with write access "
    "(huggingface.co/settings/tokens), or another --repo-id",
    409: "{repo} already exists, but the token has no access to it{because}: use a token with access, or another "
    "--repo-id",
}
"""Messages for refused requests that the user can do something about, by HTTP status."""
_BY_HUB = ".gitattributes"
"""File created by the Hub in a new repository."""


class Marker(BaseModel):
    """Contents of rg_env.json."""

    run: str
    """Identifier of the run or the weights."""
    step: int | None
    card: str
    """Git hash of the pushed card. A card with a different hash has been edited on the Hub."""
    files: list[str]
    """Paths of the pushed files, except rg_env.json."""
    format: Literal["rg_env.pushed/1"] = "rg_env.pushed/1"


def preview(request: PushRequest) -> str:
    """Return a list of the files that would be uploaded (with their sizes), followed by the card. If an export is
    needed, the model files are not listed. Nothing is uploaded, and no token is required.

    Raises:
        InputError: there is nothing to publish, or a name is invalid.
        ExportError: the model has not been exported yet, and exporting it would fail.
    """
    checkpoint = _found(request)
    files, more, notes = published_files(checkpoint, full=request.full), "", _notes(checkpoint)
    if not checkpoint.is_ready:
        files = {path: file for path, file in files.items() if path == CURVE or "/" in path}
        more = " in addition to the model files"
        if None in (checkpoint.config_folder(), checkpoint.tokenizer_folder()):
            files_of = f"the config and tokenizer of {checkpoint.base.name}"
            notes.append(f"the preview does not download {files_of}, so the export was not checked")
        else:
            from rg_env.publish.export import check_exportable

            check_exportable(checkpoint)
    if checkpoint.base.on_hub:
        notes.append(f"the license of {checkpoint.base.name} will be looked up on upload")
    files = _completed(request, checkpoint, files, run_id(checkpoint.run) if checkpoint.run else "0" * 64, None, None)
    sizes = {path: _size(content) for path, content in files.items()}
    target = request.repo_id + (", private" if request.private else "")
    target += f", branch {request.revision}" if request.revision else ""
    head = f"{len(files)} files{more}, {sum(sizes.values()) / 1e6:,.1f} MB, would be sent to {target}; nothing was sent"
    lines = [f"{size:>14,}  {path}" for path, size in sizes.items()]
    return "\n".join([head, *lines, "", *(f"({note})" for note in notes), bytes(files[CARD]).decode()])


def push(request: PushRequest, say: Say = print) -> str:
    """Publish the model, report progress with `say`, and return the URL.

    Raises:
        InputError: there is nothing to publish, the token is missing or lacks permission, or the repository has other
            content.
        ExportError: the export failed a check.
        HubError: the upload did not finish. The same command resumes the upload.
    """
    checkpoint = _found(request)
    notes, run = _notes(checkpoint), run_id(checkpoint.run) if checkpoint.run else None
    repository = _Repository(request.repo_id, request.revision)
    try:
        remote = repository.read()
        # Check the repository before the export, which can take a long time. Weights without a run can be identified
        # only after the export.
        _check_remote(request, remote, run or (remote.marker.run if remote.marker else ""))
        for note in notes:
            say(note)
        with _exported(checkpoint, say) as ready:
            return _send(request, ready, repository, remote, say)
    except HubError as error:
        raise HubError(f"{error}; the same command resumes the upload: {request.command}") from error


def run_id(run: RunFolder) -> str:
    """Return a run's identifier, which does not depend on the folder and does not change as the run continues.

    The identifier is the SHA-256 hex digest of the manifest's rows and of the first line of metrics, which contains
    unique timings.
    """
    digest = hashlib.sha256(json.dumps(run.manifest().get("rows"), sort_keys=True).encode())
    digest.update(json.dumps(next(iter(run.metrics()), {}), sort_keys=True).encode())
    return digest.hexdigest()


def _found(request: PushRequest) -> Checkpoint:
    if problem := repo_problem(request.repo_id):
        raise InputError(f"--repo-id {one_line(request.repo_id, 100)!r} {problem}")
    if request.revision is not None and (problem := revision_problem(request.revision)):
        raise InputError(f"--revision {one_line(request.revision, 100)!r} {problem}")
    checkpoint = find_checkpoint(request.path, base=request.base)
    if request.full and checkpoint.state is None:
        raise InputError(
            f"{checkpoint.folder} has no training state to resume from: use a checkpoint with the optimizer state, "
            "or omit --optimizer-state full"
        )
    return checkpoint


def _notes(checkpoint: Checkpoint) -> list[str]:
    """Return notes about a required export, and about results that will be missing from the card. Raises `InputError`
    if the weights are damaged."""
    folder, run = checkpoint.folder, checkpoint.run
    notes = [] if checkpoint.is_ready else [f"{folder} will be exported first (rg-env export)"]
    if run is None:
        notes.append(
            f"no run was found for {folder}, so the card has no results: push the run, or a model in the run's folder"
        )
    elif checkpoint.step is None:
        notes.append(
            f"the training step of {folder} is unknown, so the card has no results after training: rename the folder "
            f"to {run.path}/checkpoint-N-{one_line(folder.name, 40)}"
        )
    return notes


@contextlib.contextmanager
def _exported(checkpoint: Checkpoint, say: Say) -> Iterator[Checkpoint]:
    """Yield a checkpoint that can be published. A checkpoint with shards, pickles or empty weights is exported
    first."""
    if checkpoint.is_ready:
        yield checkpoint
        return
    from rg_env.publish.export import ExportRequest, export

    parent = checkpoint.folder.absolute().parent  # this disk probably has room for weights, unlike /tmp
    parent_if_writable = parent if os.access(parent, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=".rg-env-push-", dir=parent_if_writable) as folder:
        request = ExportRequest(checkpoint.folder, out=Path(folder) / "model", base=checkpoint.trained_from)
        ready = find_checkpoint(export(request, say))
        yield replace(checkpoint, folder=ready.folder, parts=ready.parts)


@dataclass(frozen=True)
class _Remote:
    """Current state of the branch. The defaults describe a repository that does not exist."""

    private: bool | None = None
    commit: str | None = None
    files: Mapping[str, str | None] = field(default_factory=dict)
    """Git hash of each file, by path."""
    marker: Marker | None = None
    is_copy: bool = False
    """Whether all files are from the main branch because this branch does not exist yet or has not been pushed to."""


def _send(request: PushRequest, checkpoint: Checkpoint, repository: "_Repository", remote: _Remote, say: Say) -> str:
    files = published_files(checkpoint, full=request.full)
    run = _weights_id(files) if checkpoint.run is None else run_id(checkpoint.run)
    _check_remote(request, remote, run)
    pushed, kept_card = remote.marker, None
    if pushed and remote.files.get(CARD, pushed.card) != pushed.card:
        kept_card = pushed.card
        say(f"{CARD} was edited on the Hub and is kept: delete it on the Hub to regenerate it")
    files = _completed(request, checkpoint, files, run, repository, kept_card)
    if pushed and pushed.step is not None and checkpoint.step is not None and pushed.step > checkpoint.step:
        say(f"step {checkpoint.step} replaces the later step {pushed.step}")
    if remote.commit is None:
        say(f"creating {request.repo_id}{' (private)' if request.private else ''}")
    remote = repository.create(remote, private=request.private)
    replaced = set(remote.files) if remote.is_copy else set(pushed.files if pushed else ()) & set(remote.files)
    outdated = sorted(replaced - {*files, CARD})
    if outdated and not remote.is_copy:
        say(f"deleting earlier files that are no longer published: {listed(outdated, 1)}")
    size = sum(map(_size, files.values()))
    say(f"sending {len(files)} files ({size / 1e6:,.1f} MB) to {repository.url}")
    message = f"Weights {run[:12]}" if checkpoint.step is None else f"Step {checkpoint.step} of run {run[:12]}"
    if not repository.commit(files, outdated, message, remote.commit):
        say("everything is up to date, so nothing was sent")
    return repository.url


def _completed(
    request: PushRequest, checkpoint: Checkpoint, files: Files, run: str, hub: "_Repository | None", kept: str | None
) -> Files:
    """Add the marker and the card, and check the text files for secrets. If an edited card stays on the Hub, `kept` is
    the Git hash of the last pushed card, and no new card is added."""
    license = find_license(checkpoint.base, hub.api if hub else None)
    text = card(request, checkpoint, license, list(files)).encode()
    check_secrets({**files, CARD: text}, hub.token if hub else None)
    files = files if kept else {**files, CARD: text}
    marker = Marker(run=run, step=checkpoint.step, card=kept or git_hash(text), files=list(files))
    return {**files, MARKER: (marker.model_dump_json(indent=1) + "\n").encode()}


def _check_remote(request: PushRequest, remote: _Remote, run: str) -> None:
    """Raise `InputError` if the push would overwrite other content or make a private model public."""
    if request.private and remote.private is False:
        raise InputError(
            f"{request.repo_id} exists and is public: make it private in its settings, or choose another repository"
        )
    if remote.is_copy or not remote.files or (remote.marker and remote.marker.run == run):
        return
    where = f"branch {request.revision} of {request.repo_id}" if request.revision else request.repo_id
    content = "another run" if remote.marker else f"other files ({one_line(min(remote.files), 60)} ...)"
    raise InputError(
        f"{where} contains {content}, which rg-env does not overwrite: choose another --repo-id, or a new branch with "
        "--revision NAME"
    )


def _weights_id(files: Files) -> str:
    """Return an identifier for weights without a run: a hash of the names and contents of the safetensors files."""
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        if path.endswith(".safetensors") and isinstance(content, Path):
            with content.open("rb") as file:
                digest.update(path.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _size(content: Path | bytes) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


class _Repository:
    """A branch of a repository, accessed with the user's token. The branch need not exist yet.

    All methods raise `InputError` if the Hub refuses the token or the name, and `HubError` if the Hub cannot be reached
    or its response is invalid.

    Raises:
        InputError: the token is missing or invalid, HF_HUB_OFFLINE is set, or HF_ENDPOINT contains a username.
    """

    def __init__(self, repo_id: str, revision: str | None):
        token = get_token()
        if not token or not token.isascii():
            raise InputError(f"no Hugging Face token found, or the token contains invalid characters; {LOGIN}")
        if constants.HF_HUB_OFFLINE:
            raise InputError("HF_HUB_OFFLINE is set: unset it to upload")
        endpoint = constants.ENDPOINT  # the value of HF_ENDPOINT, or the Hub's URL
        if "@" in urlsplit(endpoint).netloc:  # the username would be sent instead of the token, and would be printed
            raise InputError("HF_ENDPOINT contains a username (USER@), which would replace the token: remove it")
        self.token: str = token
        self.url = f"{endpoint}/{repo_id}" + (f"/tree/{revision}" if revision else "")
        self.api = HfApi(endpoint=endpoint, token=token, library_name="rg-env")
        self._name, self._branch = repo_id, None if revision == "main" else revision
        logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # huggingface_hub's warnings quote signed URLs
        if not sys.stderr.isatty():
            disable_progress_bars()
        set_client_factory(lambda: httpx2.Client(follow_redirects=True, timeout=TIMEOUT_S))

    def read(self) -> _Remote:
        """Read the branch. A repository that is not visible to this token is treated as missing."""
        options: dict[str, Any] = {"files_metadata": True, "timeout": TIMEOUT_S}
        with self._errors():
            try:
                found = main = self.api.model_info(self._name, **options)
            except RepositoryNotFoundError as error:
                if error.response.status_code == 401:  # the Hub's response to an unknown token
                    raise
                return _Remote()
            if self._branch:
                with contextlib.suppress(RevisionNotFoundError):  # the branch will start as a copy of main
                    found = self.api.model_info(self._name, revision=self._branch, **options)
            if found.sha is None:
                raise ValueError("the repository has no commits")
            files = {each.rfilename: each.blob_id for each in found.siblings or () if each.rfilename != _BY_HUB}
            is_copy, marker = self._branch is not None and found.sha == main.sha, None
            if MARKER in files and not is_copy:
                # Ignore a file with this name that was written by another program.
                with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ValidationError):
                    file = self.api.hf_hub_download(self._name, MARKER, revision=found.sha, local_dir=folder)
                    marker = Marker.model_validate_json(Path(file).read_bytes())
            return _Remote(bool(main.private), found.sha, files, marker, is_copy)

    def create(self, remote: _Remote, *, private: bool) -> _Remote:
        """Create the repository, and the branch as a copy of main, if they do not exist. Returns the branch's state."""
        if remote.commit is None:
            with self._errors():
                self.api.create_repo(self._name, private=private or None)  # None selects the organization's default
            remote = self.read()
        if remote.is_copy:
            with self._errors():
                self.api.create_branch(self._name, branch=str(self._branch), exist_ok=True)
        return remote

    def commit(self, files: Files, deleted: list[str], message: str, parent: str | None) -> bool:
        """Upload `files` and delete the paths in `deleted` in one commit on top of `parent`. Returns whether anything
        changed."""
        with self._errors():
            added = [CommitOperationAdd(path, content) for path, content in files.items()]
            # Xet skips data from earlier uploads, but does not detect identical files within one upload.
            once = {each.upload_info.sha256: each for each in added}
            if len(once) < len(added):
                self.api.preupload_lfs_files(self._name, once.values(), revision=self._branch, free_memory=False)
            operations = [*added, *(CommitOperationDelete(path, is_folder=False) for path in deleted)]
            options = {"commit_message": message, "revision": self._branch, "parent_commit": parent}
            return bool(self.api.create_commit(self._name, operations, **options).oid != parent)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert every error from the Hub, the network or huggingface_hub into an `RGEnvError` with a one-line
        message."""
        try:
            yield
        except Exception as error:
            # Without Xet, a file that the Hub refuses causes a RuntimeError, with the refusal as its `__cause__`.
            refusal = error.__cause__ if isinstance(error, RuntimeError) else error
            if isinstance(refusal, HfHubHTTPError):
                status, reason = refusal.response.status_code, one_line(self._clean(refusal.server_message or ""))
                kind: type[RGEnvError] = InputError if status in _REFUSALS else HubError
                message = _REFUSALS.get(status, "the Hub responded with an error{because}")
                because = f" ({status}{': ' if reason else ''}{reason})"
                raise kind(message.format(repo=self._name, because=because)) from error
            if isinstance(error, OSError) and error.filename:
                raise HubError(f"{error.filename} cannot be read: {error.strerror}") from error
            reason = one_line(f"{type(error).__name__}: {self._clean(str(error))}")
            remedy = "check the network and HF_ENDPOINT"
            raise HubError(f"uploading to {self.api.endpoint} failed ({reason}): {remedy}") from error

    def _clean(self, message: str) -> str:
        """Return `message` without the token and without the query strings of URLs, which may contain signatures."""
        return re.sub(r"(https?://[^\s?]+)\?\S*", r"\1", message).replace(self.token, "***")
