"""The network and what surrounds it: policies, value heads, parameters, number formats and optimisers."""
