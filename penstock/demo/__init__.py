"""The demonstration: a dataset larger than memory, a naive job that is killed, and penstock on the same data."""
