"""The gradients of ResNet-50: names and shapes of its 161 parameters.

The twin of resnet50.h; twin_test compares the two.
"""

from typing import List, Tuple

Parameter = Tuple[str, Tuple[int, ...]]

_EXPANSION = 4  # of a bottleneck block's last convolution
_CLASSES = 1000


def _convolution(name: str, out: int, into: int, kernel: int) -> List[Parameter]:
    # No bias: a batch normalisation follows.
    return [(name + ".weight", (out, into, kernel, kernel))]


def _batch_norm(name: str, channels: int) -> List[Parameter]:
    return [(name + ".weight", (channels,)), (name + ".bias", (channels,))]


def _bottleneck(name: str, into: int, width: int,
                projects: bool) -> List[Parameter]:
    """1x1, 3x3, 1x1 convolutions; `projects`: a 1x1 one beside them."""
    out = width * _EXPANSION
    parameters = [
        *_convolution(name + ".conv1", width, into, 1),
        *_batch_norm(name + ".bn1", width),
        *_convolution(name + ".conv2", width, width, 3),
        *_batch_norm(name + ".bn2", width),
        *_convolution(name + ".conv3", out, width, 1),
        *_batch_norm(name + ".bn3", out),
    ]
    if projects:
        parameters += _convolution(name + ".downsample.0", out, into, 1)
        parameters += _batch_norm(name + ".downsample.1", out)
    return parameters


def parameters() -> List[Parameter]:
    """In the order of the forward pass, named as torchvision does."""
    found = _convolution("conv1", 64, 3, 7) + _batch_norm("bn1", 64)
    channels, width = 64, 64
    for layer, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(blocks):
            found += _bottleneck(f"layer{layer}.{block}", channels, width,
                                 block == 0)
            channels = width * _EXPANSION
        width *= 2
    found.append(("fc.weight", (_CLASSES, channels)))
    found.append(("fc.bias", (_CLASSES,)))
    return found
