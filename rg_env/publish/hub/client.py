"""The Hugging Face Hub: what a repository holds, and one commit to it. Every error is one line, without tokens.

Files are uploaded by huggingface_hub's `create_commit`: large ones first, in chunks (Xet), then all of them in one
commit. So a repository never shows half an upload, and chunks that the Hub already has, including those of an
interrupted upload, are not sent again.
"""

import contextlib
import json
import logging
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import huggingface_hub
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token, set_client_factory
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils._http import default_client_factory

from rg_env.core.text import one_line
from rg_env.errors import HubError, InputError, RGEnvError
from rg_env.publish.hub.contents import Entry
from rg_env.publish.hub.marker import MARKER, Marker, read_marker
from rg_env.training.hub_uploads import LOGIN

TIMEOUTS = (10.0, 300.0)
"""Seconds to connect, and between two pieces of an answer. huggingface_hub itself would wait forever."""
_STORAGE_STATUS = re.compile(r"HTTP status \w+ error \((\d{3})")
"""The status in an error of hf_xet, which has it in the message only."""


@dataclass(frozen=True)
class Remote:
    """A repository, at one of its branches."""

    private: bool
    main: str
    """Commit of the main branch."""
    commit: str | None
    """Of the branch; None: there is no such branch yet."""
    files: dict[str, str]
    """Path → git's hash; of a branch that is not there yet: what it will begin with."""
    marker: Marker | None
    is_branch: bool = False
    """Whether it is another branch than the main one."""

    @property
    def is_copy(self) -> bool:
        """Whether it is a branch with nothing of its own: new, or left so by a push that broke off."""
        return self.is_branch and self.commit in (None, self.main)


class Hub:
    """The Hub, by the token of the user.

    Raises:
        InputError: there is no token, the network is switched off, or the address is not one to send it to.
    """

    def __init__(self) -> None:
        token = get_token()
        if not token:
            raise InputError(f"there is no Hugging Face token: {LOGIN}")
        if not token.isascii():
            raise InputError(f"the Hugging Face token has characters that no token has: {LOGIN}")
        if constants.HF_HUB_OFFLINE:
            raise InputError("HF_HUB_OFFLINE is set: unset it to upload")
        self.token: str = token
        self.endpoint: str = constants.ENDPOINT  # HF_ENDPOINT, or the Hub's
        if "@" in urlsplit(self.endpoint).netloc:  # it would be sent in the place of the token, and shown
            raise InputError("HF_ENDPOINT has a user in it (USER@): leave that out, the Hub takes a token")
        self.api = HfApi(endpoint=self.endpoint, token=token, library_name="rg-env")

    def url(self, repo_id: str, revision: str | None) -> str:
        return f"{self.endpoint}/{repo_id}" + (f"/tree/{revision}" if revision else "")

    def look(self, repo_id: str, revision: str | None) -> Remote | None:
        """What the repository holds; None: there is none, as far as this token may know.

        Raises:
            InputError: the token is refused.
            HubError: the Hub cannot be reached, or does not answer as it should.
        """
        with self._told(repo_id):
            try:
                main = self.api.model_info(repo_id, files_metadata=True)
            except RepositoryNotFoundError as error:
                if error.response.status_code == 401:  # as the Hub answers a token that it does not know
                    raise InputError(f"the Hub does not take the token (401): {LOGIN}") from error
                return None
            info: Any = main
            if revision is not None:
                try:
                    info = self.api.model_info(repo_id, revision=revision, files_metadata=True)
                except RevisionNotFoundError:
                    info = None
            files = {each.rfilename: each.blob_id for each in (info or main).siblings or ()}
            marker = self._marker(repo_id, info.sha) if info and MARKER in files else None
            commit, is_branch = info.sha if info else None, revision not in (None, "main")
            return Remote(bool(main.private), main.sha, commit, files, marker, is_branch)

    def _marker(self, repo_id: str, commit: str) -> Marker | None:
        with tempfile.TemporaryDirectory() as folder:
            file = self.api.hf_hub_download(repo_id, MARKER, revision=commit, local_dir=folder)
            return read_marker(Path(file).read_bytes())

    def create(self, repo_id: str, *, private: bool) -> None:
        """Make the repository. Raises as `look`, and `InputError`: the token may not, or somebody has that name."""
        with self._told(repo_id):
            self.api.create_repo(repo_id, private=private or None)  # None: as the organization has it by default

    def branch(self, repo_id: str, revision: str) -> None:
        """Make a branch, which begins as the main one. Raises as `create`."""
        with self._told(repo_id):
            self.api.create_branch(repo_id, branch=revision)

    def commit(
        self,
        repo_id: str,
        revision: str | None,
        entries: Sequence[Entry],
        deleted: Sequence[str],
        *,
        message: str,
        parent: str,
    ) -> bool:
        """Send files and take others away, in one commit on top of `parent`; none is made if all is as it should be.

        Returns whether one was made.

        Raises:
            InputError: the token may not write there.
            HubError: it did not finish; nothing in the repository has changed.
        """
        for each in entries:
            if isinstance(each.source, Path) and not each.source.is_file():
                raise HubError(f"{each.source} was taken away meanwhile")
        with self._told(repo_id):
            added = [CommitOperationAdd(each.path, each.source) for each in entries]
            # Xet recognizes the chunks of earlier uploads, not those of equal files that it sends at the same time.
            once = {each.upload_info.sha256: each for each in added}
            if len(once) < len(added):
                self.api.preupload_lfs_files(repo_id, once.values(), revision=revision, free_memory=False)
            operations = [*added, *(CommitOperationDelete(path, is_folder=False) for path in deleted)]
            made = self.api.create_commit(
                repo_id, operations, commit_message=message, revision=revision, parent_commit=parent
            )
            return bool(made.oid != parent)

    @contextmanager
    def _told(self, repo_id: str) -> Iterator[None]:
        """Within: errors of the Hub and of the network are one line; the library keeps quiet, and has deadlines."""
        with _quiet(), _deadlines():
            try:
                yield
            except (InputError, HubError):
                raise
            except Exception as error:
                if (told := self._line(error, repo_id)) is None:
                    raise
                raise told from error

    def _line(self, error: Exception, repo_id: str) -> RGEnvError | None:
        links = list(_chain(error))
        for link in links:
            if isinstance(link, HfHubHTTPError):
                status = link.response.status_code
                if link.response.request.method == "PUT":  # a large file, without Xet
                    return HubError(f"the Hub's storage answered {status}")
                return self._of_status(status, link.server_message or "", repo_id)
            if isinstance(link, OSError) and link.filename:
                return HubError(f"{link.filename} cannot be read: {link.strerror}")
            if match := _STORAGE_STATUS.search(str(link)):
                if "/xet-write-token/" in str(link):
                    return self._of_status(int(match[1]), "", repo_id)
                return HubError(f"the Hub's storage answered {match[1]}")
        if _may_have_arrived(links):
            return HubError(f"the connection to {self.endpoint} broke off while it made the commit", unsure=True)
        strange = f"{self.endpoint} does not answer as the Hub does"
        if _has(links, json.JSONDecodeError) or "error decoding response body" in str(error):
            return HubError(f"{strange}: is HF_ENDPOINT right?")
        if _has(links, httpx2.TimeoutException, TimeoutError):
            return HubError(f"{self.endpoint} does not answer: is the network there?")
        if _has(links, httpx2.RequestError, ConnectionError):
            return HubError(f"the connection to {self.endpoint} failed or broke off: is the network there?")
        if isinstance(error, ValueError | RuntimeError):  # what the library makes of strange answers
            return HubError(f"{strange}: {self._clean(error)}")
        if _is_of_library(error):  # it reads answers without checking them
            return HubError(f"{strange}: {type(error).__name__}, {self._clean(error)}")
        return None

    def _of_status(self, status: int, message: str, repo_id: str) -> RGEnvError:
        said = self._clean(message)
        because = f": {said}" if said else ""
        if status == 401:
            return InputError(f"the Hub does not take the token (401){because}: {LOGIN}")
        if status == 403:
            return InputError(
                f"the token may not write to {repo_id} (403){because}: take one with write access to it "
                "(huggingface.co/settings/tokens), or another --repo-id"
            )
        if status == 409:
            return InputError(
                f"{repo_id} exists already, and the token may not see it (409){because}: take another --repo-id, or "
                "the token of its owner"
            )
        if status == 412:
            return HubError(f"{repo_id} was changed by somebody else meanwhile")
        if status == 429:
            return HubError("the Hub asks to wait before more is sent (429)")
        if status == 404:
            return HubError(f"the Hub has no {repo_id} any more (404){because}")
        return HubError(f"the Hub answered {status}{because}")

    def _clean(self, text: object) -> str:
        """The message of a server in one line, without the token, and without queries of URLs, which may be signed."""
        return one_line(re.sub(r"(https?://[^\s?]+)\?\S*", r"\1", str(text)).replace(self.token, "***"))


def _has(links: Sequence[BaseException], *kinds: type[BaseException]) -> bool:
    return any(isinstance(link, kinds) for link in links)


def _is_of_library(error: Exception) -> bool:
    """Whether it was raised in huggingface_hub itself."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and str(frames[-1][0].f_globals.get("__name__")).partition(".")[0] == "huggingface_hub"


def _may_have_arrived(links: Sequence[BaseException]) -> bool:
    """Whether an answer is missing to the request that changes the repository."""
    for link in links:
        with contextlib.suppress(RuntimeError):  # of httpx2, where an error belongs to no request
            url = str(getattr(getattr(link, "request", None), "url", ""))
            if re.search(r"/api/models/[^/]+/[^/]+/commit/", url):
                return True
    return False


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(20):  # chains can be circles
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__


@contextmanager
def _quiet() -> Iterator[None]:
    """Within: no progress bars but on a terminal, and no warnings, which quote addresses that are as good as a key."""
    logger = logging.getLogger("huggingface_hub")
    level, utils = logger.level, huggingface_hub.utils
    hidden = not sys.stderr.isatty() and not utils.are_progress_bars_disabled()
    logger.setLevel(logging.CRITICAL)
    if hidden:
        utils.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if hidden:
            with contextlib.suppress(Warning):  # HF_HUB_DISABLE_PROGRESS_BARS says otherwise
                utils.enable_progress_bars()


@contextmanager
def _deadlines() -> Iterator[None]:
    """Within: requests of the library have time-outs."""
    set_client_factory(_client_with_deadlines)
    try:
        yield
    finally:
        set_client_factory(default_client_factory)


def _client_with_deadlines() -> httpx2.Client:
    client: httpx2.Client = default_client_factory()
    client.event_hooks["request"].append(_set_deadline)  # methods of the library pass timeout=None to their requests
    return client


def _set_deadline(request: httpx2.Request) -> None:
    if not any(request.extensions.get("timeout", {}).values()):
        connect, read = TIMEOUTS
        request.extensions = {**request.extensions, "timeout": httpx2.Timeout(read, connect=connect).as_dict()}
