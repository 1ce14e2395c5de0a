"""P23: whether the hub has `hf_quant_config.json` is asked of the pinned revision, not of `main`.

A publisher may add the file later or take it away; a pinned checkpoint must not change its quantization
with that. The hub here is a stand-in that keeps files per revision.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from patches.contracts import tiny_models as T

PINNED = "1" * 40
REPO = "someone/some-model"


class Hub:
    """Files by revision; answers as HfApi and hf_hub_download do."""

    def __init__(self, root: Path, *revisions: str) -> None:
        self.files = {revision: root / f"{revision}.json" for revision in revisions}
        for path in self.files.values():
            path.write_text(json.dumps({"quantization": T.flat_nvfp4()}))

    def file_exists(self, repo_id: str, filename: str, *, revision: str | None = None, **_: Any) -> bool:
        assert (repo_id, filename) == (REPO, "hf_quant_config.json")
        return (revision or "main") in self.files

    def download(self, *, repo_id: str, filename: str, revision: str | None = None, **_: Any) -> str:
        from huggingface_hub.errors import EntryNotFoundError

        if not self.file_exists(repo_id, filename, revision=revision):
            raise EntryNotFoundError(f"{filename} at {revision}")
        return str(self.files[revision or "main"])

    def cached(self, repo_id: str, filename: str, *, revision: str | None = None, **_: Any) -> str | None:
        return str(self.files[revision or "main"]) if (revision or "main") in self.files else None


@pytest.fixture
def hub_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    import huggingface_hub
    import sglang.srt.configs.model_config  # noqa: F401  (before the hub is replaced)

    def install(*revisions: str) -> Hub:
        hub = Hub(tmp_path, *revisions)
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda *_a, **_k: hub)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub.download)
        monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_a, **_k: None)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        return hub

    return install


def config(revision: str | None) -> Any:
    """A ModelConfig whose config.json declares no quantization, as far as the reading of it goes."""
    from sglang.srt.configs.model_config import ModelConfig

    found = ModelConfig.__new__(ModelConfig)
    found.model_path, found.revision = REPO, revision
    found.quantization, found.is_draft_model, found.is_draft_quantization_explicit = None, False, False
    found.hf_config = SimpleNamespace()
    return found


def test_file_at_the_pinned_revision_alone_is_found(hub_with: Any) -> None:
    hub_with(PINNED)
    assert (config(PINNED)._parse_quant_hf_config() or {}).get("quant_method") == "modelopt_fp4"
    assert config(PINNED)._is_already_quantized()


def test_file_on_main_alone_is_not_the_pinned_ones(hub_with: Any, caplog: pytest.LogCaptureFixture) -> None:
    hub_with("main")
    assert config(PINNED)._parse_quant_hf_config() is None
    assert not [r for r in caplog.records if "Failed to load hf_quant_config.json" in r.getMessage()]
    assert not config(PINNED)._is_already_quantized()


def test_cache_is_asked_for_the_pinned_revision(hub_with: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, with a cache that was filled by a pinned download and has no `main`."""
    import huggingface_hub

    hub = hub_with(PINNED)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", hub.cached)
    monkeypatch.setattr(hub, "file_exists", lambda *_a, **_k: pytest.fail("the cache has it"))
    assert config(PINNED)._is_already_quantized()


@pytest.mark.guard
def test_without_a_revision_main_is_asked(hub_with: Any) -> None:
    hub_with("main")
    assert config(None)._parse_quant_hf_config()["quant_method"] == "modelopt_fp4"
    assert config(None)._is_already_quantized()


@pytest.mark.guard
def test_without_the_file_nothing_is_declared(hub_with: Any) -> None:
    hub_with()
    for revision in (None, PINNED):
        assert config(revision)._parse_quant_hf_config() is None
        assert not config(revision)._is_already_quantized()
