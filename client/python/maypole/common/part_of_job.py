"""init(comm=[0, 2]): a job of some of the launcher's ranks.

These ranks form a job of their own, beside those of the other ranks. libmaypole
reads its place from MAYPOLE_RANK and similar variables, which the launcher has
set for the whole job; while it joins, they contain the place in the part. The
job's id is derived from the whole job's and from the ranks, so that all ranks
of the part, and no others, have it.

On several nodes, the launcher must have put the same number of ranks on each:
only then does a rank know where the others are.

Thread contract: one thread at a time, because the process's environment is
changed. No framework is imported.
"""

import contextlib
import operator
import os
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from maypole.common.driver import Place

_LONGEST_ID = 63
_HINT = ("call init() without comm, and use add_process_set() for some of the "
         "ranks")


def ranks_of(comm: Any) -> Optional[list[int]]:
    """Returns the ranks that init(comm=...) asks for; None: all.

    Raises ValueError if it is neither a list of ranks nor a communicator.
    """
    if comm is None:
        return None
    if hasattr(comm, "Get_size"):  # of mpi4py
        return list(range(comm.Get_size()))
    try:
        ranks = [operator.index(rank) for rank in comm]
    except TypeError:
        ranks = [-1]
    if any(rank < 0 for rank in ranks):
        raise ValueError(f"init(comm={comm!r}): expected a list of ranks or a "
                         "communicator of mpi4py")
    # Horovod takes an empty list for "all ranks".
    return ranks or None


def variables(environ: Mapping[str, str],
              ranks: Optional[list[int]]) -> dict[str, str]:
    """Returns the variables to set while this rank joins the job of `ranks`.

    There are none if these are all ranks, or if the launcher has not set MAYPOLE_SIZE.

    Raises ValueError if this rank is not one of them, NotImplementedError if
    they are not in ascending order or their nodes are not known.
    """
    place = _place(environ)
    if ranks is None or place is None:
        return {}
    size, me = place.size, place.rank
    if ranks == list(range(size)):
        return {}
    if me not in ranks:
        raise ValueError(f"init(comm={ranks}): rank {me} is not in the list")
    if ranks != sorted(set(ranks)) or ranks[-1] >= size:
        raise NotImplementedError(
            f"init(comm={ranks}): expected different ranks of the launcher's "
            f"{size}, in ascending order; or {_HINT}")
    on_node = place.local_size
    own_node = place.cross_rank
    if (on_node * place.cross_size != size
            or own_node * on_node + place.local_rank != me):
        raise NotImplementedError(
            f"init(comm={ranks}): the launcher's nodes have different numbers "
            f"of ranks; {_HINT}")
    nodes = sorted({rank // on_node for rank in ranks})
    here = [rank for rank in ranks if rank // on_node == own_node]
    mark = f"-{zlib.crc32(repr(ranks).encode()):08x}"
    own = Place(ranks.index(me), len(ranks), here.index(me), len(here), nodes.index(own_node), len(nodes))
    job = environ.get("MAYPOLE_JOB", "")[:_LONGEST_ID - len(mark)] + mark
    return {**own.variables(["MAYPOLE_"]), "MAYPOLE_JOB": job}


def _place(environ: Mapping[str, str]) -> Optional[Place]:
    """This rank's place; None if the launcher has not set it in this form."""
    texts = [environ.get(f"MAYPOLE_{name.upper()}", "") for name in Place._fields]
    # Otherwise libmaypole reports what is wrong.
    return Place(*map(int, texts)) if all(text.isdecimal() for text in texts) else None


@contextlib.contextmanager
def environment(added: Mapping[str, str]) -> Iterator[None]:
    """Sets variables within the context."""
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def check_size(ranks: Optional[list[int]], size: int) -> None:
    """Raises NotImplementedError if the job is not that of `ranks`."""
    if ranks is not None and len(ranks) != size:
        raise NotImplementedError(
            f"init(comm=...): asks for ranks {ranks} of a job of {size}, which "
            f"needs a launcher that sets MAYPOLE_RANK and its like; {_HINT}")
