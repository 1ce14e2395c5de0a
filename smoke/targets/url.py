"""A server that already runs, ours or anyone's. No log, no control of its life."""

from __future__ import annotations

from smoke.targets.base import Boot, Identity, NotRun
from smoke.wait import Life


class UrlTarget:
    kind = "url"
    owns = False
    has_log = False
    supervised = False

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self.api_key = api_key

    def start(self, boot: Boot) -> None:
        if boot != Boot():
            raise NotRun("a server given by --url is not ours to restart (use --target process or docker)")

    def stop(self) -> None:
        """Nothing of ours runs."""

    def cut(self) -> None:
        """Not ours to end."""

    def life(self) -> Life:
        return Life(alive=None)

    def log(self) -> str:
        return ""

    def kill_child(self) -> None:
        raise NotRun("a server given by --url is not ours to kill (use --target process or docker)")

    def kernels(self) -> dict[str, float] | None:
        return None

    def network(self) -> str | None:
        return None  # it shares the host's

    def identity(self) -> Identity:
        return Identity()

    def memory_available(self) -> int | None:
        return None  # the server may be on another machine

    def memory_used(self) -> int | None:
        return None

    def host_path(self, path: str) -> str:
        return path

    def tidy(self, *, keep: bool) -> str | None:
        del keep
        return None
