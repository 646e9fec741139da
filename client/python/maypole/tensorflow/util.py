"""Variables as keys of dicts and sets.

A tf.Variable compares by value, so it cannot be a key; its reference can. A
Keras 3 variable has none, but holds a tf.Variable that has.
"""

from typing import Any


def tf_variable(variable: Any) -> Any:
    """The tf.Variable of a Keras 3 variable; variables and tensors of TensorFlow as they are."""
    if hasattr(variable, "ref"):
        return variable
    # Not .value, which may be a copy of another type (Keras' autocast).
    return variable._value


def vars_to_refs(vars: Any) -> Any:
    """References to variables: of one, or of all in (nested) lists or tuples."""
    if isinstance(vars, (list, tuple)):
        return tuple(vars_to_refs(variable) for variable in vars)
    return tf_variable(vars).ref()


def refs_to_vars(refs: Any) -> Any:
    """Reverses vars_to_refs(); gives the tf.Variable of a Keras 3 variable."""
    if isinstance(refs, (list, tuple)):
        return [refs_to_vars(ref) for ref in refs]
    return refs.deref()
