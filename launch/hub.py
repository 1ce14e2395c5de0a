"""The model hub and its cache on disk: one place that knows both.

The hub is reached through huggingface_hub (endpoint from HF_ENDPOINT, token from a file). The cache has
the layout every Hugging Face tool shares: `models--ORG--NAME/{blobs,refs,snapshots/<commit>}`. Nothing
here imports torch, and huggingface_hub only inside functions (it costs 0.2 s to import).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from launch.errors import ConfigError, SparkError, Unavailable
from launch.locks import COMMIT_RE, LockedFile

if TYPE_CHECKING:
    from huggingface_hub import HfApi

DEFAULT_ENDPOINT = "https://huggingface.co"
T = TypeVar("T")


@dataclass(frozen=True)
class Repo:
    """One repository at one commit, and the preset key that names it (`target` or `draft`)."""

    repo: str
    revision: str
    role: str = "target"

    def __post_init__(self) -> None:
        require_commit(self.revision, f"{self.role}.revision")

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision[:8]}"


@dataclass(frozen=True)
class Hub:
    """Where to ask: endpoint URL, token (or None), cache root, patience."""

    endpoint: str
    cache: Path
    token: str | None = None
    attempts: int = 5
    wait: float = 1.0  # seconds before the first retry, doubled up to 8 s

    def folder(self, repo: str) -> Path:
        """`models--ORG--NAME` below the cache root."""
        return self.cache / ("models--" + repo.replace("/", "--"))

    def snapshot(self, repo: Repo) -> Path:
        """Where the files of `repo` lie once they are pulled."""
        return self.folder(repo.repo) / "snapshots" / repo.revision

    def api(self) -> HfApi:
        """A client bound to this endpoint and token (never the ambient ones)."""
        from huggingface_hub import HfApi

        return HfApi(endpoint=self.endpoint, token=self.token or False, library_name="sparkserve")


@dataclass(frozen=True)
class RepoInfo:
    """What the hub says of a repository at a commit."""

    name: str  # the present name: differs from the asked one when the repository moved
    license: str | None
    gated: bool


def require_commit(revision: str, key: str) -> None:
    """Refuse branches and tags: they move under the user (facts 4, pain 14)."""
    if not COMMIT_RE.match(revision):
        raise ConfigError(
            f"{key} = {revision!r} is not a commit: give the 40 hex digits of one (a branch or tag moves)"
        )


def default_cache() -> Path:
    """The hub cache in use: HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub."""
    if value := os.environ.get("HF_HUB_CACHE"):
        return Path(value).expanduser().absolute()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return Path(home).expanduser().absolute() / "hub"


def read_token(token_file: Path | None) -> str | None:
    """The token: from `token_file`, HF_TOKEN_PATH, or huggingface_hub's own file. Never from argv.

    ConfigError when a named file is missing, empty or readable by others.
    """
    if token_file is None:
        from huggingface_hub import get_token

        return get_token()
    try:
        mode = token_file.stat().st_mode
        token = token_file.read_text().strip()
    except OSError as e:
        raise ConfigError(f"token file {token_file}: {e.strerror}; give a file that holds the token") from e
    if mode & 0o077:
        raise ConfigError(f"token file {token_file} is readable by others: chmod 600 {token_file}")
    if not token or len(token.split()) != 1:
        raise ConfigError(f"token file {token_file} does not hold one token")
    return token


def open_hub(
    *, endpoint: str | None = None, cache: Path | None = None, token_file: Path | None = None
) -> Hub:
    """The hub as the environment describes it, with explicit choices on top."""
    url = (endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"HF_ENDPOINT = {url!r} is not an http(s) URL")
    return Hub(endpoint=url, cache=(cache or default_cache()).absolute(), token=read_token(token_file))


def offline() -> bool:
    """Whether HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) forbids the network, read now, not at import."""
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in {"1", "ON", "YES", "TRUE"}


def describe(error: Exception, repo: Repo, hub: Hub) -> SparkError:
    """Turn an error of the hub client into one line that names the preset key and the mend."""
    from huggingface_hub import errors as hf

    key = repo.role
    if isinstance(error, hf.RevisionNotFoundError):
        return ConfigError(
            f"{key}.revision {repo.revision} is not in {repo.repo} (history rewritten, or a typing error); "
            f"choose another and run `sparkserve pin`"
        )
    if isinstance(error, hf.GatedRepoError):
        return Unavailable(
            f"{key}.repo {repo.repo} is gated: accept its terms on the hub, then give --token-file"
        )
    if isinstance(error, hf.RepositoryNotFoundError):
        return ConfigError(
            f"{key}.repo {repo.repo} is not on {hub.endpoint}, or is private; correct the name, or give --token-file"
        )
    if isinstance(error, hf.EntryNotFoundError):
        return ConfigError(f"{key}: a file of {repo} is not on {hub.endpoint}: {_first_line(error)}")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return Unavailable(
            f"{hub.endpoint} refused {repo} (HTTP {status}): give --token-file with a token that may read it"
        )
    if status is not None:
        return Unavailable(
            f"{hub.endpoint} answered HTTP {status} for {repo}; try again later, or set HF_ENDPOINT"
        )
    return Unavailable(
        f"{hub.endpoint} does not answer for {repo} ({type(error).__name__}: {_first_line(error)}); "
        "check the network, or set HF_ENDPOINT to a mirror"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:160]


def transient(error: Exception) -> bool:
    """Whether trying again can help: network faults and 408, 429, 5xx."""
    import httpx

    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return status in (408, 429) or status >= 500
    return isinstance(error, httpx.TransportError)


def retry_after(error: Exception) -> float | None:
    """Seconds of a `Retry-After` header, capped at two minutes; None without one."""
    value = getattr(getattr(error, "response", None), "headers", {}).get("retry-after", "")
    return min(float(value), 120.0) if value.isdigit() else None


def with_retries(
    hub: Hub, repo: Repo, call: Callable[[], T], *, sleep: Callable[[float], None] = time.sleep
) -> T:
    """Run `call`; repeat transient failures `hub.attempts` times in all, honouring Retry-After.

    Raises a SparkError made by `describe`; OSErrors that are not the network's pass through.
    """
    import httpx
    from huggingface_hub.errors import HfHubHTTPError

    if offline():
        raise Unavailable(
            f"{repo} is not complete in {hub.cache} and HF_HUB_OFFLINE is set; unset it, or pull it once online"
        )
    pause = hub.wait
    for attempt in range(1, hub.attempts + 1):
        try:
            return call()
        except (HfHubHTTPError, httpx.TransportError) as e:
            if attempt == hub.attempts or not transient(e):
                raise describe(e, repo, hub) from e
            asked = retry_after(e)
            sleep(pause if asked is None else asked)
            pause = min(pause * 2, 8.0)
        except (ValueError, KeyError, TypeError, AssertionError) as e:
            # A proxy's log-in page, or a mirror that does not speak the hub's API.
            raise Unavailable(
                f"{hub.endpoint} does not answer as a model hub for {repo} ({type(e).__name__}); "
                "check HF_ENDPOINT and the proxy"
            ) from e
    raise AssertionError("unreachable")


def repo_info(hub: Hub, repo: Repo, *, sleep: Callable[[float], None] = time.sleep) -> RepoInfo:
    """Ask for `repo` at its commit. SparkError when it is not there or the hub does not answer."""
    ask = partial(hub.api().model_info, repo.repo, revision=repo.revision, timeout=30)
    info = with_retries(hub, repo, ask, sleep=sleep)
    if info.sha != repo.revision:
        raise ConfigError(
            f"{hub.endpoint} answered commit {info.sha} for {repo.repo}@{repo.revision}: not a faithful mirror"
        )
    card = info.card_data
    license_ = card and (card.get("license_name") or card.get("license"))
    return RepoInfo(name=info.id, license=str(license_) if license_ else None, gated=bool(info.gated))


def list_files(hub: Hub, repo: Repo, *, sleep: Callable[[float], None] = time.sleep) -> list[LockedFile]:
    """Files of `repo` at its commit with size, and SHA-256 (LFS) or git blob id (the others)."""
    from huggingface_hub.hf_api import RepoFile

    def ask() -> list[LockedFile]:
        tree = hub.api().list_repo_tree(repo.repo, revision=repo.revision, recursive=True)
        return [
            LockedFile(
                path=f.path,
                size=f.lfs.size if f.lfs else f.size,
                sha256=f.lfs.sha256 if f.lfs else None,
                blob_id=None if f.lfs else f.blob_id,
            )
            for f in tree
            if isinstance(f, RepoFile)
        ]

    files = with_retries(hub, repo, ask, sleep=sleep)
    if not files:
        raise ConfigError(f"{repo} holds no files on {hub.endpoint}")
    return sorted(files, key=lambda f: f.path)


def cached_snapshot(hub: Hub, repo: Repo) -> Path | None:
    """The snapshot folder if it exists and every link in it leads somewhere, else None."""
    path = hub.snapshot(repo)
    if not path.is_dir():
        return None
    files = [p for p in path.rglob("*") if not p.is_dir()]
    return path if files and all(p.exists() for p in files) else None
