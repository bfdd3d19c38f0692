"""A deterministic simulation: kpsplit's own code on simulated logs and clocks (docs/simulation.md)."""
