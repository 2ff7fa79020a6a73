"""What puts the parts of a run together from its config: policy, algorithm, exchange, environments and source."""
