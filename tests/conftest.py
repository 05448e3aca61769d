"""What every test may use."""

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.resume"]

# A virtual machine beside the tests makes an example take ten times as long: time is no property of the code here.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same files give the same result; new examples are looked for with `HYPOTHESIS_PROFILE=search`.
settings.register_profile("plimsoll", settings.get_profile("search"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "plimsoll"))
