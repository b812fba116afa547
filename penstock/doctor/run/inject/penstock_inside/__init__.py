"""The hooks inside of a supervised script.

Covers: what the script is doing (board), what it called (calls), who holds memory (holders), stacks, probes.
Does not cover: sampling memory from outside (penstock/doctor/run).
"""
