"""Publish a model: find it, export it if necessary, and upload it with its card in one commit.

push(PushRequest(Path("outputs/RUN"), "me/legs"))       # returns the URL
preview(PushRequest(Path("outputs/RUN"), "me/legs"))    # lists the files and shows the card
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rg_env.core.hub import PushRequest, repo_problem, revision_problem
from rg_env.core.run_folder import RunFolder
from rg_env.core.text import one_line
from rg_env.errors import HubError, InputError
from rg_env.publish.card import card, find_license
from rg_env.publish.checkpoint import Checkpoint, find_checkpoint
from rg_env.publish.contents import CURVE, Files, check_secrets, published_files
from rg_env.publish.repository import CARD, MARKER, Marker, Remote, Repository, git_hash

Say = Callable[[str], None]


def preview(request: PushRequest) -> str:
    """Return a listing of the files that would be uploaded, with their sizes, and the card. Nothing is uploaded, and no
    token is required.

    Raises:
        InputError: there is nothing to publish, or a name is invalid.
        ExportError: the model has not been exported yet, and exporting it would fail.
    """
    checkpoint = _found(request)
    files, more, notes = published_files(checkpoint, full=request.full), "", [*_notes(checkpoint)]
    if not checkpoint.is_ready:
        files = {path: file for path, file in files.items() if path == CURVE or "/" in path}
        more = " and the model's"
        notes += _export_notes(checkpoint)
    if checkpoint.base.on_hub:
        notes.append(f"the license of {checkpoint.base.name} will be looked up on upload")
    run = run_id(checkpoint.run) if checkpoint.run else "0" * 64
    files = _completed(request, checkpoint, files, run, None, kept="")
    text = bytes(files[CARD]).decode()
    sizes = {path: _size(content) for path, content in files.items()}
    target = request.repo_id + (", private" if request.private else "")
    target += f", branch {request.revision}" if request.revision else ""
    head = f"{len(files)} files{more}, {sum(sizes.values()) / 1e6:,.1f} MB, to {target}; nothing was sent"
    listed = [f"{size:>14,}  {path}" for path, size in sizes.items()]
    return "\n".join([head, *listed, "", *(f"({note})" for note in notes), text])


def push(request: PushRequest, say: Say = print) -> str:
    """Publish the model, report progress with `say`, and return the URL.

    Raises:
        InputError: there is nothing to publish, the token is missing or lacks permission, or the repository has other
            content.
        ExportError: a check of the export failed.
        HubError: the upload did not finish; the same command resumes it.
    """
    checkpoint = _found(request)
    notes, run = [*_notes(checkpoint)], run_id(checkpoint.run) if checkpoint.run else None
    repository = Repository(request.repo_id, request.revision)
    try:
        remote = repository.read()
        # Check this now, because an export can take a long time. Weights without a run can only be identified after it.
        _check_remote(request, remote, run or (remote.marker.run if remote and remote.marker else ""))
        for note in notes:
            say(note)
        with _exported(checkpoint, say) as ready:
            return _send(request, ready, repository, remote, say)
    except HubError as error:
        raise HubError(f"{error}; the same command resumes the upload: {request.command}") from error


def run_id(run: RunFolder) -> str:
    """A run's identifier, which does not depend on the folder and does not change as the run continues.

    It is the SHA-256 hex digest of the rows and of the first line of metrics, whose timings make it unique.
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


def _notes(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield notes about an export that is needed first, and about results that will be missing from the card. Raises
    `InputError` if the weights are damaged."""
    folder, run = checkpoint.folder, checkpoint.run
    if not checkpoint.is_ready:
        yield f"{folder} is exported first (rg-env export)"
    if run is None:
        yield f"no run is known for {folder}, so its card has no results: push the run, or a model in the run's folder"
    elif checkpoint.step is None:
        name = f"checkpoint-N-{one_line(folder.name, 40)}"
        yield (
            f"the training step of {folder} is unknown, so its card has no results after training: rename it to "
            f"{run.path}/{name}"
        )


def _export_notes(checkpoint: Checkpoint) -> Iterator[str]:
    """Check the files, names and shapes for the export, or yield a note if some files must be downloaded first."""
    from rg_env.publish.export import check_exportable

    if None in (checkpoint.config_folder(), checkpoint.tokenizer_folder()):
        yield f"the upload downloads the config and tokenizer of {checkpoint.base.name}, so the export was not checked"
    else:
        check_exportable(checkpoint)


@contextmanager
def _exported(checkpoint: Checkpoint, say: Say) -> Iterator[Checkpoint]:
    """Yield a checkpoint that can be published. A checkpoint with shards, pickles or empty weights is exported
    first."""
    if checkpoint.is_ready:
        yield checkpoint
        return
    from rg_env.publish.export import ExportRequest, export

    parent = checkpoint.folder.absolute().parent  # unlike /tmp, this disk should have room for weights
    parent_if_writable = parent if os.access(parent, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=".rg-env-push-", dir=parent_if_writable) as folder:
        request = ExportRequest(checkpoint.folder, out=Path(folder) / "model", base=checkpoint.trained_from)
        ready = find_checkpoint(export(request, say))
        yield replace(checkpoint, folder=ready.folder, parts=ready.parts)


def _send(request: PushRequest, checkpoint: Checkpoint, repository: Repository, remote: Remote | None, say: Say) -> str:
    files = published_files(checkpoint, full=request.full)
    run = _weights_id(files) if checkpoint.run is None else run_id(checkpoint.run)
    _check_remote(request, remote, run)
    pushed = remote.marker if remote else None
    kept_card = pushed.card if remote and pushed and remote.files.get(CARD, pushed.card) != pushed.card else ""
    if kept_card:
        say(f"{CARD} was edited on the Hub and is kept: delete it there to regenerate it")
    files = _completed(request, checkpoint, files, run, repository, kept_card)
    if pushed and pushed.step is not None and checkpoint.step is not None and pushed.step > checkpoint.step:
        say(f"step {checkpoint.step} replaces the later step {pushed.step}")

    if remote is None:
        repository.create(private=request.private)
        say(f"created {request.repo_id}{' (private)' if request.private else ''}")
        if (remote := repository.read()) is None:
            raise HubError(f"{request.repo_id} was created, but cannot be found on the Hub")
    if remote.is_copy:
        repository.create_branch()
    replaced = set(remote.files) if remote.is_copy else set(pushed.files if pushed else ()) & set(remote.files)
    outdated = sorted(replaced - {*files, CARD})
    if outdated and not remote.is_copy:
        more = f" and {len(outdated) - 1} more" if len(outdated) > 1 else ""
        say(f"deleting earlier files that are no longer published: {outdated[0]}{more}")
    size = sum(map(_size, files.values()))
    say(f"sending {len(files)} files, {size / 1e6:,.1f} MB, to {repository.url}")
    message = f"Weights {run[:12]}" if checkpoint.step is None else f"Step {checkpoint.step} of run {run[:12]}"
    if not repository.commit(files, outdated, message=message, parent=remote.commit):
        say("everything is up to date: nothing was sent")
    return repository.url


def _completed(
    request: PushRequest, checkpoint: Checkpoint, files: Files, run: str, repository: Repository | None, kept: str
) -> Files:
    """Add the marker and the card, and check all files for secrets. If `kept` is the Git hash of a card that stays on
    the Hub, no new card is added."""
    license = find_license(checkpoint.base, repository.api if repository else None)
    text = card(request, checkpoint, license, list(files)).encode()
    check_secrets({**files, CARD: text}, repository.token if repository else None)
    files = files if kept else {**files, CARD: text}
    marker = Marker(run=run, step=checkpoint.step, card=kept or git_hash(text), files=list(files))
    return {**files, MARKER: (marker.model_dump_json(indent=1) + "\n").encode()}


def _check_remote(request: PushRequest, remote: Remote | None, run: str) -> None:
    """Raise `InputError` if the push would overwrite other content or make a private model public."""
    if remote is None:
        return
    if request.private and not remote.private:
        raise InputError(
            f"{request.repo_id} exists and is public: make it private in its settings, or choose another repository"
        )
    if remote.is_copy or not remote.files or (remote.marker and remote.marker.run == run):
        return
    where = f"branch {request.revision} of {request.repo_id}" if request.revision else request.repo_id
    content = "another run" if remote.marker else f"other files ({one_line(min(remote.files), 60)} ...)"
    branch = "a branch" if request.revision is None else "a new branch"
    raise InputError(
        f"{where} contains {content}, which rg-env does not overwrite: choose another --repo-id, or {branch} with "
        "--revision NAME"
    )


def _weights_id(files: Files) -> str:
    """Identifier for weights without a run: a hash of file names and contents."""
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        if path.endswith(".safetensors") and isinstance(content, Path):
            with content.open("rb") as file:
                digest.update(path.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _size(content: Path | bytes) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size
