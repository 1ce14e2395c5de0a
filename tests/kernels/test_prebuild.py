"""docker/prebuild without an engine: the list, resuming, memory, the inventory, recordings, what a boot may compile."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from launch import boot, compiling
from smoke.causes import explain

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docker" / "prebuild"))

import adopt  # noqa: E402
import inventory  # noqa: E402
import kernels  # noqa: E402
import recordings  # noqa: E402
import store  # noqa: E402

import build as engine_side  # noqa: E402

LIST = (ROOT / "docker" / "kernels.toml").read_text()
GIB = 1 << 30
SMALL = """
schema = 1
[arch."9.0a"]
capability = [9, 0]
platforms = ["x86_64"]
accepts = ["sm_90a"]
machines = "m"
state = "s"
[[module]]
kind = "flashinfer"
name = "page"
call = "a.b:gen"
archs = ["9.0a"]
known = "derived"
seen = "x"
"""


# ---- the list ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["12.0f", "12.1a"])
def test_list_covers_both_head_dims_and_kv_types_on_every_shipped_architecture(arch):
    names = " ".join(m.name for m in kernels.parse(LIST).of(arch))
    for kv in ("e4m3", "bf16"):
        for dim in (128, 256):
            assert f"dtype_kv_{kv}_dtype_o_bf16_dtype_idx_i32_head_dim_qk_{dim}" in names
    for name in (
        "sampling",
        "norm",
        "rope",
        "page",
        "topk",
        "fp4_quantization_120f",
        "fp4_gemm_cutlass_sm120",
    ):
        assert name in names.split()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (('"derived"', '"guessed"'), "known"),
        (('archs = ["9.0a"]', 'archs = ["8.0"]'), "8.0"),
        (('call = "a.b:gen"', 'call = "a.b"'), "call"),
        (("schema = 1", "schema = 2"), "schema"),
        (('seen = "x"', 'seen = "x"\nsene = 1'), "sene"),
        (("schema = 1", "schema ="), "kernels.toml"),
    ],
)
def test_list_that_is_not_well_formed_is_refused_in_one_line(change, named):
    with pytest.raises(kernels.KernelsError) as e:
        kernels.parse(SMALL.replace(*change))
    assert named in str(e.value)
    assert "\n" not in str(e.value)


def test_module_listed_twice_for_an_architecture_is_refused():
    twice = SMALL + SMALL[SMALL.index("[[module]]") :]
    with pytest.raises(kernels.KernelsError, match=r"page is listed twice for 9\.0a"):
        kernels.parse(twice)


# ---- keys, resuming, memory ----------------------------------------------------------------------------------------


def test_finished_module_is_kept_until_its_inputs_or_its_object_change(tmp_path):
    source, so = tmp_path / "a.cu", tmp_path / "page.so"
    source.write_text("1")
    so.write_bytes(b"object")
    key = store.source_key([source], "9.0a", {"nvcc": "13.0"})
    kept = store.Store(tmp_path / "kept")
    assert kept.find("page", key) is None
    kept.add("page", key, so, {"cpu_s": 3})
    row = kept.find("page", key)
    assert row is not None
    assert (row["cpu_s"], row["bytes"]) == (3, 6)
    assert store.source_key([source], "9.0a", {"nvcc": "13.1"}) != key
    source.write_text("2")
    assert store.source_key([source], "9.0a", {"nvcc": "13.0"}) != key
    (kept.folder("page", key) / "page.so").write_bytes(b"cut")
    assert kept.find("page", key) is None


@pytest.mark.parametrize(
    ("free", "each", "cpus", "jobs"),
    [(24, 7.3, 16, 3), (24, 1.2, 2, 2), (4, 7.3, 8, 1), (0, 1, 4, 1), (128, 7.3, 16, 16)],
)
def test_compilers_side_by_side_follow_free_memory(free, each, cpus, jobs):
    assert store.jobs(free * GIB, each, cpus) == jobs


def test_available_memory_is_read_or_refused():
    assert store.available("MemTotal: 9 kB\nMemAvailable:    2048 kB\n") == 2048 * 1024
    with pytest.raises(ValueError, match="MemAvailable"):
        store.available("MemTotal: 9 kB\n")


# ---- inventory -----------------------------------------------------------------------------------------------------

# cuobjdump 13.2.86 on objects of docker/prebuild (nvcc 13.0.88)
LISTING = "ELF file    1: page.1.sm_120.cubin\nELF file    2: page.2.sm_120.cubin\nELF file    3: x.3.sm_121a.cubin\n"


def test_inventory_counts_machine_code_by_architecture():
    assert inventory.parse(LISTING) == {"sm_120": 2, "sm_121a": 1}
    assert inventory.parse("PTX file    1: page.1.sm_90a.ptx\n") == {"ptx:sm_90a": 1}


@pytest.mark.parametrize("found", [{}, {"sm_90a": 4}, {"ptx:sm_121a": 2}, {"sm_120": 1}])
def test_object_without_its_architecture_fails_the_build(found):
    with pytest.raises(inventory.InventoryError, match="page: needs sm_121a"):
        inventory.check("page", found, ("sm_121a",))
    inventory.check("page", {**found, "sm_121a": 1}, ("sm_121a",))


def tool(package: str, path: str) -> str:
    """A CUDA program of a locked wheel, without importing the package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return str(Path(next(iter(spec.submodule_search_locations))) / path)


def test_inventory_of_machine_code_made_here(tmp_path):
    """Two architectures in one container, from PTX: neither needs a host compiler."""
    cuobjdump = tool("triton", "backends/nvidia/bin/cuobjdump")
    images = []
    for arch in ("90a", "120a"):
        ptx = f".version 8.7\n.target sm_{arch}\n.address_size 64\n.visible .entry k() {{ ret; }}\n"
        (tmp_path / f"{arch}.ptx").write_text(ptx)
        made = [
            tool("triton", "backends/nvidia/bin/ptxas"),
            f"-arch=sm_{arch}",
            f"{arch}.ptx",
            "-o",
            f"{arch}.cubin",
        ]
        subprocess.run(made, cwd=tmp_path, check=True)
        images.append(f"--image3=kind=elf,sm={arch},file={arch}.cubin")
    pack = [tool("nvidia", "cu13/bin/fatbinary"), "-64", "--create=k.fatbin", *images]
    subprocess.run(pack, cwd=tmp_path, check=True)
    assert inventory.of(tmp_path / "k.fatbin", cuobjdump) == {"sm_120a": 1, "sm_90a": 1}
    (tmp_path / "nothing").write_bytes(b"\0" * 64)
    with pytest.raises(inventory.InventoryError, match="nothing: "):
        inventory.of(tmp_path / "nothing", cuobjdump)


def test_missing_cuobjdump_is_said(tmp_path):
    with pytest.raises(inventory.InventoryError, match="--cuobjdump"):
        inventory.of(tmp_path / "x.so", str(tmp_path / "none"))


# ---- the run -------------------------------------------------------------------------------------------------------


class Half:
    """A builder of which one module fails and one lacks its architecture."""

    arch = "9.0a"

    def __init__(self, tmp: Path) -> None:
        self.work, self.said, self.built = tmp, [], []
        self.say = self.said.append

    def flashinfer(self, m):
        self.built.append(m.name)
        if m.name == "broken":
            raise RuntimeError("Ninja build failed.\nx.cu(3): error: no such thing\nninja: stopped")
        if m.name == "other":
            inventory.check(m.name, {"sm_120": 1}, ("sm_90a",))
        return {"kind": m.kind, "name": m.name, "arch": self.arch, "wall_s": 1.0, "cpu_s": 1.0, "kept": False}


def test_one_failure_does_not_stop_the_others_and_is_in_the_table(tmp_path):
    one = kernels.parse(SMALL).module[0]
    modules = [one.model_copy(update={"name": n}) for n in ("broken", "other", "page")]
    half = Half(tmp_path)
    rows = engine_side.run(half, modules, 1, 1e9)
    assert half.built == ["broken", "other", "page"]
    assert ["error" in r for r in rows] == [True, True, False]
    assert "no such thing" in rows[0]["error"]
    assert "needs sm_90a, has sm_120" in rows[1]["error"]
    assert engine_side.run(half, modules, 1, -1)[2]["left"]
    assert half.built == ["broken", "other", "page"]


# ---- recordings ----------------------------------------------------------------------------------------------------


def test_recordings_become_a_list_and_a_cut_line_is_left_out(tmp_path):
    call = {"call": "flashinfer.jit.page:gen_page_module", "args": []}
    for name, lines in (
        ("plain", [{"kind": "flashinfer", "name": "page", **call}, {"kind": "cute", "name": "gdn"}]),
        ("draft", [{"kind": "flashinfer", "name": "page", **call}]),
    ):
        (tmp_path / name).mkdir()
        text = "".join(json.dumps(row) + "\n" for row in lines) + '{"kind": "fl'
        (tmp_path / name / "7.jsonl").write_text(text)
    data = recordings.merged(recordings.read([tmp_path / "draft", tmp_path / "plain"]), "9.0a")
    assert [(m["name"], m["seen"]) for m in data["module"]] == [("page", "boots: draft, plain")]
    assert [u["name"] for u in data["unknown"]] == ["gdn"]
    data["arch"] = {"9.0a": kernels.parse(LIST).arch["9.0a"].model_dump(mode="json")}
    (tmp_path / "more.json").write_text(json.dumps(data))
    (tmp_path / "kernels.toml").write_text(SMALL.replace('name = "page"', 'name = "norm"'))
    both = kernels.load(tmp_path / "kernels.toml", tmp_path / "more.json")
    assert [(m.name, m.known) for m in both.of("9.0a")] == [("norm", "derived"), ("page", "recorded")]


# ---- run time ------------------------------------------------------------------------------------------------------


def settings(env, free=64, cpus=16):
    return compiling.environment(env, available_bytes=free * GIB, cpus=cpus, hook="/h")


def test_compilers_of_a_boot_are_capped_by_memory_and_by_the_operator():
    assert settings({})["MAX_JOBS"] == "8"
    assert settings({"MAX_JOBS": "4"})["MAX_JOBS"] == "4"
    assert settings({"MAX_JOBS": "64"}, free=10)["MAX_JOBS"] == "1"
    assert settings({"MAX_JOBS": "0"}, cpus=2)["MAX_JOBS"] == "2"


def test_no_compile_sets_the_engines_own_switches_and_nothing_else_does():
    found = settings({"SPARK_NO_COMPILE": "1", "PYTHONPATH": "/x"})
    assert (found["FLASHINFER_DISABLE_JIT"], found["SGLANG_CRASH_ON_JIT_COMPILE"]) == ("1", "1")
    assert found["PYTHONPATH"] == "/h:/x"
    assert (
        not {"FLASHINFER_DISABLE_JIT", "SGLANG_CRASH_ON_JIT_COMPILE", "PYTHONPATH"}
        & settings({"SPARK_NO_COMPILE": "0"}).keys()
    )


@pytest.mark.parametrize(
    ("line", "module"),
    [
        (
            "RuntimeError: JIT module 'sgl_kernel_jit_activation_bf16_t_true' has no usable cached build under /c, and "
            "SGLANG_CRASH_ON_JIT_COMPILE forbids compiling at runtime.",
            "sgl_kernel_jit_activation_bf16_t_true",
        ),
        (
            "flashinfer.jit.core.MissingJITCacheError: JIT compilation is disabled via FLASHINFER_DISABLE_JIT environment "
            "variable, but the required module is not found in the JIT cache. Please add the missing module to the JIT "
            "cache build configuration. Module: page",
            "page",
        ),
    ],
)
def test_refused_compile_names_the_module(line, module):
    log = ["Traceback (most recent call last):", line]
    assert (
        boot.cause(log)
        == f"{module} is neither prebuilt nor cached, and SPARK_NO_COMPILE forbids to compile it"
    )
    assert module in explain(1, "\n".join(log)).title


# ---- a set built elsewhere -----------------------------------------------------------------------------------------


def test_object_from_other_sources_is_not_adopted():
    record = [["kernels", "csrc/a.cuh", "1"], ["sys", "include/x.h", "2"], ["kernels", "csrc/b.cuh", "3"]]
    here = {"csrc/a.cuh": "1", "include/x.h": "another toolkit", "csrc/b.cuh": "3"}
    assert adopt.differing(record, here) == []
    assert adopt.differing(record, {**here, "csrc/b.cuh": "4"}) == ["csrc/b.cuh"]
    assert adopt.differing(record, {"csrc/a.cuh": "1"}) == ["csrc/b.cuh"]


def test_only_a_finished_build_is_taken_from_a_set(tmp_path):
    module = tmp_path / "sm90a" / "m"
    (module / "build-1" / ".staging-7").mkdir(parents=True)
    (module / "build-1" / ".staging-7" / "m.so").write_bytes(b"half")
    assert adopt.leaf_of(tmp_path, "m") is None
    (module / "build-1" / "deps-2").mkdir()
    (module / "build-1" / "deps-2" / "m.so").write_bytes(b"whole")
    assert adopt.leaf_of(tmp_path, "m") == module / "build-1" / "deps-2"
