"""Publishing, from beginning to end: found, exported where needed, looked up, sent in one commit."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rg_env.core.hub_names import repo_problem, revision_problem
from rg_env.core.text import one_line
from rg_env.errors import HubError, InputError, RGEnvError
from rg_env.publish.hub.card import CARD, CURVE, card
from rg_env.publish.hub.contents import Entry, check_secrets, entries
from rg_env.publish.hub.licence import licence_of
from rg_env.publish.hub.marker import MARKER, Marker, git_hash, weights_id
from rg_env.publish.hub.record import Record, read_record
from rg_env.publish.hub.source import Source, find
from rg_env.publish.hub.subject import Subject
from rg_env.training.hub_uploads import PushRequest

if TYPE_CHECKING:
    from rg_env.publish.hub.client import Hub, Remote

_UNTOUCHED = {".gitattributes"}
"""What the Hub puts into a new repository."""


def preview(asked: PushRequest) -> str:
    """What would be sent: each file with its size, and the card. Nothing is sent, and no token needed.

    Raises:
        InputError: there is nothing that can be published, or the names cannot be.
    """
    subject = _subject(asked, find(asked.path))
    found, more, notes = entries(subject), "", [f"({each})" for each in _doubts(subject)]
    if subject.source.kind == "export":  # what is in the folder now is not what is sent
        found, more = [each for each in found if each.path == CURVE or "/" in each.path], " and the model's"
        notes.append(
            f"({subject.source.folder} is exported first (rg-env export): the model's files are not known yet)"
        )
    check_secrets(found)
    text = card(subject, [each.path for each in found])
    run = subject.record.id if subject.record else "0" * 64  # as long as what the weights are hashed to
    sent, _ = _with_card(subject, found, run, text.encode())
    private = ", private" if asked.private else ""
    branch = f", branch {asked.revision}" if asked.revision else ""
    if _licence_is_on_hub(subject):
        notes.append(f"(the licence of {subject.base.name} is looked up when it is sent)")
    total = f"{len(sent)} files{more}, {sum(each.size for each in sent) / 1e6:,.1f} MB"
    head = f"{total}, to {asked.repo_id}{private}{branch}; nothing was sent"
    return "\n".join([head, *(f"{each.size:>14,}  {each.path}" for each in sent), "", *notes, text])


def push(asked: PushRequest, say: Callable[[str], None] = print) -> str:
    """Publish it; tell what is done by `say`, and return the address.

    Raises:
        InputError: there is nothing that can be published; no token, or one that may not; the repository holds
            something else.
        ExportError: it had to be exported, and that failed a check.
        HubError: the upload did not finish; nothing in the repository has changed, and the same command goes on.
    """
    source = find(asked.path)
    subject = _subject(asked, source)
    from rg_env.publish.hub.client import Hub

    hub = Hub()
    try:
        remote = hub.look(asked.repo_id, asked.revision)
        if subject.record is not None:  # told before an export, which can take long
            _check_remote(asked, remote, subject.record.id)
            for note in subject.record.notes:
                say(note)
        for note in _doubts(subject):
            say(note)
        with _exported(source, say) as exported:
            return _send(asked, replace(subject, source=exported), hub, remote, say)
    except HubError as error:
        changed = "and whether it arrived is not known" if error.unsure else f"no file of {asked.repo_id} was changed"
        raise HubError(f"{error}; {changed}. This goes on: {asked.command}", unsure=error.unsure) from error


def _subject(asked: PushRequest, source: Source) -> Subject:
    if problem := repo_problem(asked.repo_id):
        raise InputError(f"--repo-id {one_line(asked.repo_id, 100)!r} {problem}")
    if asked.revision is not None and (problem := revision_problem(asked.revision)):
        raise InputError(f"--revision {one_line(asked.revision, 100)!r} {problem}")
    if asked.optimizer_state == "full" and (source.checkpoint is None or source.run is None):
        raise InputError(
            f"{source.folder} has no state that training goes on from: name a checkpoint-N of a run, or leave out "
            "--optimizer-state full"
        )
    record = read_record(source.run) if source.run else None
    subject = Subject(asked.repo_id, source, record, asked.optimizer_state, asked.revision)
    return replace(subject, licence=licence_of(subject.base.name, subject.base.folder))


def _doubts(subject: Subject) -> Iterator[str]:
    """Why a card says less than its reader would want to know: told to the one who publishes, in time."""
    folder, run = subject.source.folder, subject.source.run
    if subject.record is None:
        yield f"no run is known of {folder}, so its card has no results: push the run, or a model in the run's folder"
    elif subject.source.step is None:
        name = f"checkpoint-N-{one_line(folder.name, 40)}"
        yield f"nothing tells the step of {folder}, so its card has no results after training: call it {run}/{name}"


def _with_card(
    subject: Subject, found: list[Entry], run: str, text: bytes, edited: str | None = None
) -> tuple[list[Entry], Marker]:
    """All that is sent, and its marker. `edited`: git's hash of the card on the Hub, if that stays."""
    sent = found if edited else [*found, Entry(CARD, text)]
    marker = Marker(run, subject.source.step, edited or git_hash(text), tuple(each.path for each in sent))
    return [*sent, Entry(MARKER, marker.as_json())], marker


def _licence_is_on_hub(subject: Subject) -> bool:
    """Whether only the card of the base model can tell it."""
    return subject.licence.id is None and subject.base.on_hub


@contextmanager
def _exported(source: Source, say: Callable[[str], None]) -> Iterator[Source]:
    """The source, with a model folder or adapters; made first where it has shards, pickles or empty weights."""
    if source.kind != "export":
        yield source
        return
    from rg_env.publish.export.job import Asked as ToExport
    from rg_env.publish.export.job import export

    beside = source.folder.absolute().parent  # where there is room for weights, and not in memory
    with tempfile.TemporaryDirectory(
        prefix=".rg-env-push-", dir=beside if os.access(beside, os.W_OK) else None
    ) as folder:
        out = export(ToExport(path=source.folder, out=Path(folder) / "model"), say)
        yield replace(find(out), step=source.step, run=source.run, checkpoint=source.checkpoint)


def _send(asked: PushRequest, subject: Subject, hub: "Hub", remote: "Remote | None", say: Callable[[str], None]) -> str:
    found = entries(subject)
    run = _identity(subject.record, found)
    _check_remote(asked, remote, run)
    if _licence_is_on_hub(subject):
        subject = replace(subject, licence=licence_of(subject.base.name, hub=hub.api))
    text = card(subject, [each.path for each in found]).encode()
    check_secrets([*found, Entry(CARD, text)], hub.token)
    if edited := _edited(remote):
        say(f"{CARD} was edited on the Hub and stays as it is: take it away there to have it written anew")
    sent, marker = _with_card(subject, found, run, text, edited)
    there = remote.marker.step if remote and remote.marker and not remote.is_copy else None
    if there is not None and subject.source.step is not None and there > subject.source.step:
        say(f"step {subject.source.step} takes the place of a later one, step {there}")
    remote = _made(asked, hub, remote, say)
    gone = _outdated(remote, {each.path for each in sent} | ({CARD} if edited else set()))
    if gone and not remote.is_copy:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        say(f"taking away what was pushed earlier and is not now: {gone[0]}{more}")
    total = sum(each.size for each in sent)
    say(f"sending {len(sent)} files, {total / 1e6:,.1f} MB, to {hub.url(asked.repo_id, asked.revision)}")
    step = "" if subject.source.step is None else f"step {subject.source.step} of "
    parent = remote.commit or remote.main
    message = f"{step[:1].upper()}{step[1:]}run {run[:12]}" if step else f"Weights {run[:12]}"
    try:
        changed = hub.commit(asked.repo_id, asked.revision, sent, gone, message=message, parent=parent)
    except HubError as error:
        if not error.unsure:
            raise
        _check_arrived(asked, hub, parent, marker, error)
        changed = True
    if not changed:
        say("all of it was there already: nothing has changed")
    return hub.url(asked.repo_id, asked.revision)


def _identity(record: Record | None, found: list[Entry]) -> str:
    if record is not None:
        return record.id
    weights = [each for each in found if each.path.endswith(".safetensors")]
    return weights_id([(each.path, _sha256(each.source)) for each in weights])


def _sha256(source: Path | bytes) -> str:
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_remote(asked: PushRequest, remote: "Remote | None", run: str) -> None:
    """Raise `InputError` where something else would be overwritten, or what is private shown to all."""
    if remote is None:
        return
    if asked.private and not remote.private:
        raise InputError(f"{asked.repo_id} exists and is public: make it private in its settings, or take another")
    others = set(remote.files) - _UNTOUCHED
    if remote.is_copy or not others or (remote.marker is not None and remote.marker.run == run):
        return
    where = asked.repo_id + (f" has a branch {asked.revision} that" if asked.revision else "")
    what = "another run" if remote.marker else f"other files ({one_line(min(others), 60)} ...)"
    raise InputError(
        f"{where} holds {what}, which is not overwritten: take another --repo-id, or a branch of its own by "
        f"--revision NAME{'' if asked.revision is None else ' that is new'}"
    )


def _made(asked: PushRequest, hub: "Hub", remote: "Remote | None", say: Callable[[str], None]) -> "Remote":
    """The repository, and the branch, which are there now."""
    if remote is None:
        try:
            hub.create(asked.repo_id, private=asked.private)
        except InputError:
            if hub.look(asked.repo_id, asked.revision) is not None:  # another push made it just now
                raise HubError(f"{asked.repo_id} was made by somebody else meanwhile") from None
            raise
        say(f"made {asked.repo_id}{' (private)' if asked.private else ''}")
    if asked.revision not in (None, "main") and (remote is None or remote.commit is None):
        assert asked.revision is not None
        hub.branch(asked.repo_id, asked.revision)
        remote = None
    found = remote or hub.look(asked.repo_id, asked.revision)
    if found is None:
        raise HubError(f"the Hub has no {asked.repo_id}, though it was made just now")
    return found


def _check_arrived(asked: PushRequest, hub: "Hub", parent: str, marker: Marker, error: HubError) -> None:
    """Look what became of a commit whose answer is lost. Raises `HubError`: it is not there, or that is unknown."""
    try:
        found = hub.look(asked.repo_id, asked.revision)
    except RGEnvError:
        raise error from None
    if found is None or found.commit in (None, parent):
        raise HubError(str(error)) from error
    if found.marker != marker:
        raise HubError(f"{asked.repo_id} was changed by somebody else meanwhile") from error


def _edited(remote: "Remote | None") -> str | None:
    """Git's hash of the card that was pushed, where another one stands now."""
    if remote is None or remote.is_copy or remote.marker is None:
        return None
    return remote.marker.card if remote.files.get(CARD) not in (None, remote.marker.card) else None


def _outdated(remote: "Remote", sent: set[str]) -> list[str]:
    """What is to be taken away: what an earlier push put there, and of a new branch all that it began with."""
    ours = set(remote.files) - _UNTOUCHED if remote.is_copy else set(remote.marker.files if remote.marker else ())
    return sorted((ours & set(remote.files)) - sent)
