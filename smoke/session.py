"""What a check gets: the engine, what it should be, what it says of itself, and where to write what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from smoke.causes import explain
from smoke.engine.client import NO_THINK, Engine
from smoke.engine.facts import EngineFacts, gather
from smoke.errors import SmokeError
from smoke.limit import TimeLimit
from smoke.oracle import Oracle, find
from smoke.profiles import Profile
from smoke.record import Recorder
from smoke.subject import Subject
from smoke.targets import Boot, NotRun, Target
from smoke.wait import PortOpen, Took, split_boot, start_phases, tail, wait_for
from smoke.workload.prompts import Prompt, make


@dataclass
class Limits:
    """Patience in seconds, and how close is close. Tests of the suite itself make them small."""

    cancel_s: float = 2.0
    idle_s: float = 60.0
    comeback_s: float = 600.0
    poll_s: float = 0.05
    soak_slope: float = 64e6  # bytes of memory an hour that may go
    soak_least: float = (
        256e6  # bytes that must have gone before it is called creep: caches warm up, and then stop
    )


@dataclass
class Session:
    subject: Subject
    profile: Profile
    target: Target
    rec: Recorder
    seed: int = 1
    limits: Limits = field(default_factory=Limits)
    deadlines: dict[str, float] = field(default_factory=dict)
    say: Callable[[str], None] = print
    dead: str | None = None
    boots: int = 0
    oracle_override: Oracle | None = None
    control_url: str | None = None
    limit: TimeLimit = field(default_factory=TimeLimit)
    # Set after a deliberate kill or another arm's boot: the next check that needs the engine starts it under this name.
    down: str | None = None
    memo: dict[str, str] = field(
        default_factory=dict
    )  # answers of one boot that a later one is compared with
    own_memory: list[tuple[float, float]] = field(
        default_factory=list
    )  # (hour, bytes) of the engine during a soak
    logs: dict[str, str] = field(default_factory=dict)  # boot name -> the engine's log of that boot
    _boot_name: str = ""
    _engine: Engine | None = None
    _facts: EngineFacts | None = None

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise NotRun(self.dead or "the engine was not started")
        return self._engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def start(self, boot: Boot | None = None, name: str | None = None) -> list[Took]:
        """Start (or find) the engine and wait until it is really ready. Raises SmokeError."""
        boot = boot or Boot()
        self.keep_log()
        self.close()
        self._facts = None
        self.down = None
        self.boots += 1
        self._boot_name = name or f"boot {self.boots}"
        self.target.start(boot)
        headers = {"Authorization": f"Bearer {self.target.api_key}"} if self.target.api_key else {}
        took = wait_for(self.target, start_phases(headers, self.deadlines, self.target.owns))
        self._engine = Engine(self.target.url, self.target.api_key, timeout=self.profile.request_s)
        self._engine.model = self.facts.served_name or self._served_model() or "default"
        timings = self.facts.log.timings if self.facts.log else {}
        self.rec.boot(self._boot_name, split_boot(took, timings))
        return took

    def keep_log(self) -> None:
        """Remember the log of the boot that runs: its successor starts a new one."""
        if self._boot_name and self.target.has_log:
            self.logs[f"{self.boots}-{self._boot_name}"] = self.target.log()

    def revive(self) -> None:
        """Start the engine again if a check left it down. Sets `dead` when it does not come."""
        if self.down is None:
            return
        name = self.down
        try:
            self.start(Boot(), name)
        except SmokeError as e:
            self.dead = f"the engine did not come back ({name}): {e.problem}"

    def _served_model(self) -> str | None:
        r = self.engine.request("GET", "/v1/models")
        try:
            return str(r.json()["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError):
            return None

    @property
    def facts(self) -> EngineFacts:
        """Read once per boot, when first asked for."""
        if self._facts is None:
            log = self.target.log() if self.target.has_log else None
            self._facts = gather(self.engine.server_info(), log)
        return self._facts

    @property
    def known_facts(self) -> EngineFacts | None:
        """The facts read so far, without asking the engine."""
        return self._facts

    def fresh_facts(self) -> EngineFacts:
        self._facts = None
        return self.facts

    @property
    def context(self) -> int:
        return self.facts.context_length or int(self.subject.engine.get("context_length") or 0) or 4096

    @property
    def pool(self) -> int | None:
        return self.facts.pool_tokens

    @property
    def streams(self) -> int:
        """How many requests the engine runs at once, at most 8 for our purposes."""
        return max(1, min(8, self.facts.running_limit or self.facts.running_asked or 8))

    @property
    def oracle(self) -> Oracle:
        """The planted fixture's reference. NotRun when there is none on this machine."""
        found = self.oracle_override or find(self.target.host_path(self.facts.model_path or ""))
        if found is None:
            raise NotRun(
                f"no oracle.json beside {self.facts.model_path} (build it: sparkserve fixtures build)"
            )
        return found

    def need(self, condition: object, reason: str, *, matters: bool = False) -> None:
        """Report the running check as not run, unless `condition`; `matters` as in NotRun."""
        if not condition:
            raise NotRun(reason, matters=matters)

    def prompt(self, family: str, length: int, salt: int = 0, ending: str | None = None) -> Prompt:
        return make(family, self.seed * 1000 + salt, length, self.engine.tokenize, ending)

    def colour(self) -> str:
        """The answer that two boots of one engine are compared by."""
        d = self.engine.chat("Name a colour.", max_tokens=16, **NO_THINK)
        return str(d["choices"][0]["message"]["content"])

    def check_life(self, where: str) -> None:
        """Called after a failed check: if the engine is gone, the rest is not run, and the reason is said once."""
        if self.down is not None:
            return
        missing = PortOpen().look(self.target)
        life = self.target.life()
        if life.alive is False or (missing and self.target.has_log):
            cause = explain(life.exit_code, tail(self.target.log(), 400))
            self.dead = f"the engine died during {where}: {cause.title}"
        elif missing:
            self.dead = f"the server went away during {where}: {missing}"
