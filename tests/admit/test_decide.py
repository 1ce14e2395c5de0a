"""Admission's arithmetic on captured and varied machines. Pure."""

from dataclasses import replace
from pathlib import Path

import pytest

from launch.admit import decide
from launch.commandline import computed
from launch.host.measure import measure
from launch.host.procfs import Earlyoom
from launch.plan import GIB
from launch.registry import Registry
from launch.resolve import resolve

MACHINES = Path(__file__).resolve().parents[1] / "host" / "machines"
REAL = "qwen3.8-27b-nvfp4-dflash2"
HUGE = {"mem_fraction_static": 0.95}


def preset(name=REAL, machine="gb10-128", **engine):
    return computed(resolve(Registry().load(name), machine, engine or None))


def gb10(available_gib=None, **changes):
    host = replace(measure(MACHINES / "gb10-synthetic"), earlyoom=None)
    if available_gib is not None:
        assert host.memory is not None
        host = replace(host, memory=replace(host.memory, available=int(available_gib * GIB)))
    return replace(host, **changes)


def test_the_plain_pair_is_admitted_on_a_gb10_with_a_desktop():
    a = decide(preset(), gb10(), here="gb10-128")
    assert a.admitted
    assert "101.6 GiB available memory" in a.notes[0]
    assert a.need < a.available
    assert a.running == 8


def test_fraction_of_a_discrete_card_is_refused_with_arithmetic_and_a_setting_that_fits():
    r = preset(**HUGE)
    a = decide(r, gb10(), here="gb10-128")
    assert not a.admitted
    line = a.refusal(r.slug)
    assert "mem_fraction_static 0.95 leaves 5.1 of 101.6 GiB" in line
    assert "--force" in line
    # The setting it names does fit.
    key, value = a.mend.split(" (now")[0].split(" = ")
    mended = preset(**{key.removeprefix("engine."): float(value)})
    assert decide(mended, gb10(), here="gb10-128").admitted


@pytest.mark.parametrize("available", [3, 10, 20, 30, 40, 50, 60, 80, 100, 119])
def test_every_setting_it_names_fits(available):
    """Fraction, slots, context, draft depth: whatever the refusal offers is admitted."""
    r = preset()
    a = decide(r, gb10(available), here="gb10-128")
    if a.admitted:
        assert a.need + 16 * GIB < available * GIB
        return
    assert a.reasons
    if not a.mend:
        assert available < 50  # weights, runtime and the host's share alone do not fit
        return
    engine, tokens = {}, None
    for knob in a.plan.knobs:
        if knob.key == "draft.tokens":
            tokens = knob.to
        else:
            engine[knob.key.removeprefix("engine.")] = knob.to
    base = Registry().load(REAL)
    if tokens is not None:
        base = base.model_copy(update={"draft": base.draft.model_copy(update={"tokens": tokens})})
    assert decide(computed(resolve(base, "gb10-128", engine)), gb10(available), here="gb10-128").admitted


def test_less_memory_is_never_admitted_where_more_is_not():
    admitted = [decide(preset(), gb10(g), here="gb10-128").admitted for g in range(2, 120, 3)]
    assert admitted == sorted(admitted)
    assert {True, False} == set(admitted)


def test_what_starting_servers_were_promised_is_not_there():
    assert decide(preset(), gb10(), here="gb10-128").admitted
    a = decide(preset(), gb10(), here="gb10-128", reserved=70 * GIB)
    assert not a.admitted
    assert "70.0 GiB of it promised" in a.notes[0]


def test_cgroup_limit_counts():
    host = gb10()
    limited = replace(host, cgroup=replace(host.cgroup, limit=30 * GIB, current=0))
    assert not decide(preset(), limited, here="gb10-128").admitted


def test_earlyoom_above_what_the_plan_leaves():
    a = decide(preset(), gb10(earlyoom=Earlyoom(40.0, None, 10.0)), here="gb10-128")
    assert not a.admitted
    assert "earlyoom kills below 48.7 GiB" in a.reasons[0]
    assert decide(preset(), gb10(earlyoom=Earlyoom(5.0, None, 10.0)), here="gb10-128").admitted


def test_unreadable_memory_is_refused_on_unified():
    a = decide(preset(), measure(MACHINES / "garbage"), here="gb10-128")
    assert not a.admitted
    assert "cannot be read" in a.reasons[0]


@pytest.mark.parametrize("here", ["cpu", None])
def test_other_machine_is_not_judged_and_says_so(here):
    a = decide(preset(), gb10(1), here=here)
    assert a.admitted
    assert "not judged: this machine is" in a.notes[0]


def test_discrete_card_uses_what_the_driver_says_is_free():
    r = preset(machine="rtx-5090")
    assert decide(r, gb10(1), here="rtx-5090", gpu_free=31 * GIB).admitted
    a = decide(r, gb10(1), here="rtx-5090", gpu_free=20 * GIB)
    assert not a.admitted
    assert "20.0 GiB free GPU memory" in a.notes[0]


def test_discrete_card_without_a_figure_takes_the_usual_one_and_says_so():
    a = decide(preset(machine="rtx-5090"), gb10(1), here="rtx-5090", gpu_free=None)
    assert a.admitted
    assert "usual figure" in a.notes[0]


def test_fixture_on_a_cpu_is_held_against_ram():
    r = preset("tiny-w4a4-dflash2", "cpu")
    vm = measure(MACHINES / "vm-x86-cgroup1")
    a = decide(r, vm, here="cpu")
    assert a.admitted
    assert "held against RAM" in a.notes[0]
    small = measure(MACHINES / "swapping")
    refused = decide(r, small, here="cpu")
    assert not refused.admitted
    assert "0.4 GiB of RAM" in refused.reasons[0]


def test_pool_that_does_not_fit_into_ram_names_one_that_does():
    tokens = 6_000_000
    a = decide(
        preset("tiny-w4a4-dflash2", "cpu", max_total_tokens=tokens),
        measure(MACHINES / "vm-x86-cgroup1"),
        here="cpu",
    )
    if a.admitted:
        pytest.fail("18 GiB of KV were admitted on 17.9 GiB")
    fits = int(a.mend.split(" = ")[1].split(" ")[0])
    assert decide(
        preset("tiny-w4a4-dflash2", "cpu", max_total_tokens=fits),
        measure(MACHINES / "vm-x86-cgroup1"),
        here="cpu",
    ).admitted


def test_floor_in_a_container_is_that_of_its_limit():
    """As the guard has it: 3 % of the limit, not of the machine, at least 512 MiB."""
    a = decide(preset("tiny-w4a4-dflash2", "cpu"), measure(MACHINES / "container-cgroup1"), here="cpu")
    assert "a floor of 0.5 GiB" in a.reasons[0]
