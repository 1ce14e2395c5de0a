"""The commands as an operator types them, against the mirror: check, pull, verify, pin, promote, plan, and serve's gate."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import stat
from pathlib import Path

import pytest

from launch.checkpoint import from_folder, from_hub, read_header
from launch.cli import main
from launch.errors import CheckFailed, ConfigError
from launch.hub import Hub, Repo, default_cache, open_hub, read_token
from launch.locks import Lock, find_lock, read_lock
from launch.pinned import ensure_served
from launch.registry import Registry
from tests.hub.mirror import REV, REV2, Fault, Mirror, MirrorRepo, serve
from tests.hub.model27b import DFLASH2, draft, safetensors_bytes, tiny_target, write_tiny

PRESET = f"""
schema = 1
name = "tiny"
title = "a pair on the mirror"
status = "experimental"
default_machine = "h200"

[target]
repo = "acme/tiny"
revision = "{REV}"
license = "apache-2.0"
[target.expects]
architecture = "Qwen3_5ForConditionalGeneration"
quantization = "modelopt_mixed"
lm_head = "NVFP4"
kv_cache = "fp8_e4m3"
[target.geometry]
layers = 4
hidden_size = 64
vocab_size = 128
native_context = 4096
attention_layers = 1
kv_heads = 4
head_dim = 256
linear_layers = 3
linear_value_heads = 48
linear_key_head_dim = 128
linear_value_head_dim = 128
conv_channels = 10240
conv_states = 3

[draft]
repo = "acme/draft"
revision = "{REV2}"
algorithm = "DFLASH"
tokens = 8
quantization = "unquant"
license = "mit"

[machine.h200]
"""


def tiny_draft_config() -> dict:
    config = copy.deepcopy(DFLASH2) | {"hidden_size": 64, "vocab_size": 128, "num_target_layers": 4}
    config["dflash_config"] |= {"target_layer_ids": [0, 1, 2], "mask_token_id": 5}
    return config


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Mirror with a target and a draft, a preset folder, and a cache: what the commands see."""
    t = write_tiny(tmp_path / "src-target", tiny_target())
    tensors = {n: x for n, x in draft().tensors.items() if n.startswith("candidate")}
    tensors = {n: type(x)(x.dtype, (4, 4)) for n, x in tensors.items()}
    d_files = {
        "config.json": json.dumps(tiny_draft_config()).encode(),
        "model.safetensors": safetensors_bytes(tensors),
    }
    m = Mirror(
        repos={
            "acme/tiny": MirrorRepo({p.name: p.read_bytes() for p in t.iterdir()}),
            "acme/draft": MirrorRepo(d_files, revision=REV2, license="mit"),
        }
    )
    presets = tmp_path / "presets"
    presets.mkdir()
    (presets / "tiny.toml").write_text(PRESET)
    monkeypatch.setenv("SPARKSERVE_PRESETS", str(presets))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("launch.pull.MIN_FREE", 0)
    with serve(m):
        monkeypatch.setenv("HF_ENDPOINT", m.url)
        yield m


def run(capsys, *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as e:
        main(list(argv))
    out = capsys.readouterr()
    return int(e.value.code or 0), out.out, out.err


def edit(tmp_path: Path, old: str, new: str) -> None:
    file = tmp_path / "presets" / "tiny.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_check_reads_headers_not_weights(world, capsys):
    code, out, _ = run(capsys, "check", "tiny", "--json")
    data = json.loads(out)
    bad = [f for f in data["findings"] if f["verdict"] == "FAIL"]
    assert (code, bad) == (0, [])
    assert [f["verdict"] for f in data["findings"] if f["rule"] == "memory"] == [
        "WARN"
    ]  # nobody sized acme/tiny
    size = len(world.repos["acme/tiny"].files["model.safetensors"])
    ranges = world.gets("model.safetensors")
    assert ranges
    assert all(r is not None for r in ranges)
    assert world.sent["model.safetensors"] < size + 120_000  # the first 100 kB, or the file if it is smaller
    assert not Path(os.environ["HF_HUB_CACHE"]).exists()


def test_check_prints_a_table_and_fails_with_key_and_mend(world, capsys, tmp_path):
    edit(tmp_path, 'lm_head = "NVFP4"', 'lm_head = "BF16"')
    code, out, _ = run(capsys, "check", "tiny")
    assert code == 1
    line = next(x for x in out.splitlines() if x.startswith("FAIL"))
    assert "head class" in line
    assert "target.expects.lm_head" in line


def test_check_of_an_unreachable_hub_is_69(world, capsys, monkeypatch):
    dead = Hub(endpoint="http://127.0.0.1:9", cache=default_cache(), attempts=1)
    monkeypatch.setattr("launch.hub.open_hub", lambda **_: dead)
    code, _, err = run(capsys, "check", "tiny")
    assert code == 69
    assert "does not answer" in err


@pytest.mark.parametrize("command", ["check", "pull", "verify"])
def test_a_known_bad_preset_explains_itself_and_moves_nothing(world, capsys, tmp_path, command):
    edit(
        tmp_path,
        'status = "experimental"',
        'status = "known-bad"\nwhy = "garbage (some#1)"\ninstead = "other"',
    )
    code, out, err = run(capsys, command, "tiny")
    assert code == (1 if command == "check" else 78)
    assert "garbage (some#1)" in out + err
    assert "use other" in out + err
    assert world.requests == []


@pytest.mark.parametrize("command", [("check", "tiny"), ("pull", "tiny"), ("pin", "tiny", "--revision", REV)])
def test_offline_with_an_empty_cache_says_so(world, capsys, monkeypatch, command):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, _, err = run(capsys, *command)
    assert code == 69
    assert "HF_HUB_OFFLINE is set" in err
    assert world.requests == []


def test_a_log_in_page_is_not_a_hub(world, capsys):
    world.faults["*api*"] = Fault("html", times=9)
    code, _, err = run(capsys, "pull", "tiny")
    assert code == 69
    assert "does not answer as a model hub" in err


def test_presets_to_serving_gate(world, capsys, tmp_path):
    """check -> pull -> verify -> serve's gate; then a wrong byte closes the gate again."""
    preset = Registry().load("tiny")
    with pytest.raises(
        ConfigError, match=r"target acme/tiny@01234567 is not in .*run `sparkserve pull tiny`"
    ):
        ensure_served(preset)
    assert run(capsys, "pull", "tiny")[0] == 0
    said: list[str] = []
    assert ensure_served(preset, say=said.append)
    assert said == []
    code, out, _ = run(capsys, "verify", "tiny", "--json")
    assert code == 0
    assert {f["state"] for c in json.loads(out)["checkpoints"] for f in c["files"]} == {"ok"}
    # offline and without a network, from the same cache
    with pytest.MonkeyPatch.context() as mp:
        mp.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        mp.setenv("HF_HUB_OFFLINE", "1")
        assert run(capsys, "pull", "tiny")[0] == 0
        assert run(capsys, "check", "tiny")[0] == 0
        assert ensure_served(preset)
    weight = default_cache() / "models--acme--tiny" / "snapshots" / REV / "model.safetensors"
    data = bytearray(weight.read_bytes())
    data[-1] ^= 1
    weight.resolve().write_bytes(data)
    with pytest.raises(CheckFailed, match=r"model\.safetensors is wrong: sha256"):
        ensure_served(preset, say=said.append)
    assert any("verifying target" in s for s in said)
    code, out, err = run(capsys, "verify", "tiny")
    assert code == 1
    assert "wrong" in out
    assert "run `sparkserve pull tiny`" in err
    assert run(capsys, "pull", "tiny")[0] == 0
    assert run(capsys, "verify", "tiny")[0] == 0


def test_pull_reports_what_it_learnt_and_leaves_the_repository_alone(world, capsys, tmp_path):
    from launch.locks import LOCK_DIR

    before = {p: p.read_bytes() for p in LOCK_DIR.iterdir() if p.is_file()}
    code, out, _ = run(capsys, "pull", "tiny", "--json")
    assert code == 0
    target = json.loads(out)[0]
    assert any(x.startswith("model.safetensors: size") for x in target["learnt"])
    assert Path(target["lock_file"]).is_relative_to(tmp_path / "user-cache")
    assert {p: p.read_bytes() for p in LOCK_DIR.iterdir() if p.is_file()} == before
    code, out, _ = run(capsys, "pull", "tiny")
    assert code == 0
    assert "already complete" in out


def test_no_secret_shows(world, capsys, tmp_path):
    world.repos["acme/tiny"].token = world.repos["acme/draft"].token = "hf_verysecret"
    token = tmp_path / "token"
    token.write_text("hf_verysecret\n")
    token.chmod(0o600)
    code, out, err = run(capsys, "pull", "tiny", "--token-file", str(token))
    assert code == 0
    assert "hf_verysecret" not in out + err
    held = [
        p for p in tmp_path.rglob("*") if p.is_file() and p != token and b"hf_verysecret" in p.read_bytes()
    ]
    assert held == []


def test_token_files_are_checked(tmp_path):
    token = tmp_path / "token"
    with pytest.raises(ConfigError, match="No such file"):
        read_token(token)
    token.write_text("hf_x")
    token.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_token(token)
    token.chmod(stat.S_IRUSR)
    assert read_token(token) == "hf_x"
    token.chmod(0o600)
    token.write_text("two words")
    with pytest.raises(ConfigError, match="one token"):
        read_token(token)


def test_places_come_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    assert default_cache() == tmp_path / "home" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "c"))
    assert default_cache() == tmp_path / "c"
    with pytest.raises(ConfigError, match="not an http"):
        open_hub(endpoint="ftp://x")


def test_pin_writes_a_complete_lock_and_says_what_changes(world, capsys, tmp_path):
    locks = tmp_path / "locks"
    assert run(capsys, "pin", "tiny", "--revision", REV, "--output", str(locks))[0] == 0
    first = find_lock("acme/tiny", REV, dirs=[locks])
    assert first is not None
    assert not first.partial
    for f in first.files:
        assert f.sha256 == hashlib.sha256(world.repos["acme/tiny"].files[f.path]).hexdigest()
    repo = world.repos["acme/tiny"]
    repo.revision = REV2
    repo.files["config.json"] += b"\n"
    code, out, _ = run(capsys, "pin", "tiny", "--revision", REV2, "--output", str(locks))
    assert code == 0
    assert [x.strip()[:13] for x in out.splitlines() if x.startswith("  ~")] == ["~ config.json"]
    assert f'revision = "{REV2}"' in out
    assert not list(locks.glob(".*"))


@pytest.mark.parametrize("revision", ["main", "v1.0", REV[:39], REV.upper()])
def test_pin_refuses_what_moves(world, capsys, tmp_path, revision):
    code, _, err = run(capsys, "pin", "tiny", "--revision", revision, "--output", str(tmp_path / "locks"))
    assert code == 78
    assert "is not a commit" in err
    assert not (tmp_path / "locks").exists()


def test_pin_refuses_a_lock_the_hub_denies(world, capsys, tmp_path):
    locks = tmp_path / "locks"
    assert run(capsys, "pin", "tiny", "--revision", REV, "--output", str(locks))[0] == 0
    path = next(locks.iterdir())
    text = path.read_text()
    world.repos["acme/tiny"].files["config.json"] = b"{}"
    code, _, err = run(capsys, "pin", "tiny", "--revision", REV, "--output", str(locks))
    assert code == 1
    assert "disagree" in err
    assert path.read_text() == text


def report(**bound) -> dict:
    p = Registry().load("tiny")
    return {
        "schema_version": 1, "verdict": "good", "complete": True, "started": "2026-11-30T12:00:00Z",
        "bound": {"preset": "tiny", "preset_sha256": p.digest, "machine": "h200", "target": "acme/tiny",
                  "target_revision": REV, "draft": "acme/draft", "draft_revision": REV2,
                  "image_digest": "sha256:" + "a" * 64, "gpu": ["NVIDIA H200 (143771 MiB)"], "profile": "full",
                  "target_kind": "docker", **bound},
    }  # fmt: skip


def promote(capsys, tmp_path: Path, data: dict) -> tuple[int, str, str]:
    file = tmp_path / "report.json"
    file.write_text(json.dumps(data))
    with pytest.MonkeyPatch.context() as mp:
        mp.setattr("launch.paths.repo_root", lambda: tmp_path)
        return run(capsys, "promote", "tiny", "--report", str(file))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"preset_sha256": "0" * 64}, "sha256: the report has"),
        ({"preset": "other"}, "name: the report has 'other'"),
        ({"target_revision": REV2}, "target.revision"),
        ({"draft_revision": None}, "draft.revision"),
        ({"image_digest": None}, "no image digest"),
        ({"target_kind": "process"}, "only an image"),
        ({"profile": "quick"}, "needed: full or soak"),
        ({"machine": "gb10-128"}, "not one of the preset's"),
        ({"gpu": ["NVIDIA GB10"]}, "which is not a h200"),
        ({"gpu": []}, "names no GPU"),
    ],
)
def test_promote_refuses_a_report_about_something_else(world, capsys, tmp_path, change, text):
    before = (tmp_path / "presets" / "tiny.toml").read_text()
    code, _, err = promote(capsys, tmp_path, report(**change))
    assert code == 1
    assert text in err
    assert (tmp_path / "presets" / "tiny.toml").read_text() == before
    assert not (tmp_path / "evidence").exists()


def test_promote_reads_what_the_smoke_suite_writes(world):
    """The keys are the report's own: a renamed field breaks this before it breaks an operator."""
    from launch.promote import objections
    from smoke.report.model import Bound, Counts, Report

    bound = Bound(**report()["bound"], preset_status="experimental", hardware="NVIDIA H200", seed=0)
    made = Report(
        verdict="good", headline="", complete=True, started="2026-11-30T12:00:00Z", seconds=1.0,
        counts=Counts(), bound=bound,
    )  # fmt: skip
    assert objections(Registry().load("tiny"), json.loads(made.model_dump_json())) == []


def test_promote_names_every_preset_as_the_smoke_suite_does():
    """Repositories and revisions of each preset, MTP arms included, match what its report would carry."""
    from launch.paths import repo_root
    from launch.promote import objections
    from smoke.subject import from_preset

    for p in Registry(repo_root() / "launch" / "presets").load_all():
        s = from_preset(p)
        bound = {"preset": s.name, "preset_sha256": s.sha256, "target": s.target, "target_revision": s.target_revision,
                 "draft": s.draft, "draft_revision": s.draft_revision, "machine": s.machine}  # fmt: skip
        wrong = [o for o in objections(p, {"bound": bound}) if "the report has" in o]
        assert wrong == [], p.name


@pytest.mark.parametrize("change", [{"verdict": "not good"}, {"complete": False}])
def test_promote_refuses_a_bad_run(world, capsys, tmp_path, change):
    assert promote(capsys, tmp_path, {**report(), **change})[0] == 1


def test_promote_keeps_the_evidence_and_does_not_change_the_digest(world, capsys, tmp_path):
    digest = Registry().load("tiny").digest
    data = report()
    assert promote(capsys, tmp_path, data)[0] == 0
    after = Registry().load("tiny")
    assert (after.status, after.digest) == ("validated", digest)
    evidence = list((tmp_path / "evidence").iterdir())
    assert [e.name for e in evidence] == [f"tiny@h200-2026-11-30-{digest[:8]}.json"]
    assert json.loads(evidence[0].read_text()) == data
    assert after.reported[-1].source == f"evidence/{evidence[0].name}"
    code, _, err = promote(capsys, tmp_path, data)
    assert code == 1
    assert "status is validated" in err


def test_promote_needs_a_report(world, capsys, tmp_path):
    (tmp_path / "x.json").write_text("[]")
    code, _, err = run(capsys, "promote", "tiny", "--report", str(tmp_path / "x.json"))
    assert code == 78
    assert "not a smoke report" in err


def test_plan_that_does_not_fit_is_75(capsys):
    code, out, err = run(capsys, "plan", "tiny-w4a4-dflash2", "--machine", "cpu", "--free-gib", "2")
    assert code == 75
    assert "target weights" in out
    assert "weights and runtime take" in err
    code, out, _ = run(capsys, "plan", "tiny-w4a4-dflash2", "--machine", "cpu", "--json")
    assert code == 0
    assert json.loads(out)["fits"] is True


def test_headers_of_damaged_files_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    good = safetensors_bytes(dict(tiny_target().tensors))
    for data in (b"", good[:6], b"\xff" * 64, good[:-1], good[:8] + b"[" + good[9:]):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=r"safetensors|cut short"):
            read_header(path)
    path.write_bytes(good)
    assert read_header(path) == dict(tiny_target().tensors)


def test_hub_facts_equal_folder_facts(world, tmp_path):
    hub = Hub(endpoint=world.url, cache=tmp_path / "other", attempts=1)
    remote = from_hub(hub, Repo("acme/tiny", REV), None)
    local = from_folder(tmp_path / "src-target")
    assert (remote.config, remote.hf_quant_config) == (local.config, local.hf_quant_config)
    assert dict(remote.tensors) == dict(local.tensors)
    assert dict(remote.files) == dict(local.files)


def test_a_config_the_lock_denies_is_refused(world, tmp_path):
    hub = Hub(endpoint=world.url, cache=tmp_path / "other", attempts=1)
    lock = Lock.model_validate({"schema": 1, "repo": "acme/tiny", "revision": REV, "partial": True, "source": "t",
                                "files": [{"path": "config.json", "sha256": "0" * 64}]})  # fmt: skip
    with pytest.raises(CheckFailed, match=r"config\.json: sha256 .* the lock says 0000"):
        from_hub(hub, Repo("acme/tiny", REV), lock)


def test_a_folder_without_config_is_named(tmp_path):
    with pytest.raises(ConfigError, match="fixtures build"):
        from_folder(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"config\.json is missing"):
        from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        from_folder(tmp_path)


def test_a_lock_of_another_commit_is_refused(world, tmp_path, capsys):
    edit(tmp_path, 'license = "apache-2.0"',
         'license = "apache-2.0"\nlock = "locks/radixark-qwen3.8-27b-nvfp4@52d1adc5.json"')  # fmt: skip
    code, _, err = run(capsys, "pull", "tiny")
    assert code == 78
    assert "target.lock is for RadixArk/Qwen3.8-27B-NVFP4@52d1adc5" in err


def test_learnt_locks_are_read_back(world, capsys):
    run(capsys, "pull", "tiny", "--json")
    path = next((Path(os.environ["SPARKSERVE_CACHE"]) / "locks").glob("acme-tiny@*.json"))
    assert not read_lock(path).partial
