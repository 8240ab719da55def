"""Publish a run's model: upload it with its card in one commit.

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
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token, set_client_factory
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import disable_progress_bars
from huggingface_hub.utils.sha import git_hash
from pydantic import BaseModel, ValidationError

from rg_env.core.files import regular, write_aside
from rg_env.core.hub import LOGIN, OptimizerState, push_arguments, repo_problem, revision_problem
from rg_env.core.processes import entered
from rg_env.core.text import listed, one_line
from rg_env.errors import HubError, InputError
from rg_env.publish.card import card, find_license, public_notes
from rg_env.publish.checkpoint import Checkpoint, find_checkpoint
from rg_env.publish.contents import Files, check_secrets, published_files

CARD, MARKER = "README.md", "rg_env.json"
DRAFT = "card.md"
"""File in the run's folder to which a dry run writes the card, to be edited."""
TIMEOUT_S = 300.0
"""Seconds without data after which a request fails. Without a limit, huggingface_hub would wait forever."""
_BY_HUB = ".gitattributes"
"""File created by the Hub in a new repository."""


@dataclass(frozen=True)
class PushRequest:
    """A request to publish a model on the Hub."""

    path: Path
    """Folder of a run (whose last checkpoint is published), one of its checkpoints, or an export next to these."""
    repo_id: str
    private: bool = False
    optimizer_state: OptimizerState = "none"
    """"full" uploads everything needed to resume training."""
    revision: str | None = None
    """Branch to upload to. Default: the main branch."""
    card: Path | None = None
    """Markdown file to upload as the card. Default: the card is generated."""

    @property
    def full(self) -> bool:
        return self.optimizer_state == "full"

    @property
    def command(self) -> str:
        """The equivalent shell command."""
        return join([entered("rg-env"), *push_arguments(**vars(self))])


class Marker(BaseModel):
    """Contents of rg_env.json."""

    run: str
    """Identifier of the run."""
    step: int | None
    card: str
    """Git hash of the pushed card. A card with a different hash has been edited on the Hub."""
    files: list[str]
    """Paths of the pushed files, except rg_env.json."""
    format: Literal["rg_env.pushed/1"] = "rg_env.pushed/1"


def preview(request: PushRequest) -> str:
    """Return a list of the files that would be uploaded (with their sizes), followed by the card. The card is also
    written to `DRAFT` in the run's folder, unless that file exists. Nothing is uploaded, and no token is required.

    Raises:
        InputError: there is nothing to publish, or a name is invalid.
        OutputFolderError: the card cannot be written.
    """
    checkpoint = _found(request)
    files = _completed(request, checkpoint, published_files(checkpoint, full=request.full))
    notes = [f"(the license of {checkpoint.base.name} will be looked up on upload)"] if checkpoint.base.on_hub else []
    notes += [*public_notes(request, checkpoint, list(files)), *_draft_notes(request, checkpoint, bytes(files[CARD]))]
    sizes = {path: _size(content) for path, content in files.items()}
    target = request.repo_id + (", private" if request.private else "")
    target += f", branch {request.revision}" if request.revision else ""
    head = f"{len(files)} files, {sum(sizes.values()) / 1e6:,.1f} MB, would be sent to {target}; nothing was sent"
    lines = [f"{size:>14,}  {path}" for path, size in sizes.items()]
    return "\n".join([head, *lines, "", *notes, "", bytes(files[CARD]).decode()])


def _draft_notes(request: PushRequest, checkpoint: Checkpoint, card: bytes) -> list[str]:
    """Write the generated card to `DRAFT` and return a note about it."""
    assert checkpoint.run is not None
    draft = checkpoint.run.path / DRAFT
    if request.card:
        return []
    if draft.exists():
        return [f"(an earlier card is kept in {draft}: delete it to write this one, or upload it with --card {draft})"]
    write_aside(draft, card.decode())
    return [f"(the card is in {draft}: to change it, edit the file and add --card {draft})"]


def push(request: PushRequest, say: Callable[[str], None] = print) -> str:
    """Publish the model, report progress with `say`, and return the URL.

    Raises:
        InputError: there is nothing to publish, the token is missing or lacks permission, or the repository has other
            content.
        HubError: the upload did not finish. The same command resumes the upload.
    """
    checkpoint = _found(request)
    run, repository = _run_id(checkpoint), _Repository(request.repo_id, request.revision)
    try:
        repository.read()
        _check_remote(request, run, repository)
        return _send(request, checkpoint, repository, say)
    except HubError as error:
        raise HubError(f"{error}; the same command resumes the upload: {request.command}") from error


def _run_id(checkpoint: Checkpoint) -> str:
    """Return an identifier of a checkpoint's run that does not depend on the folder and does not change as the run
    continues: the SHA-256 hex digest of the manifest's rows and of the first line of metrics, which contains unique
    timings."""
    run = checkpoint.run
    assert run is not None
    digest = hashlib.sha256(json.dumps(run.manifest().get("rows"), sort_keys=True).encode())
    digest.update(json.dumps(next(iter(run.metrics()), {}), sort_keys=True).encode())
    return digest.hexdigest()


def _found(request: PushRequest) -> Checkpoint:
    if problem := repo_problem(request.repo_id):
        raise InputError(f"--repo-id {one_line(request.repo_id, 100)!r} {problem}")
    if request.revision is not None and (problem := revision_problem(request.revision)):
        raise InputError(f"--revision {one_line(request.revision, 100)!r} {problem}")
    checkpoint = find_checkpoint(request.path)
    if checkpoint.run is None:
        upload = join(["hf", "upload", request.repo_id, str(checkpoint.folder)])
        raise InputError(
            f"no run was found for {checkpoint.folder}, so a card would be empty: pass the run, a model in the run's "
            f"folder, or upload the folder as it is (`{upload}`)"
        )
    if not checkpoint.has_weights:
        raise InputError(f"{checkpoint.folder} has no complete safetensors weights: export it first (rg-env export)")
    if request.full and not checkpoint.is_resumable:
        raise InputError(f"{checkpoint.folder} has no training state to resume from: omit --optimizer-state full")
    return checkpoint


def _send(request: PushRequest, checkpoint: Checkpoint, repository: "_Repository", say: Callable[[str], None]) -> str:
    files, pushed = published_files(checkpoint, full=request.full), repository.marker
    keeps_card = pushed is not None and repository.files.get(CARD, pushed.card) != pushed.card
    if keeps_card:
        say(f"{CARD} was edited on the Hub and is kept: delete it on the Hub to regenerate it")
    files = _completed(request, checkpoint, files, repository, pushed.card if pushed and keeps_card else None)
    if pushed and pushed.step is not None and checkpoint.step is not None and pushed.step > checkpoint.step:
        say(f"step {checkpoint.step} replaces the later step {pushed.step}")
    if repository.head is None:
        say(f"creating {request.repo_id}{' (private)' if request.private else ''}")
    repository.create(private=request.private)
    replaced = repository.files.keys() & (repository.files if repository.is_copy or not pushed else pushed.files)
    for note in public_notes(request, checkpoint, list(files)):
        say(note)
    outdated = sorted(replaced - {*files, CARD})
    if outdated and not repository.is_copy:
        say(f"deleting earlier files that are no longer published: {listed(outdated, 1)}")
    say(f"sending {len(files)} files ({sum(map(_size, files.values())) / 1e6:,.1f} MB) to {repository.url}")
    message = f"{'Model' if checkpoint.step is None else f'Step {checkpoint.step}'} of run {_run_id(checkpoint)[:12]}"
    if not repository.commit(files, outdated, message):
        say("everything is up to date, so nothing was sent")
    return repository.url


def _completed(
    request: PushRequest,
    checkpoint: Checkpoint,
    files: Files,
    hub: "_Repository | None" = None,
    kept_card: str | None = None,
) -> Files:
    """Add the marker and the card, and check the text files for secrets. If an edited card stays on the Hub,
    `kept_card` is the Git hash of the last pushed card, and no new card is added."""
    if request.card:
        text = _read_card(request.card)
    else:
        text = card(request, checkpoint, find_license(checkpoint.base, hub.api if hub else None), list(files)).encode()
    check_secrets({**files, CARD: text}, hub.token if hub else None)
    files = files if kept_card else {**files, CARD: text}
    marker = Marker(run=_run_id(checkpoint), step=checkpoint.step, card=kept_card or git_hash(text), files=list(files))
    return {**files, MARKER: (marker.model_dump_json(indent=1) + "\n").encode()}


def _read_card(file: Path) -> bytes:
    try:
        content = regular(file).read_bytes()
        content.decode()
    except OSError as error:
        raise InputError(f"--card {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"--card {file} is not UTF-8 text") from error
    return content


def _check_remote(request: PushRequest, run: str, remote: "_Repository") -> None:
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


def _size(content: Path | bytes) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


class _Repository:
    """A branch of a repository, accessed with the user's token. The branch need not exist yet.

    All methods raise `InputError` if the Hub refuses the token or the name, and `HubError` if the Hub cannot be reached
    or its response is invalid.

    Raises:
        InputError: the token is missing or invalid, or HF_ENDPOINT contains a username.
    """

    private: bool | None = None
    """Whether the repository is private, or None if it does not exist."""
    head: str | None = None
    """Latest commit of the branch, or None if the repository does not exist."""
    marker: Marker | None = None
    is_copy = False
    """Whether all files are from the main branch because this branch does not exist yet or has not been pushed to."""

    def __init__(self, repo_id: str, revision: str | None):
        token = get_token()
        if not token or not token.isascii():
            raise InputError(f"no Hugging Face token found, or the token contains invalid characters; {LOGIN}")
        endpoint = constants.ENDPOINT  # the value of HF_ENDPOINT, or the Hub's URL
        if "@" in urlsplit(endpoint).netloc:  # the username would be sent instead of the token, and would be printed
            raise InputError("HF_ENDPOINT contains a username (USER@), which would replace the token: remove it")
        self.token: str = token
        self.files: dict[str, str | None] = {}  # Git hash of each file, by path
        self.url = f"{endpoint}/{repo_id}" + (f"/tree/{revision}" if revision else "")
        self.api = HfApi(endpoint=endpoint, token=token, library_name="rg-env")
        self._name, self._branch = repo_id, None if revision == "main" else revision
        logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # huggingface_hub's warnings quote signed URLs
        if not sys.stderr.isatty():
            disable_progress_bars()
        set_client_factory(lambda: httpx2.Client(follow_redirects=True, timeout=TIMEOUT_S))

    def read(self) -> None:
        """Read the state of the branch. A repository that is not visible to this token is treated as missing."""
        options: dict[str, Any] = {"files_metadata": True, "timeout": TIMEOUT_S}
        with self._errors():
            try:
                found = main = self.api.model_info(self._name, **options)
            except RepositoryNotFoundError as error:
                if error.response.status_code == 401:  # the Hub's response to an unknown token
                    raise
                return
            if self._branch:
                with contextlib.suppress(RevisionNotFoundError):  # the branch will start as a copy of main
                    found = self.api.model_info(self._name, revision=self._branch, **options)
            if found.sha is None:
                raise ValueError("the repository has no commits")
            self.private, self.head = bool(main.private), found.sha
            self.files = {each.rfilename: each.blob_id for each in found.siblings or () if each.rfilename != _BY_HUB}
            self.is_copy = self._branch is not None and found.sha == main.sha
            if MARKER in self.files and not self.is_copy:
                # Ignore a file with this name that was written by another program.
                with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ValidationError):
                    file = self.api.hf_hub_download(self._name, MARKER, revision=found.sha, local_dir=folder)
                    self.marker = Marker.model_validate_json(Path(file).read_bytes())

    def create(self, *, private: bool) -> None:
        """Create the repository, and the branch as a copy of main, if they do not exist."""
        if self.head is None:
            with self._errors():
                self.api.create_repo(self._name, private=private or None)  # None selects the organization's default
            self.read()
        if self.is_copy:
            with self._errors():
                self.api.create_branch(self._name, branch=str(self._branch), exist_ok=True)

    def commit(self, files: Files, deleted: list[str], message: str) -> bool:
        """Upload `files` and delete the paths in `deleted` in one commit. Returns whether anything changed."""
        with self._errors():
            added = [CommitOperationAdd(path, content) for path, content in files.items()]
            # Xet skips data from earlier uploads, but does not detect identical files within one upload.
            once = {each.upload_info.sha256: each for each in added}
            if len(once) < len(added):
                self.api.preupload_lfs_files(self._name, once.values(), revision=self._branch, free_memory=False)
            operations = [*added, *(CommitOperationDelete(path, is_folder=False) for path in deleted)]
            options = {"commit_message": message, "revision": self._branch, "parent_commit": self.head}
            return bool(self.api.create_commit(self._name, operations, **options).oid != self.head)

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
                because = f"{status}{': ' if reason else ''}{reason}"
                if status in (401, 403, 409):
                    remedy = f"use a token with write access ({LOGIN}), or another --repo-id"
                    raise InputError(f"the Hub refused access to {self._name} ({because}): {remedy}") from error
                raise HubError(f"the Hub responded with an error ({because})") from error
            reason = one_line(f"{type(error).__name__}: {self._clean(str(error))}")
            remedy = "check the network and HF_ENDPOINT"
            raise HubError(f"uploading to {self.api.endpoint} failed ({reason}): {remedy}") from error

    def _clean(self, message: str) -> str:
        """Return `message` without the token and without the query strings of URLs, which may contain signatures."""
        return re.sub(r"(https?://[^\s?]+)\?\S*", r"\1", message).replace(self.token, "***")
