"""What maypole.keras and maypole.tensorflow.keras share; nothing here is public.

Keras 3 has three backends, whose gradients are tensors of TensorFlow, JAX or
PyTorch; Keras 2 (tf.keras with TensorFlow <= 2.15, and tf_keras) has TensorFlow.

    reduction.py           what DistributedOptimizer's arguments mean
    equal_start.py         whether the ranks train the same weights
    gradients_*.py         the reduction of a step's gradients, one file per backend
    classes.py             how an optimizer becomes a distributed one, and its copies
    keras3.py, keras2.py   what distributed optimizers override
    values.py              arrays and numbers outside of a step
    variables.py           reading and writing models' and optimizers' variables
    callbacks.py, schedules.py, elastic.py, saving.py

`keras` is passed as an argument where it matters, because a process can have
two: tf.keras need not be the package keras.
"""
