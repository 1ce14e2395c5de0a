"""Read what `check` needs of a checkpoint: its JSON files, file sizes and safetensors headers. I/O edge.

From the hub this costs a few hundred kB: the file tree, two or three JSON files, and range requests for the
headers. From a folder, or from a snapshot already in the cache, it costs no network at all.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.errors import CheckFailed, ConfigError
from launch.hub import Hub, Repo, cached_snapshot, list_files, repo_info, with_retries
from launch.locks import Lock, LockedFile, merge
from launch.quantmap import Tensor

JSON_FILES = ("config.json", "hf_quant_config.json")
MAX_HEADER = 100 << 20  # the format's own limit
MAX_JSON = 32 << 20


@dataclass(frozen=True)
class Facts:
    """One checkpoint as far as it can be known without its weights.

    `files` maps paths to sizes in bytes (None: unknown). `where` says what was read.
    """

    name: str
    where: str
    config: Mapping[str, Any]
    hf_quant_config: Mapping[str, Any] | None = None
    files: Mapping[str, int | None] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    license: str | None = None
    moved_to: str | None = None
    lock_disagrees: tuple[str, ...] = ()

    @property
    def text(self) -> Mapping[str, Any]:
        """The text model's configuration: `text_config` of a multimodal one, else the whole."""
        inner = self.config.get("text_config")
        return inner if isinstance(inner, Mapping) else self.config

    @property
    def architectures(self) -> tuple[str, ...]:
        """Class names the engine looks up in its model registry."""
        return tuple(self.config.get("architectures") or ())

    @property
    def weight_bytes(self) -> int:
        """Sum of the safetensors files."""
        return sum(size or 0 for path, size in self.files.items() if path.endswith(".safetensors"))

    @property
    def total_bytes(self) -> int:
        """Sum of all files whose size is known."""
        return sum(size or 0 for size in self.files.values())


def read_header(path: Path) -> dict[str, Tensor]:
    """Tensors of a local safetensors file. ConfigError when it is not one or is cut short."""
    try:
        with path.open("rb") as f:
            raw = f.read(8)
            length = struct.unpack("<Q", raw)[0] if len(raw) == 8 else 0
            if not 2 <= length <= MAX_HEADER:
                raise ConfigError(f"{path}: not a safetensors file (header length {length})")
            header = json.loads(f.read(length))
        end = (
            8
            + length
            + max((int(v["data_offsets"][1]) for k, v in header.items() if k != "__metadata__"), default=0)
        )
        if path.stat().st_size != end:
            raise ConfigError(
                f"{path}: {path.stat().st_size} B, the header says {end} B: cut short or damaged"
            )
        return {
            name: Tensor(str(v["dtype"]), tuple(int(n) for n in v["shape"]))
            for name, v in header.items()
            if name != "__metadata__"
        }
    except OSError as e:
        raise ConfigError(f"{path}: {e.strerror}") from e
    except (ValueError, KeyError, TypeError, IndexError) as e:
        raise ConfigError(f"{path}: damaged safetensors header ({type(e).__name__})") from e


def from_folder(folder: Path, *, name: str | None = None, license: str | None = None) -> Facts:
    """Facts of a checkpoint folder."""
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: no such checkpoint folder; `sparkserve fixtures build` makes the fixtures"
        )
    documents = {}
    for file in JSON_FILES:
        path = folder / file
        if path.is_file():
            documents[file] = _json(path.read_bytes(), str(path))
    if "config.json" not in documents:
        raise ConfigError(f"{folder}: config.json is missing; not a checkpoint folder, or a broken download")
    files = {p.relative_to(folder).as_posix(): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    tensors: dict[str, Tensor] = {}
    for file in sorted(files):
        if file.endswith(".safetensors"):
            tensors |= read_header(folder / file)
    return Facts(
        name=name or folder.name,
        where=str(folder),
        config=documents["config.json"],
        hf_quant_config=documents.get("hf_quant_config.json"),
        files=files,
        tensors=tensors,
        license=license,
    )


def from_hub(hub: Hub, repo: Repo, lock: Lock | None) -> Facts:
    """Facts of a repository at a commit: from the cache when it is whole there, else over HTTP."""
    if (folder := cached_snapshot(hub, repo)) is not None:
        return from_folder(folder, name=repo.repo, license=lock.license if lock else None)
    info = repo_info(hub, repo)
    listing = {f.path: f for f in list_files(hub, repo)}
    wrong = merge(lock, listing.values(), source="hub")[2] if lock else []
    if "config.json" not in listing:
        raise ConfigError(f"{repo.role}.repo {repo}: holds no config.json; not a checkpoint")
    documents = {f: _fetch_json(hub, repo, listing[f], lock) for f in JSON_FILES if f in listing}
    names = [f for f in listing if f.endswith(".safetensors")]
    with ThreadPoolExecutor(max_workers=4) as pool:
        headers = list(pool.map(lambda f: _fetch_header(hub, repo, f), names))
    tensors = {name: tensor for header in headers for name, tensor in header.items()}
    return Facts(
        name=repo.repo,
        where=f"{hub.endpoint}/{repo.repo}@{repo.revision[:8]}",
        config=documents["config.json"],
        hf_quant_config=documents.get("hf_quant_config.json"),
        files={p: f.size for p, f in listing.items()},
        tensors=tensors,
        license=info.license,
        moved_to=info.name if info.name.lower() != repo.repo.lower() else None,
        lock_disagrees=tuple(wrong),
    )


def _fetch_json(hub: Hub, repo: Repo, file: LockedFile, lock: Lock | None) -> dict[str, Any]:
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

    if (file.size or 0) > MAX_JSON:
        raise ConfigError(f"{repo.role}.repo {repo}: {file.path} has {file.size} B; not a configuration file")
    url = hf_hub_url(repo.repo, file.path, revision=repo.revision, endpoint=hub.endpoint)
    headers = build_hf_headers(token=hub.token or False, library_name="sparkserve")

    def ask() -> bytes:
        response = get_session().get(url, headers=headers, timeout=30)
        hf_raise_for_status(response)
        return response.content

    data = with_retries(hub, repo, ask)
    locked = lock.by_path().get(file.path) if lock else None
    sha = hashlib.sha256(data).hexdigest()
    if locked and locked.sha256 and locked.sha256 != sha:
        raise CheckFailed(
            f"{repo} {file.path}: sha256 {sha}, the lock says {locked.sha256}; {hub.endpoint} serves other content"
        )
    return _json(data, f"{repo} {file.path}")


def _json(data: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as e:
        raise ConfigError(f"{where}: not JSON ({e})") from e
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: not a JSON object")
    return value


def _fetch_header(hub: Hub, repo: Repo, file: str) -> dict[str, Tensor]:
    from huggingface_hub.errors import SafetensorsParsingError

    api = hub.api()
    try:
        meta = with_retries(
            hub,
            repo,
            lambda: api.parse_safetensors_file_metadata(repo.repo, file, revision=repo.revision, timeout=30),
        )
    except SafetensorsParsingError as e:
        raise CheckFailed(f"{repo} {file}: damaged safetensors header; choose another revision") from e
    return {name: Tensor(str(t.dtype), tuple(t.shape)) for name, t in meta.tensors.items()}
