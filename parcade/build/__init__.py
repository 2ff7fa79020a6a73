"""Makes the parts of a run from its config: policy, algorithm, exchange, environments and source."""
