"""What the bindings' compressors have in common; each binding adds those that cast its tensors.

Thread contract: stateless.
"""

from typing import Any


class Compressor:
    """Makes a tensor smaller before an allreduce and restores it after.

    Subclasses may be passed as `compression=`. decompress() gets the context that compress() returned. The tensor from
    compress() is reduced by Average or Sum, so for a given context it must be linear in the input, and the context
    must be the same on all ranks. JAX traces both functions.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Makes a tensor smaller.

        Args:
            tensor: a tensor of the binding's framework, of any shape and dtype.

        Returns:
            The tensor to send, and the context for decompress().
        """
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Reverses compress().

        Args:
            tensor: the reduced tensor, of the shape and dtype that compress() returned.
            ctx: the context that compress() returned.

        Returns:
            The reduced tensor in its original form.
        """
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the tensor itself."""
        return tensor


class CastCompressor(Compressor):
    """Sends tensors of the dtypes `casts` as `wire`; others as they are. Each binding's subclass defines cast()."""

    wire: Any
    casts: tuple[Any, ...]

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """The tensor in another dtype."""
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and the former dtype; None if it is sent as it is."""
        return (cls.cast(tensor, cls.wire), tensor.dtype) if tensor.dtype in cls.casts else (tensor, None)

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """The tensor in its former dtype."""
        return tensor if ctx is None else cls.cast(tensor, ctx)
