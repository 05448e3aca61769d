"""`plimsoll rollout`: a fleet, a canary first, and a stop at the first bad host.

Each host is deployed by a process of its own, `pyinfra @ssh/HOST deploy.py -y`, and not through pyinfra's API in
this one. A host that hangs, crashes or makes pyinfra raise then delays and ends nobody else's run, where one process
for all has a barrier after each operation and ends everybody's run for one host's exception; gevent's replacements
of the standard library stay out of this process; the log of a host is what its process says; and what was begun on
a host is carried to its end when this process is killed. Such a process costs 0.7 s of processor time and 56 MiB
before it connects (pyinfra 3.10, Python 3.11, EPYC), next to the 20 s and more that a host takes for a first deploy;
a host that is as it should be costs none, because it is only looked at.
"""
