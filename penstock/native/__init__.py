"""Kernels compiled ahead: one library, one loader, one thin Python face for each family of kernels.

The C sources stand in native/ at the project's root; docs/native.md says how a kernel is added and tested.
"""
