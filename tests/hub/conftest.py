"""A fresh mirror, cache and home for each test; no retry waits longer than a moment."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.hub import Hub, Repo
from launch.locks import Lock, LockedFile
from tests.hub.mirror import REV, Mirror, MirrorRepo, serve


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKSERVE_CACHE", str(tmp_path / "user-cache"))
    for name in (
        "HF_ENDPOINT",
        "HF_TOKEN",
        "HF_TOKEN_PATH",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "HF_HUB_CACHE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    import huggingface_hub.constants as c
    import huggingface_hub.file_download as fd

    # Read once at import: another test of the same run may have imported it offline.
    monkeypatch.setattr(c, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(c, "DOWNLOAD_CHUNK_SIZE", 4096)
    monkeypatch.setattr(c, "HF_HUB_DOWNLOAD_TIMEOUT", 2)
    monkeypatch.setattr(fd.time, "sleep", lambda _s: None)


@pytest.fixture
def files() -> dict[str, bytes]:
    rng = random.Random(7)
    return {
        "config.json": b'{"architectures": ["Tiny"]}\n',
        "model-00001-of-00002.safetensors": rng.randbytes(300_000),
        "model-00002-of-00002.safetensors": rng.randbytes(120_000),
        "sub/notes.txt": b"hello\n",
    }


@pytest.fixture
def mirror(files: dict[str, bytes]) -> Iterator[Mirror]:
    m = Mirror(repos={"acme/tiny": MirrorRepo(dict(files))})
    with serve(m):
        yield m


@pytest.fixture
def hub(mirror: Mirror, tmp_path: Path) -> Hub:
    return Hub(endpoint=mirror.url, cache=tmp_path / "hub", attempts=3, wait=0.0)


@pytest.fixture
def repo() -> Repo:
    return Repo("acme/tiny", REV)


@pytest.fixture
def lock(files: dict[str, bytes]) -> Lock:
    """What a repository lock would say: only the shards are known."""
    import hashlib

    shards = [
        LockedFile(path=p, size=len(d), sha256=hashlib.sha256(d).hexdigest())
        for p, d in files.items()
        if p.endswith(".safetensors")
    ]
    return Lock(repo="acme/tiny", revision=REV, partial=True, source="test", files=tuple(shards))
