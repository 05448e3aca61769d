"""What is done to a machine: records. Adding one is adding a record (docs/lab.md shows how).

Percent are of MemTotal; 1 GiB/s on a box of 121.6 GiB is 0.82 %/s.
"""

from dataclasses import dataclass, replace

from lab.engine.kinds import KINDS
from lab.engine.main import ORDINARY
from lab.engine.plan import Phase, Plan


@dataclass(frozen=True)
class Scenario:
    """One way of using memory. `must_live`: nobody has a reason to kill it, and whoever does is wrong."""

    name: str
    what: str
    plan: Plan
    must_live: bool = False

    @property
    def program(self) -> str:
        """The command that is started."""
        return self.plan.engine if self.plan.memory == "driver" else ORDINARY

    @property
    def comms(self) -> tuple[str, ...]:
        """The names of its processes, as the kernel cuts them."""
        return KINDS[self.plan.engine].comms if self.plan.memory == "driver" else (ORDINARY,)


WEIGHTS = Phase("weights", grow_percent=30, percent_per_s=10, read_percent=30, loading=True)
"""12 GiB/s of a 121.6 GiB box, and as much page cache as the file is large."""
KV_CACHE = Phase("KV cache", grow_percent=75, percent_per_s=(14, 34), loading=True)
"""17 to 41 GiB/s; with the weights more than there is. A box froze with 97 % held by the driver, and no place for the
rest; here nearly all of the rest goes to swap, and with 97 % the machine was slow and went on."""
STEADY = (WEIGHTS, Phase("KV cache", grow_percent=35, percent_per_s=20, loading=True))
"""65 %, on which machines of 1.5 GiB run with 250 MiB to spare."""
PREFILL = Phase("prefill", grow_percent=3, hold_s=2, gives_back=True)

RAMP = Plan((WEIGHTS, KV_CACHE))

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("ramp", "the KV cache is taken at 17 to 41 GiB/s, until nothing is left", RAMP),
        Scenario(
            "slow-ramp",
            "the same at 2 GiB/s",
            Plan((WEIGHTS, replace(KV_CACHE, percent_per_s=1.6))),
        ),
        Scenario(
            "spike",
            "a steady model, and a run of its profiler up to 92 %, for 20 s",
            Plan((*STEADY, Phase("profile", grow_percent=27, percent_per_s=34, hold_s=20, gives_back=True))),
        ),
        Scenario(
            "leak",
            "a steady model that grows by 0.6 GiB/s without an end",
            Plan((*STEADY, Phase("leak", grow_percent=32, percent_per_s=0.5))),
        ),
        Scenario("control", "the ramp's amount and rate, of ordinary memory", replace(RAMP, memory="ordinary")),
        Scenario(
            "healthy",
            "a profiler's spike, prompts, and a working set that takes a minute to warm up and then stays",
            Plan(
                (
                    *STEADY,
                    Phase("profile", grow_percent=5, percent_per_s=20, hold_s=1, gives_back=True, loading=True),
                    Phase("warm-up", grow_percent=3, percent_per_s=0.05),
                    *(PREFILL, Phase("pause", hold_s=3)) * 6,
                )
            ),
            must_live=True,
        ),
    )
}
