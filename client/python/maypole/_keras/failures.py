"""Errors of TensorFlow and JAX in which one of Maypole's operations has failed.

Thread contract: any thread.
"""

import sys
from typing import Optional

from maypole.common.exceptions import HorovodInternalError


def internal_error(error: Exception) -> Optional[HorovodInternalError]:
    """The HorovodInternalError for such an error; None for others, and for those that are one."""
    if isinstance(error, HorovodInternalError):
        return None
    found = None
    if "maypole.tensorflow" in sys.modules:
        from maypole.tensorflow._elastic import internal_error as of_tensorflow
        found = of_tensorflow(error)
    if found is None and "maypole.jax" in sys.modules:
        from maypole.jax.elastic import internal_error as of_jax
        found = of_jax(error)
    return found
