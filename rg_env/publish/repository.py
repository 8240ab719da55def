"""Read a branch of a model repository on the Hugging Face Hub, and commit to it.

huggingface_hub uploads large files first (Xet), then commits all files at once, so a repository never shows a partial
upload. Data already on the Hub, for example from an interrupted upload, is not sent again. Every error message is a
single line and contains no token.

`rg_env.json` (`Marker`) records the run that a repository belongs to and the files that were pushed. A later push uses
the marker to decide whether it may write to the repository and which files to delete.
"""

import contextlib
import hashlib
import logging
import re
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token, set_client_factory
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import disable_progress_bars
from pydantic import BaseModel, ValidationError

from rg_env.core.hub import LOGIN
from rg_env.core.text import one_line
from rg_env.errors import HubError, InputError, RGEnvError

CARD, MARKER = "README.md", "rg_env.json"
TIMEOUT_S = 300.0
"""A request fails after this many seconds without data. huggingface_hub itself would wait forever."""
_REFUSALS: dict[int, tuple[type[RGEnvError], str]] = {
    401: (InputError, f"the Hub rejected the token{{because}}: {LOGIN}"),
    403: (
        InputError,
        "the token may not write to {repo}{because}: use one with write access (huggingface.co/settings/tokens), or "
        "another --repo-id",
    ),
    404: (HubError, "the Hub does not have {repo}{because}"),
    409: (InputError, "{repo} already exists, but the token has no access to it{because}"),
    412: (HubError, "{repo} was changed by someone else during the upload{because}"),
}
_BY_HUB = ".gitattributes"
"""File created by the Hub in a new repository."""


class Marker(BaseModel):
    """Contents of rg_env.json."""

    run: str
    """Identifier of the run or the weights (see `push`)."""
    step: int | None
    card: str
    """Git hash of the pushed card; a card with a different hash has been edited on the Hub."""
    files: list[str]
    """Pushed paths."""
    format: Literal["rg_env.pushed/1"] = "rg_env.pushed/1"


@dataclass(frozen=True)
class Remote:
    """Current state of the branch."""

    private: bool
    commit: str
    files: Mapping[str, str | None]
    """Path -> Git hash."""
    marker: Marker | None
    is_copy: bool
    """Whether all files are from the main branch, because this branch does not exist yet or has not been pushed to."""


class Repository:
    """A branch of a repository, accessed with the user's token. The branch need not exist yet.

    Raises:
        InputError: the token is missing, HF_HUB_OFFLINE is set, or HF_ENDPOINT contains a username.
    """

    def __init__(self, repo_id: str, revision: str | None):
        token = get_token()
        if not token:
            raise InputError(f"no Hugging Face token found: {LOGIN}")
        if not token.isascii():
            raise InputError(f"the Hugging Face token contains invalid characters: {LOGIN}")
        if constants.HF_HUB_OFFLINE:
            raise InputError("HF_HUB_OFFLINE is set: unset it to upload")
        self.token: str = token
        self.endpoint: str = constants.ENDPOINT  # HF_ENDPOINT, or the Hub's URL
        if "@" in urlsplit(self.endpoint).netloc:  # the user name would be sent instead of the token, and printed
            raise InputError(
                "HF_ENDPOINT contains a username (USER@), which would be sent instead of the token: remove it"
            )
        self.repo_id, self.revision = repo_id, revision
        self.url = f"{self.endpoint}/{repo_id}" + (f"/tree/{revision}" if revision else "")
        self.api = HfApi(endpoint=self.endpoint, token=token, library_name="rg-env")
        logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # its warnings quote signed URLs
        if not sys.stderr.isatty():
            disable_progress_bars()
        set_client_factory(lambda: httpx2.Client(follow_redirects=True, timeout=TIMEOUT_S))

    def read(self) -> Remote | None:
        """Read the branch; None if the repository does not exist or is not visible to this token.

        Raises:
            InputError: the token was rejected.
            HubError: the Hub cannot be reached, or the response is invalid.
        """
        options: dict[str, Any] = {"files_metadata": True, "timeout": TIMEOUT_S}
        with self._errors():
            try:
                main = self.api.model_info(self.repo_id, **options)
            except RepositoryNotFoundError as error:
                if error.response.status_code == 401:  # the Hub's response to an unknown token
                    raise
                return None
            branch = main
            if self._is_branch:
                with contextlib.suppress(RevisionNotFoundError):  # the branch will start as a copy of main
                    branch = self.api.model_info(self.repo_id, revision=self.revision, **options)
            if branch.sha is None:
                raise ValueError("the repository has no commits")
            files = {each.rfilename: each.blob_id for each in branch.siblings or () if each.rfilename != _BY_HUB}
            is_copy = self._is_branch and branch.sha == main.sha
            marker = self._marker(branch.sha) if MARKER in files and not is_copy else None
            return Remote(bool(main.private), branch.sha, files, marker, is_copy)

    def create(self, *, private: bool) -> None:
        """Create the repository. Raises the same errors as `read`, and `InputError` if the token lacks permission or
        the name is taken."""
        with self._errors():
            # None selects the organization's default visibility.
            self.api.create_repo(self.repo_id, private=private or None)

    def create_branch(self) -> None:
        """Create the branch as a copy of main. Raises the same errors as `read`."""
        if self.revision is not None and self._is_branch:
            with self._errors():
                self.api.create_branch(self.repo_id, branch=self.revision, exist_ok=True)

    def commit(self, files: Mapping[str, Path | bytes], deleted: Collection[str], *, message: str, parent: str) -> bool:
        """Send files and delete others in one commit on top of `parent`. Returns whether anything changed.

        Raises:
            InputError: the token has no write access.
            HubError: the upload did not finish.
        """
        with self._errors():
            added = [CommitOperationAdd(path, content) for path, content in files.items()]
            # Xet deduplicates against earlier uploads, but not identical files within one upload.
            once = {each.upload_info.sha256: each for each in added}
            if len(once) < len(added):
                self.api.preupload_lfs_files(self.repo_id, once.values(), revision=self.revision, free_memory=False)
            operations = [*added, *(CommitOperationDelete(path, is_folder=False) for path in deleted)]
            options = {"commit_message": message, "revision": self.revision, "parent_commit": parent}
            return bool(self.api.create_commit(self.repo_id, operations, **options).oid != parent)

    @property
    def _is_branch(self) -> bool:
        return self.revision not in (None, "main")

    def _marker(self, commit: str) -> Marker | None:
        with tempfile.TemporaryDirectory() as folder:
            file = self.api.hf_hub_download(self.repo_id, MARKER, revision=commit, local_dir=folder)
            with contextlib.suppress(ValidationError):  # not written by rg_env
                return Marker.model_validate_json(Path(file).read_bytes())
        return None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert every error from the Hub, the network or huggingface_hub to an `RGEnvError` with a one-line
        message."""
        try:
            yield
        except Exception as error:
            answer = next((link for link in _chain(error) if isinstance(link, HfHubHTTPError)), None)
            if answer is not None:
                raise self._refusal(answer) from error
            if isinstance(error, OSError) and error.filename:
                raise HubError(f"{error.filename} cannot be read: {error.strerror}") from error
            reason = one_line(f"{type(error).__name__}: {self._clean(str(error))}")
            remedy = "check the network and HF_ENDPOINT"
            raise HubError(f"uploading to {self.endpoint} failed ({reason}): {remedy}") from error

    def _refusal(self, answer: HfHubHTTPError) -> RGEnvError:
        status, reason = answer.response.status_code, one_line(self._clean(answer.server_message or ""))
        kind, message = _REFUSALS.get(status, (HubError, "the Hub responded with an error{because}"))
        because = f" ({status}{': ' if reason else ''}{reason})"
        return kind(message.format(repo=self.repo_id, because=because))

    def _clean(self, message: str) -> str:
        """`message` without the token and without the query strings of URLs, which may contain signatures."""
        return re.sub(r"(https?://[^\s?]+)\?\S*", r"\1", message).replace(self.token, "***")


def _chain(error: BaseException) -> Iterator[BaseException]:
    for _ in range(20):  # chains can be circular
        yield error
        if (cause := error.__cause__ or error.__context__) is None:
            return
        error = cause


def git_hash(content: bytes) -> str:
    """Git hash of a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
