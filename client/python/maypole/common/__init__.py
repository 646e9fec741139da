"""The framework-neutral layer: no framework is imported here.

basics         init, shutdown, rank, size, ...
constants      reduction operations
data_registry  where the servers of a data service are
exceptions     Maypole's exceptions
operations     submitting memory, handles, waiting
part_of_job    init(comm=[ranks])
process_sets   sets of ranks, for all collectives
collectives    the rules of arguments and results; join, barrier
rendezvous     torchrun's store, through which nodes find each other
objects        Python objects as bytes; broadcast_object, allgather_object
"""
