"""The guard's loop with injected samples, and against a mock engine over HTTP on a clock that runs a hundred times faster."""

import json
import threading
import time

import httpx
import pytest

from launch.guard.engine import HttpEngine, parse_work
from launch.guard.liveness import Liveness, Pace, Work
from launch.guard.policy import GIB, Limits, Sample
from launch.guard.service import Service
from launch.guard.state import Phase, State, load

from .mock_server import MockServer

LIM = Limits(floor=4 * GIB)
SPEED = 100.0


class Samples:
    """One after the other; the last one for ever. None is a blind look."""

    sees_kernel_log = True

    def __init__(self, *available, then=None):
        self.left = list(available)
        self.t = 0.0
        self.then = then

    def sample(self):
        self.t += 0.5
        last = len(self.left) == 1
        a = self.left[0] if last else self.left.pop(0)
        if self.then and last:
            self.then()
        return None if a is None else Sample(self.t, a)


class NoEngine:
    def work(self):
        raise httpx.ConnectError("nothing there")

    def one_token(self, timeout_s):
        raise httpx.ConnectError("nothing there")

    def metrics_text(self):
        raise httpx.ConnectError("nothing there")


class Run:
    """A service whose server lives until `stop` or until it is ended; sleeps take no time."""

    def __init__(self, tmp_path, samples, *, engine=None, leaves_orphan=False, **more):
        self.path = tmp_path / "state.json"
        self.stop = threading.Event()
        self.ended = 0
        self.said = []
        self.seen_at_end = None
        self.leaves_orphan = leaves_orphan
        self.service = Service(
            samples=samples,
            limits=LIM,
            engine=engine or NoEngine(),
            liveness=more.pop("liveness", Liveness(Pace(), 1000)),
            state_path=self.path,
            server_alive=lambda: not self.stop.is_set(),
            end_server=self.end,
            say=self.said.append,
            **{"sleep": lambda _s: time.sleep(0.001), **more},
        )

    def end(self, hurry):
        self.ended += 1
        self.hurried = [hurry() for _ in range(3)]
        self.seen_at_end = load(self.path)
        return not self.leaves_orphan


def test_trip_first_tells_then_ends(tmp_path):
    run = Run(tmp_path, Samples(50 * GIB, 10 * GIB, GIB))
    assert run.service.run() is Phase.TRIPPED
    assert run.ended == 1
    # Health must say no before the server is touched, so that nothing new is admitted.
    assert run.seen_at_end.phase is Phase.TRIPPED
    assert run.seen_at_end.health(time.time())[0] == 503
    state = load(run.path)
    assert state.trip["reason"] == "floor"
    assert state.low_water == GIB
    assert state.kernel_log is True
    assert run.said == [f"guard: stopping the server: floor: {state.trip['detail']}"]


@pytest.mark.parametrize(
    ("after", "hurried"),
    [
        (
            [3 * GIB, 3 * GIB, 3 * GIB],
            [False, False, False],
        ),  # between half and floor: the grace period is given
        ([GIB, GIB, 9 * GIB], [True, True, False]),
        ([None, 9 * GIB, 9 * GIB], [True, False, False]),  # blind: do not wait
    ],
)
def test_no_grace_while_memory_still_falls(tmp_path, after, hurried):
    """Tripped after two seconds below the floor, at 3 GiB of 4."""
    run = Run(tmp_path, Samples(50 * GIB, *[3 * GIB] * 5, *after))
    assert run.service.run() is Phase.TRIPPED
    assert run.hurried == hurried


def test_what_cannot_be_killed_is_said(tmp_path):
    run = Run(tmp_path, Samples(GIB), leaves_orphan=True)
    assert run.service.run() is Phase.TRIPPED
    assert "cannot be killed" in run.said[-1]


def test_no_figures_is_no_safety(tmp_path):
    run = Run(tmp_path, Samples(None))
    assert run.service.run() is Phase.TRIPPED
    assert load(run.path).trip["reason"] == "blind"


def test_nine_blind_looks_are_borne(tmp_path):
    run = Run(tmp_path, Samples(*[None] * 9, 50 * GIB, *[None] * 9, 50 * GIB))
    run.service.samples.then = run.stop.set
    assert run.service.run() is Phase.STOPPED
    assert run.ended == 0


def test_server_that_ends_by_itself_is_stopped(tmp_path):
    samples = Samples(50 * GIB, 50 * GIB, 40 * GIB)
    run = Run(tmp_path, samples)
    samples.then = run.stop.set
    assert run.service.run() is Phase.STOPPED
    assert load(run.path).low_water == 40 * GIB


def test_low_water_of_the_last_run_is_kept(tmp_path):
    samples = Samples(50 * GIB, 40 * GIB)
    run = Run(tmp_path, samples, state=State(low_water=5 * GIB, forced=["plan: too big"]))
    samples.then = run.stop.set
    run.service.run()
    state = json.loads(run.path.read_text())
    assert (state["low_water"], state["forced"]) == (5 * GIB, ["plan: too big"])


def test_full_disk_does_not_end_the_guard(tmp_path):
    run = Run(tmp_path, Samples(50 * GIB, 50 * GIB, GIB))
    (tmp_path / "file").write_text("")
    run.service.state_path = tmp_path / "file" / "state.json"
    assert run.service.run() is Phase.TRIPPED
    assert run.ended == 1


def test_boot_step_is_in_the_state(tmp_path):
    phase = tmp_path / "phase"
    phase.write_text("loading weights, 40 %\n")
    samples = Samples(50 * GIB, 50 * GIB)
    run = Run(tmp_path, samples, phase_file=phase)
    seen = []
    samples.then = lambda: (seen.append(load(run.path)), len(seen) > 3 and run.stop.set())
    run.service.run()
    assert seen[-1].step == "loading weights, 40 %"
    assert seen[-1].health(time.time())[0] == 503


@pytest.fixture
def mock():
    server = MockServer()
    yield server
    server.close()


@pytest.fixture
def fast(tmp_path, mock):
    """A service on a clock that runs SPEED times faster, against the mock engine, in a thread; joined at the end."""
    engine = HttpEngine(mock.url)
    run = Run(
        tmp_path,
        Samples(50 * GIB),
        engine=engine,
        liveness=Liveness(Pace(), 262_144),
        clock=lambda: time.monotonic() * SPEED,
        sleep=lambda s: time.sleep(s / SPEED),
        look_every_s=5.0 / SPEED,
        probe_every_s=30.0,
    )
    thread = threading.Thread(target=run.service.run, daemon=True)
    thread.start()
    until(lambda: run.service.state.phase is Phase.READY)
    yield run
    run.stop.set()
    mock.hang = False
    mock.prefill_done.set()
    thread.join(30)
    assert not thread.is_alive()
    engine.close()


def until(what, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.01)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("counters", ["move", "stand still until its end"])
def test_prefill_of_300_s_is_not_a_hang(fast, mock, counters):
    began = fast.service.clock()
    mock.running = 1
    mock.prefill_done.clear()
    until(lambda: fast.service.liveness.waiting)

    def lasted():
        if counters == "move":
            mock.tokens += 2048
        return fast.service.clock() - began >= 300.0

    until(lasted)
    assert fast.service.state.phase is Phase.READY
    assert fast.service.liveness.waiting
    mock.running, before = 0, mock.answers
    mock.prefill_done.set()
    until(lambda: mock.answers > before and not fast.service.liveness.waiting)
    assert fast.service.state.phase is Phase.READY
    assert fast.ended == 0


@pytest.mark.timeout(180)
@pytest.mark.parametrize("how", ["silent", "error"])
def test_engine_that_gives_no_token_is_a_hang(fast, mock, how):
    setattr(mock, {"silent": "hang", "error": "refuse"}[how], True)
    until(lambda: fast.service.state.phase is Phase.WEDGED and fast.ended == 1)
    assert fast.seen_at_end.phase is Phase.WEDGED
    assert fast.seen_at_end.health(time.time())[0] == 503
    assert fast.said == ["guard: the server hangs: ending it"]
    assert fast.service.state.trip is None


def test_memory_at_ready_is_noted(fast):
    until(lambda: fast.service.state.available_at_ready is not None)
    assert fast.service.state.available_at_ready == 50 * GIB
    assert fast.service.state.answered


def test_work_from_the_engines_own_metrics():
    text = (
        "# HELP sglang:num_running_reqs x\n# TYPE sglang:num_running_reqs gauge\n"
        'sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 2.0\n'
        'sglang:num_queue_reqs{model_name="m"} 3.0\n'
        '# TYPE sglang:realtime_tokens_total counter\nsglang:realtime_tokens_total{mode="prefill_compute"} 2048.0\n'
        'sglang:realtime_tokens_total{mode="decode"} 7.0\n'
        "# TYPE sglang:prompt_tokens_total counter\nsglang:prompt_tokens_total 100.0\n"
        "# TYPE sglang:e2e histogram\nsglang:e2e_sum 5.0\nsglang:e2e_count 1.0\n"
    )
    assert parse_work(text) == Work(2, 3, 2148, 7)
    assert parse_work("") == Work()
