"""The presets we ship: each loads, resolves, renders as recorded; the format refuses what it should."""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from launch import docs, paths
from launch.commandline import computed
from launch.errors import ConfigError, SparkError, UsageError
from launch.flags import load_flags
from launch.lint import lint
from launch.preset import COMPUTED, Preset, Status, json_schema
from launch.registry import Registry, build
from launch.render import DRAFT_OVERRIDES, Places, argv
from launch.resolve import resolve

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
PLACES = Places("python", Path("/fixtures"), Path("/cpu_engine"))
REGISTRY = Registry()
NAMES = REGISTRY.names()
PAIRS = [
    (name, machine)
    for name in NAMES
    if REGISTRY.load(name).status is not Status.KNOWN_BAD
    for machine in REGISTRY.load(name).machine
]


def golden_text(name: str, machine: str) -> str:
    return argv(computed(resolve(REGISTRY.load(name), machine)), PLACES).lines()


@pytest.mark.parametrize(("name", "machine"), PAIRS)
def test_the_command_line_is_the_recorded_one(name: str, machine: str) -> None:
    """UPDATE_GOLDEN=1 records anew; read the difference before committing it."""
    path = GOLDEN / f"{name}@{machine}.txt"
    text = golden_text(name, machine)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text


def test_no_golden_file_is_left_over() -> None:
    assert {p.stem for p in GOLDEN.glob("*.txt")} == {f"{n}@{m}" for n, m in PAIRS}


@pytest.mark.parametrize(("name", "machine"), PAIRS)
def test_every_word_is_one_the_engine_parses(name: str, machine: str) -> None:
    words = argv(computed(resolve(REGISTRY.load(name), machine)), PLACES).argv
    flags = load_flags()
    seen: list[str] = []
    for word in words[3:]:
        if word.startswith("--"):
            assert word in flags.by_name
            assert not flags.by_name[word].deprecated
            seen.append(word)
    assert len(seen) == len(set(seen))
    assert [f for f in lint(shlex.join(words)).findings if f.level == "error"] == []


@pytest.mark.parametrize("name", NAMES)
def test_what_a_preset_refers_to_exists(name: str) -> None:
    preset = REGISTRY.load(name)
    for other in (preset.smoke.control, preset.instead):
        assert other is None or other in NAMES
    if preset.smoke.control:
        control = REGISTRY.load(preset.smoke.control)
        assert control.draft is None
        assert control.target.source == preset.target.source
        assert set(preset.machine) <= set(control.machine) | {"rtx-5090"}
    for checkpoint in [preset.target, *([preset.draft] if preset.draft else [])]:
        if checkpoint.lock:
            lock = json.loads((ROOT / "launch" / checkpoint.lock).read_text())
            assert lock["repo"] == checkpoint.repo
            assert lock["revision"] == checkpoint.revision


@pytest.mark.parametrize("name", NAMES)
def test_claims_carry_their_source(name: str) -> None:
    preset = REGISTRY.load(name)
    assert preset.title
    assert preset.status is not Status.VALIDATED, "validated needs a smoke report; see promote"
    assert preset.sources
    if preset.status is not Status.FIXTURE:
        text = " ".join([*preset.sources.values(), *(r.source for r in preset.reported)])
        assert "facts" in text or "sglang#" in text


def test_published_ratios_come_out_of_the_rule() -> None:
    """facts 2.4: jhgoodwin's 2.55 (no draft), 6.63 (extra_buffer), 6.12 (lazy); fp32 states, fp8 KV."""

    def ratio(name: str, strategy: str) -> object:
        overrides: dict[str, Any] = {"mamba_radix_cache_strategy": strategy}
        return computed(resolve(REGISTRY.load(name), "rtx-pro-6000", overrides)).engine[
            "mamba_full_memory_ratio"
        ]

    assert ratio("qwen3.8-27b-nvfp4-nodraft", "extra_buffer") == 2.55
    assert ratio("qwen3.8-27b-nvfp4-dflash2", "extra_buffer") == 6.63
    assert ratio("qwen3.8-27b-nvfp4-dflash2", "extra_buffer_lazy") == 6.12


def test_a_ratio_that_cannot_be_computed_names_what_is_missing() -> None:
    preset = REGISTRY.load("nvidia-qwen3.6-35b-a3b-nvfp4")
    preset = preset.model_copy(update={"target": preset.target.model_copy(update={"geometry": None})})
    resolved = resolve(preset, "gb10-128", {"mamba_full_memory_ratio": COMPUTED})
    with pytest.raises(ConfigError, match=r"target\.geometry, mamba_ssm_dtype"):
        computed(resolved)
    with pytest.raises(ConfigError, match="compute it before argv"):
        argv(resolved, PLACES)


def test_generated_files_are_fresh() -> None:
    assert docs.stale(docs.generated(REGISTRY, ROOT)) == []


def test_the_readme_block_is_replaced_and_nothing_else() -> None:
    text = f"a\n{docs.BEGIN}\nold\n{docs.END}\nb\n"
    assert docs.with_block(text, "| t |") == f"a\n{docs.BEGIN}\n| t |\n{docs.END}\nb\n"
    with pytest.raises(ConfigError, match="markers"):
        docs.with_block("nothing", "| t |")


def test_the_schema_takes_every_file_and_refuses_a_typo() -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    for path in paths.presets_dir().glob("*.toml"):
        data = tomllib.loads(path.read_text())
        assert list(validator.iter_errors(data)) == [], path.name
    assert list(validator.iter_errors(BASE)) == []
    assert list(validator.iter_errors({k: v for k, v in BASE.items() if k != "target"}))
    good = tomllib.loads((paths.presets_dir() / "qwen3.8-27b-nvfp4-dflash2.toml").read_text())
    for bad in (
        {**good, "taget": {}},
        {**good, "status": "perfect"},
        {**good, "target": {**good["target"], "revision": "main"}},
        {**good, "machine": {"gb200": {}}},
        {**good, "draft": {**good["draft"], "tokens": 0}},
    ):
        assert list(validator.iter_errors(bad))


BASE: dict[str, Any] = {
    "schema": 1,
    "name": "x",
    "title": "X",
    "status": "experimental",
    "default_machine": "gb10-128",
    "target": {"repo": "a/b", "revision": "0" * 40},
    "machine": {"gb10-128": {}},
}


def edited(**changes: Any) -> dict[str, Any]:
    return {k: v for k, v in {**BASE, **changes}.items() if v is not None}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (edited(target={"repo": "a/b", "revision": "main"}), "target.revision"),
        (edited(target={"repo": "a/b"}), "a/b needs revision: 40 hex digits"),
        (edited(target={"repo": "a/b", "revision": "0" * 40, "fixture": "t"}), "repo or fixture, not both"),
        (edited(target={}), "target needs repo and revision, or fixture"),
        (edited(target=None), "target: Field required"),
        (edited(status="reported"), r"\[\[reported\]\]"),
        (edited(status="known-bad"), "known-bad needs it"),
        (edited(status="fixture"), "target.fixture"),
        (edited(default_machine="h200"), r"no \[machine.h200\] table"),
        (edited(machine={}), "machine"),
        (
            edited(machine={"gb10-128": {"mem_fraction": 0.5}}),
            "machine.gb10-128.mem_fraction: .*nearest: mem_fraction_static",
        ),
        (
            edited(engine={"cuda_graph_max_bs": 8}),
            "engine.cuda_graph_max_bs: .* removed .* use --cuda-graph-max-bs-decode",
        ),
        (edited(engine={"disable_cuda_graph": True}), "deprecated .* use --cuda-graph-backend"),
        (edited(engine={"mem_fraction_static": "lots"}), "takes a number, not 'lots'"),
        (edited(engine={"max_running_requests": 8.5}), "takes a whole number"),
        (edited(engine={"max_running_requests": True}), "takes a whole number"),
        (edited(engine={"sleep_on_idle": 1}), "takes true or false"),
        (edited(engine={"kv_cache_dtype": "fp8_e4m4"}), "nearest: fp8_e4m3"),
        (edited(engine={"kv_cache_dtype": "nvfp4"}), "use fp8_e4m3"),
        (edited(engine={"api_key": "k"}), "--api-key-file"),
        (edited(engine={"quantization": "modelopt_fp4"}), "leave it out"),
        (edited(engine={"speculative_draft_window_size": 8}), "kills the scheduler"),
        (edited(engine={"model_path": "x"}), r"\[target\] gives the checkpoint"),
        (edited(env={"HF_TOKEN": "x"}), "env.HF_TOKEN: a secret"),
        (edited(draft={"algorithm": "DFLASH", "tokens": 8, "quantization": "unquant"}), "exactly one of"),
        (
            edited(draft={"algorithm": "DFLASH", "tokens": 8, "repo": "a/c", "revision": "1" * 40}),
            "draft.quantization",
        ),
        (edited(colour="red"), "colour"),
        (edited(schema=2), "schema"),
    ],
)
def test_a_bad_preset_is_one_line_with_the_key(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build(data, Path("x.toml"))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("x.toml: ")
    assert caught.value.exit_code == 78


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.toml").write_text(text)


PARENT = """
schema = 1
name = "parent"
title = "P"
status = "reported"
default_machine = "gb10-128"
target = { repo = "a/b", revision = "0000000000000000000000000000000000000000" }
engine = { page_size = 1, max_running_requests = 4 }
machine.gb10-128 = { mem_fraction_static = 0.5 }
reported = [{ by = "b", hardware = "h", engine = "e", source = "s" }]
"""


def test_extends_merges_tables_drops_keys_and_never_inherits_a_claim(tmp_path: Path) -> None:
    write(tmp_path, "parent", PARENT)
    write(
        tmp_path,
        "child",
        'schema = 1\nname = "child"\nextends = "parent"\ntitle = "C"\nstatus = "experimental"\n'
        'drop = ["engine.page_size"]\nengine = { max_running_requests = 8 }\n',
    )
    registry = Registry(tmp_path)
    child, parent = registry.load("child"), registry.load("parent")
    assert child.engine == {"max_running_requests": 8}
    assert child.reported == []
    assert child.machine["gb10-128"].engine == {"mem_fraction_static": 0.5}
    assert parent.engine == {"page_size": 1, "max_running_requests": 4}
    write(tmp_path, "silent", 'schema = 1\nname = "silent"\nextends = "parent"\n')
    with pytest.raises(ConfigError, match="title"):
        Registry(tmp_path).load("silent")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "other"', "the file is called bad.toml"),
        ('name = "bad"\nextends = "nowhere"', "extends 'nowhere', which does not exist"),
        ('name = "bad"\nextends = "bad"', "extends goes round"),
        ('name = "bad"\nextends = "parent"\ndrop = ["engine.pages"]', "drop 'engine.pages'"),
        ('name = "bad"\nextends = "parent"\ndrop = 3', "bad.toml: drop: write a list"),
        ('name = "bad"\nextends = "parent"\ndrop = [3]', "bad.toml: drop: write a list"),
        ('name = "bad"\nabstract = true', "starts with _"),
        ("name = ", "bad.toml"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, "parent", PARENT)
    write(tmp_path, "bad", text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        Registry(tmp_path).load("bad")


def test_a_folder_without_presets_is_an_error_and_not_an_empty_list(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no preset in this folder"):
        Registry(tmp_path).load_all()


def test_unknown_names_get_the_nearest_and_bases_are_not_presets() -> None:
    with pytest.raises(UsageError, match="nearest: tiny-w4a4-dflash2"):
        REGISTRY.load("tiny-w4a4-dflash3")
    with pytest.raises(UsageError, match="unknown preset '_fixture'"):
        REGISTRY.load("_fixture")
    with pytest.raises(UsageError, match=r"unknown preset '\.\./presets/tiny"):
        REGISTRY.load("../presets/tiny-w4a4-dflash2")


def test_unsupported_machine_names_the_supported_ones() -> None:
    with pytest.raises(UsageError, match="supports gb10-128"):
        resolve(REGISTRY.load("qwen3.8-27b-nvfp4-mtp"), "h200")
    with pytest.raises(UsageError, match="nearest: gb10-128"):
        resolve(REGISTRY.load("qwen3.8-27b-nvfp4-mtp"), "gb10-12")


def test_digest_holds_what_is_served_and_not_what_is_said() -> None:
    preset = REGISTRY.load("tiny-w4a4-dflash2")
    data = REGISTRY.merged("tiny-w4a4-dflash2")

    def digest(**changes: Any) -> str:
        return Preset.model_validate({**data, **changes}).digest

    assert digest() == preset.digest
    assert digest(title="another", summary="words") == preset.digest
    assert digest(engine={**data["engine"], "max_running_requests": 9}) != preset.digest


def test_errors_of_the_package_carry_documented_exit_codes() -> None:
    from launch.errors import EXIT_CODES

    assert {c.exit_code for c in SparkError.__subclasses__()} <= set(EXIT_CODES)


def test_a_stretched_target_lifts_its_drafts_limit_and_nothing_else() -> None:
    """Without it the engine refuses the draft: 524,288 is more than the draft's own configuration allows."""
    name = "qwen3.8-27b-nvfp4-dflash2-524k"

    def env(preset: Preset, settings: dict[str, Any] | None = None) -> dict[str, str]:
        resolved = computed(resolve(preset, preset.default_machine, settings or {}))
        return dict(argv(resolved, PLACES).env)

    stretched = REGISTRY.load(name)
    assert json.loads(env(stretched)[DRAFT_OVERRIDES]) == {"max_position_embeddings": 524288}
    assert json.loads(env(stretched, {"context_length": 400000})[DRAFT_OVERRIDES]) == {
        "max_position_embeddings": 400000
    }
    own = stretched.model_copy(update={"env": {DRAFT_OVERRIDES: '{"max_position_embeddings":1000000}'}})
    assert "1000000" in env(own)[DRAFT_OVERRIDES], "what a preset says itself stays"
    assert DRAFT_OVERRIDES not in env(REGISTRY.load("qwen3.8-27b-nvfp4-dflash2"))
    mtp = REGISTRY.load("qwen3.8-27b-nvfp4-mtp")
    both = {
        "context_length": 524288,
        "json_model_override_args": stretched.engine["json_model_override_args"],
    }
    assert DRAFT_OVERRIDES not in env(mtp, both), "MTP layers take the target's overrides"
