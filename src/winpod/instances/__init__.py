"""Windows Server machines made into nodes, over SSH."""
