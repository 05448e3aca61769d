"""The guard: measures memory honestly and stops the right workload before the kernel livelocks.

`sampler` reads, `decide` and `choose` decide on plain frozen data, `act` and `aftermath` act, `records` and
`recording` write down; `daemon` is what ties them together.
"""
