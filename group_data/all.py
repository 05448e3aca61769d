"""Connection settings for every host, and only those.

pyinfra reads this file, from the directory it is started in, before it connects to anything, for a host given
on the command line as well; so this is where an invalid inventory ends the run.
"""

from plimsoll.inventory import load_or_exit

load_or_exit()

# pyinfra's own default accepts whatever key an unknown host shows
ssh_strict_host_key_checking = "yes"

# A box short of memory took about 50 s to answer a login, more than paramiko's 15 s for the banner. One that
# stalls once connected would hold every other host for paramiko's hour of channel timeout.
ssh_paramiko_connect_kwargs = {"banner_timeout": 120, "auth_timeout": 120, "channel_timeout": 30}

# Once more, and later, because sshd drops logins at random while many are pending: MaxStartups let 38 of 50 at
# once through a jump host. Not more often, because a host that never shows its banner takes all of them.
ssh_connect_retries = 1
ssh_connect_retry_min_delay = 1.0
ssh_connect_retry_max_delay = 5.0

# One command; what is known to take longer, such as installing a package, says so itself.
_timeout = 120
