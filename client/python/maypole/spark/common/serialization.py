"""save() and load() of estimators and models, as in pyspark.ml: `estimator.write().overwrite().save(path)`.

Parameters are pickled into a line of metadata in the format of Spark's own writers; backend and store are not saved,
because they describe one place and time. Loading unpickles: load only files that you trust.
"""

import base64
import json
import time
from typing import Any

from maypole.common import objects
from maypole.spark import requirements

requirements.need("pyspark")

from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter

_NOT_SAVED = ("backend", "store")
_KEY = "maypoleParams"


class _Writer(MLWriter):

    def __init__(self, instance: Any):
        super().__init__()
        self._instance = instance

    def saveImpl(self, path: str) -> None:
        instance = self._instance
        values = {
            param.name: instance.getOrDefault(param)
            for param in instance.params
            if instance.isSet(param) and param.name not in _NOT_SAVED
        }
        context = requirements.active_context()
        # The fields that Spark's readers, of a Pipeline for example, expect.
        line = json.dumps({
            "class": f"{type(instance).__module__}.{type(instance).__name__}",
            "timestamp": int(time.time() * 1000),
            "sparkVersion": context.version,
            "uid": instance.uid,
            "paramMap": {},
            "defaultParamMap": {},
            _KEY: base64.b64encode(bytes(objects.dumps(instance._pack(values)))).decode()
        })
        context.parallelize([line], 1).saveAsTextFile(f"{path}/metadata")


class _Reader(MLReader):

    def __init__(self, cls: Any):
        super().__init__()
        self._cls = cls

    def load(self, path: str) -> Any:
        metadata = json.loads(requirements.active_context().textFile(f"{path}/metadata", 1).first())
        instance = self._cls()
        instance._resetUid(metadata["uid"])
        instance._set(**instance._unpack(objects.loads(base64.b64decode(metadata[_KEY]))))
        return instance


class Saved(MLReadable, MLWritable):
    """Adds write(), save(), read() and load(). _pack() and _unpack() make values that can be pickled."""

    def write(self) -> Any:
        """A writer for this instance."""
        return _Writer(self)

    @classmethod
    def read(cls) -> Any:
        """A reader of this class."""
        return _Reader(cls)

    def _pack(self, values: dict[str, Any]) -> dict[str, Any]:
        return values

    def _unpack(self, values: dict[str, Any]) -> dict[str, Any]:
        return values
