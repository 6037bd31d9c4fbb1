"""What a cluster has of instances: who asks for them, how they join, and the Nodes they become."""
