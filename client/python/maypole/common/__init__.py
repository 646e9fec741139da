"""The framework-neutral layer: no framework is imported here.

basics        init, shutdown, rank, size, ...
constants     reduction operations
exceptions    what a failed operation raises
operations    submitting memory, handles, waiting
process_sets  sets of ranks, for all collectives
objects       Python objects as bytes
"""
