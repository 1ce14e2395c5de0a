"""The guard's loop: sample, probe, decide, act. Everything it touches is handed in, so that a test can drive it.

Order on a trip: the state says `tripped` and health turns 503 (nothing new is admitted), TERM to the server's whole family,
KILL to what is left after the grace time. The guard then ends with exit code 75, and the caller must not start the server
again into the same wall. A hang is different: the family is ended, the state says `wedged`, and a restart is welcome.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import httpx

from launch.errors import CannotWrite
from launch.guard.engine import Engine
from launch.guard.liveness import Liveness, Work
from launch.guard.policy import Guard, Limits, Sample, Trip
from launch.guard.state import Phase, State, save

PERIOD_S = 0.5
SAVE_EVERY_S = 5.0
PROBE_EVERY_S = 30.0
# The prober may be in the middle of a question when the run ends and the client is closed: httpx says RuntimeError.
NO_ANSWER = (httpx.HTTPError, RuntimeError)


class Samples(Protocol):
    """Where samples come from (`launch.guard.sampler.Sampler`)."""

    @property
    def sees_kernel_log(self) -> bool: ...

    def sample(self) -> Sample | None: ...


@dataclass
class Service:
    """Watch one server until it ends, trips or hangs.

    `server_alive` says whether the server's main process lives. `end_server` ends its family (True when nothing is left); it
    gets a function that says whether there is no time for the grace period.
    """

    samples: Samples
    limits: Limits
    engine: Engine
    liveness: Liveness
    state_path: Path
    server_alive: Callable[[], bool]
    end_server: Callable[[Callable[[], bool]], bool]
    say: Callable[[str], None] = print
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    state: State = field(default_factory=State)
    probe_every_s: float = PROBE_EVERY_S
    look_every_s: float = 5.0  # at the engine's counters while a probe is out
    phase_file: Path | None = None
    admission_file: Path | None = None
    _guard: Guard = field(init=False)
    _saved: float = field(default=float("-inf"), init=False)
    _blind: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._guard = Guard(self.limits)
        self.state.floor = self.limits.floor
        self.state.kernel_log = self.samples.sees_kernel_log
        self.state.move(Phase.LOADING, self.state.step)

    def run(self) -> Phase:
        """Until the server is gone; the phase it ended in: tripped, wedged or stopped."""
        prober = threading.Thread(target=self._probe_forever, name="probe", daemon=True)
        prober.start()
        self._save(force=True)
        while True:
            if not self.server_alive():
                self.state.move(Phase.STOPPED, "the server has ended")
                break
            trip = self._look()
            if trip is not None:
                self._trip(trip)
                break
            if self.liveness.hung(self.clock()):
                self._hung()
                break
            self._boot_step()
            self._save()
            self.sleep(PERIOD_S)
        self._save(force=True)
        return self.state.phase

    def _look(self) -> Trip | None:
        """One sample through the guard. Ten blind looks in a row are a trip: no figures is no safety."""
        sample = self.samples.sample()
        if sample is None:
            self._blind += 1
            return Trip("blind", "memory could not be read ten times in a row") if self._blind >= 10 else None
        self._blind = 0
        trip = self._guard.observe(sample)
        self.state.low_water = _least(self.state.low_water, self._guard.low_water)
        self.state.samples = self._guard.samples
        self.state.available, self.state.swap_used = sample.available, sample.swap_used
        if self.state.phase is Phase.READY and self.state.available_at_ready is None:
            self.state.available_at_ready = sample.available
        return trip

    def _trip(self, trip: Trip) -> None:
        self.state.trip = {"reason": trip.reason, "detail": trip.detail}
        self.state.move(Phase.TRIPPED)
        self._save(force=True)
        self.say(f"guard: stopping the server: {trip.reason}: {trip.detail}")
        if not self.end_server(self._still_falling):
            self.say("guard: processes of the server are left that cannot be killed")

    def _still_falling(self) -> bool:
        """After a trip: memory below half of the floor and lower than at the trip. Grace would cost the machine."""
        before = self.state.available
        sample = self.samples.sample()
        if sample is None or before is None:
            return True
        self.state.low_water = _least(self.state.low_water, sample.available)
        return sample.available < min(self.limits.floor // 2, before)

    def _hung(self) -> None:
        self.state.hangs += 1
        self.state.move(Phase.WEDGED, "no token within the deadline, and nothing moved")
        self._save(force=True)
        self.say("guard: the server hangs: ending it")
        if not self.end_server(lambda: False):
            self.say("guard: processes of the server are left that cannot be killed")

    def _boot_step(self) -> None:
        """Say in the state how far the boot has come; a new step is saved at once, for the health check."""
        if self.admission_file is not None and self.state.phase is Phase.LOADING and not self.state.forced:
            self.state.forced = read_forced(self.admission_file)
        if self.phase_file is None or self.state.phase is not Phase.LOADING:
            return
        try:
            step = self.phase_file.read_text(errors="replace").strip()
        except OSError:
            return
        if step and step != self.state.step:
            self.state.step = step
            self._save(force=True)

    def _save(self, *, force: bool = False) -> None:
        now = self.clock()
        if force or now - self._saved >= SAVE_EVERY_S:
            self._saved = now
            try:
                save(self.state_path, self.state)
            except CannotWrite as e:  # a full disk must not end the guard
                self.say(f"guard: {e}")

    def _probe_forever(self) -> None:
        while self.state.phase in (Phase.LOADING, Phase.READY):
            self.probe()
            self.sleep(self.probe_every_s if self.state.phase is Phase.READY else 1.0)

    def probe(self) -> None:
        """One real generation; while it is out, the engine's counters are read for signs of life.

        Until the first answer nothing can hang: loading has no deadline here, the boot has one of its own.
        """
        if self.state.phase is Phase.LOADING:
            if self._one_token(10.0):
                self.state.move(Phase.READY)
                self._save(force=True)
            return
        deadline = self.liveness.probe_sent(self.clock(), self._work() or self.liveness.last_work)
        answered = threading.Event()

        def ask() -> None:
            if self._one_token(deadline * 2):
                answered.set()

        worker = threading.Thread(target=ask, name="one-token", daemon=True)
        worker.start()
        while worker.is_alive() and not answered.is_set() and self.state.phase is Phase.READY:
            worker.join(self.look_every_s)
            if worker.is_alive() and (work := self._work()) is not None:
                self.liveness.progress(self.clock(), work)
        if answered.is_set():
            self.liveness.probe_answered()

    def _one_token(self, timeout_s: float) -> bool:
        try:
            return self.engine.one_token(timeout_s)
        except NO_ANSWER:
            return False

    def _work(self) -> Work | None:
        try:
            return self.engine.work()
        except NO_ANSWER:
            return None


def read_forced(path: Path) -> list[str]:
    """Why the start would have been refused without --force (launch/admission.py); empty for a regular start."""
    try:
        forced = json.loads(path.read_text())["forced"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [str(reason) for reason in forced] if isinstance(forced, list) else []


def _least(a: int | None, b: int | None) -> int | None:
    known = [x for x in (a, b) if x is not None]
    return min(known) if known else None
