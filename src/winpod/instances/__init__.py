"""Windows Server machines configured as nodes, over SSH."""
