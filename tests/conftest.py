"""What every test may use."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.resume"]

# A virtual machine beside the tests makes an example take ten times as long: time is no property of the code here.
settings.register_profile("plimsoll", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("plimsoll")
