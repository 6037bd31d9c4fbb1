"""Pod networking: network namespaces, and the CNI plugins that set up interfaces in them.

`sandbox_network` is the entry point: it connects a sandbox, disconnects it and cleans up after a
crash. `cni` implements a CNI 1.1 runtime; `netns` manages network namespaces.
"""
