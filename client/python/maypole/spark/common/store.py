"""Where estimators keep intermediate data (DataFrames as Parquet), checkpoints and logs.

A Store has two forms of a path: the full one, with its scheme ("file:///x", "hdfs://h/x"), to which Spark writes, and
the localized one, without it, for pyarrow's file system, which everything else uses. A store can be pickled; ranks
open the file system again.
"""

import contextlib
import os
import posixpath
import tempfile
from collections.abc import Iterator
from typing import Any, Callable, Optional

from maypole.spark import requirements


class Store:
    """The interface. create() makes one for a path."""

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> Any:
        """Returns a store for the path, by its scheme: HDFSStore, DBFSLocalStore, else FilesystemStore.

        Args:
            prefix_path: the directory.
            *args: for that class.
            **kwargs: for that class.
        """
        for kind in (HDFSStore, DBFSLocalStore):
            if kind.matches(prefix_path):
                return kind(prefix_path, *args, **kwargs)
        return FilesystemStore(prefix_path, *args, **kwargs)


class AbstractFilesystemStore(Store):
    """A store below prefix_path. The other paths are by default directories in it.

    Args:
        prefix_path: the directory.
        train_path: where the training data lie, if not in the directory.
        val_path: where the validation data lie, if not in the directory.
        test_path: where the test data lie, if not in the directory.
        runs_path: where the runs lie, if not in the directory.
        save_runs: whether runs leave checkpoints and logs.
        storage_options: options for fsspec, if pyarrow does not know the scheme.
        checkpoint_filename: the file name of each run's checkpoint.
    """

    def __init__(self,
                 prefix_path: str,
                 train_path: Optional[str] = None,
                 val_path: Optional[str] = None,
                 test_path: Optional[str] = None,
                 runs_path: Optional[str] = None,
                 save_runs: bool = True,
                 storage_options: Any = None,
                 checkpoint_filename: Optional[str] = None):
        self.prefix_path = self.get_full_path(prefix_path)
        self.storage_options = storage_options
        self.checkpoint_filename = checkpoint_filename or "checkpoint"
        self._train_path = self._path(train_path, "intermediate_train_data")
        self._val_path = self._path(val_path, "intermediate_val_data")
        self._test_path = self._path(test_path, "intermediate_test_data")
        self._runs_path = self._path(runs_path, "runs")
        self._save_runs = save_runs
        self._fs: Any = None

    def __getstate__(self) -> Any:
        return dict(vars(self), _fs=None)

    def _path(self, path: Optional[str], name: str) -> str:
        return self.get_full_path(path) if path is not None else posixpath.join(self.prefix_path, name)

    @property
    def fs(self) -> Any:
        """The pyarrow.fs.FileSystem of localized paths."""
        if self._fs is None:
            self._fs = self._open()
        return self._fs

    def get_filesystem(self) -> Any:
        """Fs."""
        return self.fs

    def _open(self) -> Any:
        fs = requirements.need("pyarrow.fs")
        try:
            return fs.FileSystem.from_uri(self.prefix_path)[0]
        except ValueError:  # an unknown scheme
            fsspec = requirements.need("fsspec")
            scheme = self.prefix_path.partition("://")[0]
            return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(scheme, **(self.storage_options or {}))))

    def get_full_path(self, path: str) -> str:
        """Returns the path with a scheme; a path without one is in the local file system."""
        if "://" in path:
            return path
        path = path[len("file:"):] if path.startswith("file:") else path
        return "file://" + os.path.abspath(path)

    def get_localized_path(self, path: str) -> str:
        """Returns the path for `fs`: without scheme, and without host if the file system has one."""
        scheme, separator, rest = path.partition("://")
        if not separator:
            return path
        return rest if scheme not in ("hdfs", "viewfs") else rest[rest.find("/"):]

    def _indexed(self, path: str, idx: Optional[Any]) -> str:
        return path if idx is None else f"{path}.{idx}"

    def get_train_data_path(self, idx: Optional[Any] = None) -> str:
        """The path of the training data. idx: which of the DataFrames; None: the data that fit_on_parquet() reads."""
        return self._indexed(self._train_path, idx)

    def get_val_data_path(self, idx: Optional[Any] = None) -> str:
        """The path of the validation data."""
        return self._indexed(self._val_path, idx)

    def get_test_data_path(self, idx: Optional[Any] = None) -> str:
        """The path of test data, which estimators do not use."""
        return self._indexed(self._test_path, idx)

    def saving_runs(self) -> bool:
        """Whether runs leave checkpoints and logs."""
        return self._save_runs

    def get_runs_path(self) -> str:
        """The directory of all runs."""
        return self._runs_path

    def get_run_path(self, run_id: str) -> str:
        """The directory of one run."""
        return posixpath.join(self._runs_path, run_id)

    def get_checkpoint_path(self, run_id: str) -> Optional[str]:
        """The directory with the run's checkpoint; None without runs."""
        return self.get_run_path(run_id) if self._save_runs else None

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """The run's files with this suffix, localized, sorted."""
        selector = requirements.need("pyarrow.fs").FileSelector(self.get_localized_path(self.get_run_path(run_id)))
        return sorted(info.path for info in self.fs.get_file_info(selector) if info.path.endswith(suffix))

    def get_logs_path(self, run_id: str) -> Optional[str]:
        """The directory with the run's logs; None without runs."""
        return posixpath.join(self.get_run_path(run_id), self.get_logs_subdir()) if self._save_runs else None

    def get_checkpoint_filename(self) -> str:
        """The name of the checkpoint in get_checkpoint_path()."""
        return self.checkpoint_filename

    def get_logs_subdir(self) -> str:
        """The name of the directory with logs in a run."""
        return "logs"

    def exists(self, path: str) -> bool:
        """Whether a file or directory exists at the path."""
        fs = requirements.need("pyarrow.fs")
        return self.fs.get_file_info(self.get_localized_path(path)).type != fs.FileType.NotFound

    def read(self, path: str) -> bytes:
        """The file's content."""
        with self.fs.open_input_stream(self.get_localized_path(path)) as f:
            return f.read()

    def write(self, path: str, data: bytes) -> None:
        """Replaces the file, atomically if the file system can move files; makes its directory."""
        path = self.get_localized_path(path)
        self.fs.create_dir(posixpath.dirname(path), recursive=True)
        partial = f"{path}.{os.getpid()}.partial"
        with self.fs.open_output_stream(partial) as f:
            f.write(data)
        self.fs.move(partial, path)

    def write_text(self, path: str, text: str) -> None:
        """write() of text."""
        self.write(path, text.encode())

    def is_parquet_dataset(self, path: str) -> bool:
        """Whether Parquet can be read from the path."""
        try:
            return self.get_parquet_dataset(path) is not None
        except Exception:  # any error means that it is not one
            return False

    def get_parquet_dataset(self, path: str) -> Any:
        """A pyarrow.parquet.ParquetDataset."""
        return requirements.need("pyarrow.parquet").ParquetDataset(self.get_localized_path(path), filesystem=self.fs)

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], Any]:
        """Returns a function that makes a context with a temporary directory on the rank's machine."""

        @contextlib.contextmanager
        def local_run_path() -> Iterator[str]:
            with tempfile.TemporaryDirectory(prefix="maypole-spark-") as directory:
                yield directory

        return local_run_path

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """Returns a function that copies a directory of the rank's machine into the run's directory."""

        def sync(directory: str) -> None:
            for at, _, names in os.walk(directory):
                for name in names:
                    relative = os.path.relpath(os.path.join(at, name), directory)
                    with open(os.path.join(at, name), "rb") as f:
                        self.write(posixpath.join(self.get_run_path(run_id), relative), f.read())

        return sync


class FilesystemStore(AbstractFilesystemStore):
    """A store at any path that pyarrow or fsspec knows: local, file://, s3://, gs://, ..."""


class LocalStore(FilesystemStore):
    """A store in the local file system, which must be the same directory on all hosts (NFS, for example)."""

    @classmethod
    def matches(cls, path: str) -> bool:
        """Whether it is a local path."""
        return "://" not in path or path.startswith("file://")


class HDFSStore(AbstractFilesystemStore):
    """A store in HDFS: hdfs://host:port/x, hdfs:///x or /x. It needs libhdfs, see pyarrow's documentation.

    Args:
        prefix_path: the directory.
        host: as for pyarrow.fs.HadoopFileSystem.
        port: as for pyarrow.fs.HadoopFileSystem.
        user: as for pyarrow.fs.HadoopFileSystem.
        kerb_ticket: as for pyarrow.fs.HadoopFileSystem.
        driver: without effect.
        extra_conf: as for pyarrow.fs.HadoopFileSystem.
        temp_dir: without effect.
        **kwargs: as for FilesystemStore.
    """

    def __init__(self,
                 prefix_path: str,
                 host: Optional[str] = None,
                 port: Optional[int] = None,
                 user: Optional[str] = None,
                 kerb_ticket: Optional[str] = None,
                 driver: str = "libhdfs",
                 extra_conf: Any = None,
                 temp_dir: Optional[str] = None,
                 **kwargs: Any):
        authority = prefix_path[len("hdfs://"):].partition("/")[0] if self.matches(prefix_path) else ""
        name, _, number = authority.partition(":")
        self._host, self._port = host or name or "default", port or int(number or 0)
        self._authority = authority
        self._options = {"user": user, "kerb_ticket": kerb_ticket, "extra_conf": extra_conf}
        super().__init__(prefix_path, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Whether it is a path of HDFS."""
        return path.startswith("hdfs://")

    def get_full_path(self, path: str) -> str:
        """The path as a URL of HDFS."""
        return path if "://" in path else f"hdfs://{self._authority}{path if path.startswith('/') else '/' + path}"

    def _open(self) -> Any:
        return requirements.need("pyarrow.fs").HadoopFileSystem(self._host, self._port, **self._options)


class DBFSLocalStore(FilesystemStore):
    """A store in Databricks' file system: dbfs:/x, /dbfs/x or file:///dbfs/x, which is /dbfs/x on each host."""

    @classmethod
    def matches(cls, path: str) -> bool:
        """Whether it is a path of DBFS."""
        return path.startswith(("dbfs:/", "/dbfs/", "file:///dbfs/"))

    def get_full_path(self, path: str) -> str:
        """Returns the path in the driver's file system."""
        if path.startswith("dbfs:/"):
            path = "/dbfs/" + path[len("dbfs:/"):].lstrip("/")
        return super().get_full_path(path)
