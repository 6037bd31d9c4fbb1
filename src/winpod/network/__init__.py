"""How pods are connected: network namespaces, and CNI plugins that put interfaces into them.

`sandboxes` is the way in: one call connects a sandbox, one takes it apart, one sweeps up after a
crash. `cni` speaks CNI 1.1 to any plugin; `namespaces` makes the namespaces.
"""
