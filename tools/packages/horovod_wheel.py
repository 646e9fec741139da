"""Makes the wheel of the distribution maypole-horovod: the package horovod, and horovodrun.

It is apart from maypole, so that only who asks for it gets a package horovod.
"""

import os

import metadata
import wheel

_TAG = "py3-none-any"


def make_wheel(out, root=metadata.ROOT):
    """Writes the wheel to the directory `out`; returns its file name."""
    base = "%s-%s" % (metadata.HOROVOD_NAME.replace("-", "_"), metadata.version(root))
    name = "%s-%s.whl" % (base, _TAG)
    contents = wheel.modules(os.path.join(root, "client", "python", "horovod_shim", "horovod"), "horovod")
    contents.update(wheel.scripts(base, ["horovodrun"]))
    contents.update(wheel.dist_info(base, _TAG, metadata.horovod_metadata(root)))
    contents[base + ".dist-info/LICENSE"] = wheel.read(os.path.join(root, "LICENSE"))
    wheel.write(os.path.join(out, name), base, contents)
    return name
