"""The framework-neutral layer: no framework is imported here.

basics        init, shutdown, rank, size, ...
constants     reduction operations
exceptions    what a failed operation raises
operations    submitting memory, handles, waiting
process_sets  the global process set
objects       Python objects as bytes
"""
