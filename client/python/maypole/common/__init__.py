"""The framework-neutral layer: it imports no framework.

basics         init, shutdown, rank, size, ...
api            the names that all frameworks' modules have
compression    the base of compressors
constants      reduction operations
daemons        coordinators and agents, for Ray and Spark
data_registry  where the servers of a data service are
driver         the ranks' environment, for Ray and Spark
elastic_driver the policy of elastic jobs, for Ray and Spark
exceptions     Maypole's exceptions
guard          the program beside a daemon: both end with its parent
operations     submitting memory, handles, waiting
part_of_job    init(comm=[ranks])
process_sets   sets of ranks, for all collectives
collectives    the rules of arguments and results; join, barrier
rendezvous     torchrun's store, through which nodes find each other
objects        Python objects as bytes; broadcast_object, allgather_object
"""
