"""A Parquet dataset, divided among ranks: each rank reads its own rows, in batches of numpy arrays.

The rows of all files, in the order of the files' names, are cut into as many equal ranges as there are ranks, so each
row belongs to one rank. A rank reads the row groups that overlap its range. All ranks make the same number of steps:
a rank whose range is one row shorter uses one row twice.
"""

import posixpath
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

import numpy

from maypole.spark import requirements
from maypole.spark.common import columns

_SHUFFLE_ROWS = 1 << 17  # how many rows are shuffled at a time by default
Batch = dict[str, numpy.ndarray]


class RowGroup(NamedTuple):
    """Row group `number` of a file, and how many rows it has."""

    path: str
    number: int
    rows: int


class Piece(NamedTuple):
    """Rows begin .. end - 1 of a row group."""

    group: RowGroup
    begin: int
    end: int


def divide(groups: Sequence[RowGroup], size: int) -> list[list[Piece]]:
    """Returns the pieces of each of `size` ranks; the ranks' numbers of rows differ by at most one. Pure."""
    total = sum(group.rows for group in groups)
    shorter, longer_ones = divmod(total, size)
    out: list[list[Piece]] = []
    begin = 0
    for rank in range(size):
        end = begin + shorter + (rank < longer_ones)
        pieces, at = [], 0
        for group in groups:
            first, last = max(begin, at), min(end, at + group.rows)
            if first < last:
                pieces.append(Piece(group, first - at, last - at))
            at += group.rows
        out.append(pieces)
        begin = end
    return out


def steps(total: int, size: int, batch_size: int) -> int:
    """Returns the number of batches of each rank in an epoch."""
    rows = -(-total // size)
    return -(-rows // batch_size)


def row_groups(store: Any, path: str) -> list[RowGroup]:
    """Returns the row groups of all files below the path. Raises ValueError if there are no rows."""
    fs = requirements.need("pyarrow.fs")
    parquet = requirements.need("pyarrow.parquet")
    root = store.get_localized_path(path)
    infos = store.fs.get_file_info(fs.FileSelector(root, recursive=True)) if store.exists(path) else []
    names = sorted(info.path for info in infos if info.type == fs.FileType.File)
    out = []
    for name in names:
        if not posixpath.basename(name).startswith(("_", ".")):
            with store.fs.open_input_file(name) as f:
                metadata = parquet.ParquetFile(f).metadata
            out += [RowGroup(name, i, metadata.row_group(i).num_rows) for i in range(metadata.num_row_groups)]
    out = [group for group in out if group.rows]
    if not out:
        raise ValueError(f"there are no rows in {path}")
    return out


class Reader:
    """The rows of one rank. names: columns. cache: whether rows stay in memory after the first epoch.

    padded_rows: the number of rows in an epoch; if the rank has one row less, the first row is repeated at the end.
    """

    def __init__(self,
                 store: Any,
                 pieces: Sequence[Piece],
                 names: Sequence[str],
                 cache: bool = False,
                 padded_rows: Optional[int] = None):
        self._store = store
        self._pieces = list(pieces)
        self._names = list(names)
        self._cache: Optional[dict[Piece, Batch]] = {} if cache else None
        rows = sum(piece.end - piece.begin for piece in pieces)
        self._padding = max(0, (rows if padded_rows is None else padded_rows) - rows)

    def batches(self,
                batch_size: int,
                count: int,
                seed: Optional[int] = None,
                shuffle_rows: Optional[int] = None) -> Iterator[Batch]:
        """Yields `count` batches of batch_size rows; after the last row, whose batch may be shorter, starts again.

        seed: None: in order. Otherwise pieces are read in random order, and rows are shuffled, shuffle_rows at a time.
        """
        made = cycle = 0
        while made < count:
            parts = self._rows(None if seed is None else seed + cycle, shuffle_rows or _SHUFFLE_ROWS)
            for batch in _batches(parts, batch_size):
                yield batch
                made += 1
                if made == count:
                    break
            cycle += 1

    def _rows(self, seed: Optional[int], shuffle_rows: int) -> Iterator[Batch]:
        """Yields all rows once, in parts."""
        random = numpy.random.default_rng(seed)
        order = range(len(self._pieces)) if seed is None else random.permutation(len(self._pieces))
        first: Optional[Batch] = None
        parts: list[Batch] = []
        for i in order:
            parts.append(self._read(self._pieces[i]))
            first = first or {name: value[:1] for name, value in parts[0].items()}
            if seed is None or sum(map(_length, parts)) >= shuffle_rows:
                yield parts[0] if seed is None else _mixed(parts, random)
                parts = []
        if parts:
            yield _mixed(parts, random)
        if self._padding and first is not None:
            yield {name: numpy.repeat(value, self._padding, axis=0) for name, value in first.items()}

    def _read(self, piece: Piece) -> Batch:
        if self._cache is not None and piece in self._cache:
            return self._cache[piece]
        parquet = requirements.need("pyarrow.parquet")
        with self._store.fs.open_input_file(piece.group.path) as f:
            table = parquet.ParquetFile(f).read_row_group(piece.group.number, columns=self._names)
        table = table.slice(piece.begin, piece.end - piece.begin)
        part = {name: columns.to_array(table, name) for name in self._names}
        if self._cache is not None:
            self._cache[piece] = part
        return part


def _length(part: Batch) -> int:
    return len(next(iter(part.values())))


def _batches(parts: Iterator[Batch], batch_size: int) -> Iterator[Batch]:
    """Yields the rows of the parts in batches, the last of which may be shorter."""
    rest: Optional[Batch] = None
    for part in parts:
        rest = part if rest is None else {name: numpy.concatenate([rest[name], part[name]]) for name in rest}
        at = 0
        while _length(rest) - at >= batch_size:
            yield {name: value[at:at + batch_size] for name, value in rest.items()}
            at += batch_size
        rest = {name: value[at:] for name, value in rest.items()}
    if rest is not None and _length(rest):
        yield rest


def _mixed(parts: list[Batch], random: Any) -> Batch:
    whole = {name: numpy.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = random.permutation(_length(whole))
    return {name: value[order] for name, value in whole.items()}


class Data(NamedTuple):
    """A training or validation set as the driver describes it to the ranks."""

    store: Any
    groups: list[RowGroup]
    names: list[str]

    @property
    def total(self) -> int:
        """The number of rows of all ranks together."""
        return sum(group.rows for group in self.groups)

    def of_rank(self, rank: int, size: int, cache: bool) -> Reader:
        """Returns a Reader of the rank's rows."""
        return Reader(self.store, divide(self.groups, size)[rank], self.names, cache, -(-self.total // size))


def lengths(data: Data) -> dict[str, tuple[int, ...]]:
    """Returns the shape of a row of each column, from the first rows."""
    first = data.groups[0]
    piece = Piece(first, 0, min(first.rows, 8))
    part = next(Reader(data.store, [piece], data.names).batches(1, 1))
    return {name: value.shape[1:] for name, value in part.items()}
