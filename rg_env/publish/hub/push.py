"""Publish a model: find it, export it if necessary, and send it with its card in one commit.

push(PushRequest(Path("outputs/RUN"), "me/legs"))       # returns the address
preview(PushRequest(Path("outputs/RUN"), "me/legs"))    # what would be sent, and the card
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
from rg_env.publish.hub.card import card
from rg_env.publish.hub.files import CURVE, Files, check_secrets, published_files
from rg_env.publish.hub.repository import CARD, MARKER, Marker, Remote, Repository, git_hash
from rg_env.publish.hub.source import Source, find_licence, find_source


def preview(request: PushRequest) -> str:
    """The files that would be sent with their sizes, and the card. Sends nothing and needs no token.

    Raises:
        InputError: there is nothing to publish, or a name is invalid.
    """
    source = _source(request)
    files, more, notes = published_files(source, full=request.full), "", [*_missing(source)]
    if source.kind == "export":
        files = {path: file for path, file in files.items() if path == CURVE or "/" in path}
        more = " and the model's"
        notes.append(f"{source.folder} is exported first (rg-env export): the model's files are not known yet")
    licence = find_licence(source.base)
    if licence.license is None and source.base.on_hub:
        notes.append(f"the licence of {source.base.name} is looked up on upload")
    text = card(request, source, licence, list(files))
    check_secrets({**files, CARD: text.encode()})
    run = "0" * 64 if source.run is None else run_id(source.run)
    files = _with_marker({**files, CARD: text.encode()}, Marker(run, source.step, git_hash(text.encode())))
    sizes = {path: _size(content) for path, content in files.items()}
    target = request.repo_id + (", private" if request.private else "")
    target += f", branch {request.revision}" if request.revision else ""
    head = f"{len(files)} files{more}, {sum(sizes.values()) / 1e6:,.1f} MB, to {target}; nothing was sent"
    listed = [f"{size:>14,}  {path}" for path, size in sizes.items()]
    return "\n".join([head, *listed, "", *(f"({note})" for note in notes), text])


def push(request: PushRequest, say: Callable[[str], None] = print) -> str:
    """Publish, report progress with `say`, and return the address.

    Raises:
        InputError: there is nothing to publish; no token, or one without permission; the repository holds something
            else.
        ExportError: the model had to be exported, and a check failed.
        HubError: the upload did not finish; the same command resumes it.
    """
    source = _source(request)
    run = None if source.run is None else run_id(source.run)
    repository = Repository(request.repo_id, request.revision)
    try:
        remote = repository.read()
        if run is not None:  # before an export, which can take long
            _check_remote(request, remote, run)
        for note in _missing(source):
            say(note)
        with _exported(source, say) as model:
            return _send(request, model, repository, remote, say)
    except HubError as error:
        raise HubError(f"{error}; the same command resumes it: {request.command}") from error


def run_id(run: RunFolder) -> str:
    """The same for a run wherever its folder is and while it continues; different for every run.

    Hex SHA-256 of its rows and of the first line of its metrics, which contains times.
    """
    digest = hashlib.sha256(json.dumps(run.manifest().get("rows"), sort_keys=True).encode())
    digest.update(json.dumps(next(iter(run.metrics()), {}), sort_keys=True).encode())
    return digest.hexdigest()


def _source(request: PushRequest) -> Source:
    if problem := repo_problem(request.repo_id):
        raise InputError(f"--repo-id {one_line(request.repo_id, 100)!r} {problem}")
    if request.revision is not None and (problem := revision_problem(request.revision)):
        raise InputError(f"--revision {one_line(request.revision, 100)!r} {problem}")
    source = find_source(request.path)
    if request.full and (source.checkpoint is None or source.run is None):
        raise InputError(
            f"{source.folder} has no state that training can resume from: name a checkpoint-N of a run, or omit "
            "--optimizer-state full"
        )
    return source


def _missing(source: Source) -> Iterator[str]:
    """Why the card will lack results."""
    folder, run = source.folder, source.run
    if run is None:
        yield f"no run is known for {folder}, so its card has no results: push the run, or a model in the run's folder"
    elif source.step is None:
        name = f"checkpoint-N-{one_line(folder.name, 40)}"
        yield (
            f"the training step of {folder} is unknown, so its card has no results after training: rename it to "
            f"{run.path}/{name}"
        )


@contextmanager
def _exported(source: Source, say: Callable[[str], None]) -> Iterator[Source]:
    """The source as a model folder or adapters; shards, pickles and empty weights are exported first."""
    if source.kind != "export":
        yield source
        return
    from rg_env.publish.export.job import ExportRequest, export

    parent = source.folder.absolute().parent  # a disk with room for weights, unlike /tmp
    with tempfile.TemporaryDirectory(
        prefix=".rg-env-push-", dir=parent if os.access(parent, os.W_OK) else None
    ) as folder:
        model = find_source(export(ExportRequest(path=source.folder, out=Path(folder) / "model"), say))
        yield replace(model, step=source.step, run=source.run, checkpoint=source.checkpoint)


def _send(
    request: PushRequest, source: Source, repository: Repository, remote: Remote | None, say: Callable[[str], None]
) -> str:
    files = published_files(source, full=request.full)
    run = _weights_id(files) if source.run is None else run_id(source.run)
    _check_remote(request, remote, run)
    licence = find_licence(source.base, repository.api)
    text = card(request, source, licence, list(files)).encode()
    check_secrets({**files, CARD: text}, repository.token)

    pushed = remote.marker if remote else None
    if remote and pushed and remote.files.get(CARD, pushed.card) != pushed.card:
        say(f"{CARD} was edited on the Hub and stays as it is: delete it there to have it written again")
        files = _with_marker(files, Marker(run, source.step, pushed.card))
    else:
        files = _with_marker({**files, CARD: text}, Marker(run, source.step, git_hash(text)))
    if pushed and pushed.step is not None and source.step is not None and pushed.step > source.step:
        say(f"step {source.step} replaces the later step {pushed.step}")

    if remote is None:
        repository.create(private=request.private)
        say(f"created {request.repo_id}{' (private)' if request.private else ''}")
        if (remote := repository.read()) is None:
            raise HubError(f"the Hub does not have {request.repo_id}, which was just created")
    if remote.is_copy:
        repository.create_branch()
    replaced = set(remote.files) if remote.is_copy else set(pushed.files if pushed else ()) & set(remote.files)
    outdated = sorted(replaced - {*files, CARD})
    if outdated and not remote.is_copy:
        more = f" and {len(outdated) - 1} more" if len(outdated) > 1 else ""
        say(f"deleting what was pushed earlier and is no longer published: {outdated[0]}{more}")
    size = sum(map(_size, files.values()))
    say(f"sending {len(files)} files, {size / 1e6:,.1f} MB, to {repository.url}")
    message = f"Weights {run[:12]}" if source.step is None else f"Step {source.step} of run {run[:12]}"
    if not repository.commit(files, outdated, message=message, parent=remote.commit):
        say("everything was there already: nothing has changed")
    return repository.url


def _with_marker(files: Files, marker: Marker) -> Files:
    return {**files, MARKER: replace(marker, files=list(files)).to_json()}


def _check_remote(request: PushRequest, remote: Remote | None, run: str) -> None:
    """Raise `InputError` if something else would be overwritten, or something private published."""
    if remote is None:
        return
    if request.private and not remote.private:
        raise InputError(f"{request.repo_id} exists and is public: make it private in its settings, or choose another")
    if remote.is_copy or not remote.files or (remote.marker and remote.marker.run == run):
        return
    where = request.repo_id + (f" has a branch {request.revision} that" if request.revision else "")
    content = "another run" if remote.marker else f"other files ({one_line(min(remote.files), 60)} ...)"
    new = "" if request.revision is None else " that is new"
    raise InputError(
        f"{where} holds {content}, which is not overwritten: choose another --repo-id, or a branch by "
        f"--revision NAME{new}"
    )


def _weights_id(files: Files) -> str:
    """Identifies weights without a run: a hash of the names and contents of their files."""
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        if path.endswith(".safetensors") and isinstance(content, Path):
            with content.open("rb") as file:
                digest.update(path.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _size(content: Path | bytes) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size
