"""What the pull tests share: a pull without waiting, and what a whole snapshot looks like."""

from __future__ import annotations

from pathlib import Path

from launch.hub import Hub, Repo
from launch.locks import Lock
from launch.pull import Pulled, Silent, pull

BIG = "model-00001-of-00002.safetensors"
SMALL = "model-00002-of-00002.safetensors"
ROOT = Path(__file__).resolve().parents[2]


def no_sleep(_s: float) -> None:
    return None


def get(hub: Hub, repo: Repo, lock: Lock, reporter: Silent | None = None, **kw) -> Pulled:
    return pull(hub, repo, lock, min_free=0, reporter=reporter or Silent(), sleep=no_sleep, **kw)


def assert_whole(hub: Hub, repo: Repo, files: dict[str, bytes]) -> None:
    folder = hub.snapshot(repo)
    assert {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} == set(files)
    for path, data in files.items():
        assert (folder / path).read_bytes() == data
        assert (folder / path).is_symlink()
    assert not list(hub.folder(repo.repo).rglob("*.incomplete"))
