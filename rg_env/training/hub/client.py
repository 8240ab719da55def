"""The Hugging Face Hub: what a repository holds, and one commit to it. Every error is one line, without tokens.

Files go up by huggingface_hub's own `create_commit`: large ones first, each under its hash, then all of them in one
commit. So a repository never shows half an upload, and what is there already (of an upload that broke off, too) is not
sent again; where the Hub stores a file in chunks (Xet), nor are its chunks.
"""

import contextlib
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

import huggingface_hub
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from rg_env.core.checks import one_line
from rg_env.errors import HubError, InputError, RGEnvError
from rg_env.training.hub.contents import Entry
from rg_env.training.hub.marker import MARKER, Marker, read_marker

LOGIN = "HF_TOKEN in .env, or `hf auth login` (a token that may write: huggingface.co/settings/tokens)"
TIMEOUTS = (10.0, 300.0)
"""Seconds to connect, and between two pieces of an answer: without them a dead server is waited for without end."""


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
            added = [CommitOperationAdd(each.path, _as_given(each.source)) for each in entries]
            # Weights that a checkpoint has, too, would be sent twice at once: asked for before either is there.
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
        for link in _chain(error):
            if isinstance(link, HfHubHTTPError) and link.response is not None:
                return self._of_status(link, repo_id)
            if isinstance(link, OSError) and link.filename:
                return HubError(f"{link.filename} cannot be read: {link.strerror}")
        if _may_have_arrived(error):
            return HubError(f"the connection to {self.endpoint} broke off while it made the commit", unsure=True)
        kinds = {kind.__name__ for link in _chain(error) for kind in type(link).__mro__ if _is_known(kind)}
        strange = f"{self.endpoint} does not answer as the Hub does"
        if "JSONDecodeError" in kinds:
            return HubError(f"{strange}: is HF_ENDPOINT right?")
        if kinds & {"Timeout", "TimeoutError", "TimeoutException"}:
            return HubError(f"{self.endpoint} does not answer: is the network there?")
        if kinds & {"ConnectionError", "NetworkError", "ProtocolError", "RequestException", "ProxyError", "SSLError"}:
            return HubError(f"the connection to {self.endpoint} failed or broke off: is the network there?")
        if isinstance(error, ValueError | RuntimeError):  # what the library makes of strange answers
            return HubError(f"{strange}: {self._clean(error)}")
        if _is_of_library(error):  # it takes what it wants out of an answer, whatever that is
            return HubError(f"{strange}: {type(error).__name__}, {self._clean(error)}")
        return None

    def _of_status(self, error: HfHubHTTPError, repo_id: str) -> RGEnvError:
        status = error.response.status_code
        if error.response.request is not None and error.response.request.method == "PUT":  # by an address for one file
            return HubError(f"the Hub's storage answered {status}")
        said = self._clean(error.server_message or "")
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
        """What a server said, in a line; a token that it repeats is not shown."""
        return one_line(str(text).replace(self.token, "***"))


def _as_given(source: Path | bytes) -> str | bytes:
    return source if isinstance(source, bytes) else str(source)


def _is_known(kind: type) -> bool:
    """Whether a class of errors is of the HTTP library itself: below it a refused connection is a kind of time-out."""
    return kind.__module__.partition(".")[0] in ("requests", "httpx", "builtins")


def _is_of_library(error: Exception) -> bool:
    """Whether it was raised in huggingface_hub itself."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and str(frames[-1][0].f_globals.get("__name__")).partition(".")[0] == "huggingface_hub"


def _may_have_arrived(error: Exception) -> bool:
    """Whether an answer is missing to the request that changes the repository."""
    for link in _chain(error):
        with contextlib.suppress(RuntimeError):  # httpx's, where an error belongs to no request
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
    """Within: requests have time-outs. Releases from 1.0 on have their own."""
    configure = getattr(huggingface_hub, "configure_http_backend", None)
    if configure is None:
        yield
        return
    import requests

    class Session(requests.Session):
        def request(self, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("timeout") is None:
                kwargs["timeout"] = TIMEOUTS
            return super().request(*args, **kwargs)

    configure(Session)
    try:
        yield
    finally:
        configure()
