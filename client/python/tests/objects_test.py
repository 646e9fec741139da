"""Classes of the program in objects that ranks send each other (maypole.common.objects)."""

import os
import subprocess
import sys
import tempfile
import unittest

from maypole.common import objects

_PROGRAM = """
import enum, sys
from maypole.common import objects
class Phase(enum.Enum):
    WARM = 1
class Outer:
    class Inner: pass
def local():
    class Local: pass
    return Local()
later = lambda: Phase.WARM
if sys.argv[1] == "write":
    with open(sys.argv[2], "wb") as f:
        f.write(objects.dumps([Phase.WARM, Outer.Inner(), Phase, later, local()], {"later": sys}))
else:
    with open(sys.argv[2], "rb") as f:
        phase, inner, cls, function, of_local = objects.loads(f.read(), {"later": sys})
    assert phase is Phase.WARM and cls is Phase and function() is Phase.WARM
    assert type(inner) is Outer.Inner and type(of_local).__name__ == "Local"
"""


class ObjectsTest(unittest.TestCase):

    @unittest.skipUnless(objects.PICKLES_BY_VALUE, "cloudpickle is not installed")
    def test_classes_of_the_program_are_the_receivers_own(self):
        with tempfile.TemporaryDirectory() as directory:
            program, data = (os.path.join(directory, name) for name in ("program.py", "data"))
            with open(program, "w", encoding="utf-8") as f:
                f.write(_PROGRAM)
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            for what in ("write", "read"):
                subprocess.run([sys.executable, program, what, data], env=env, check=True, timeout=60)
            with open(data, "rb") as f:  # this program has none of them
                self.assertEqual(objects.loads(f.read(), {})[0].name, "WARM")


if __name__ == "__main__":
    unittest.main()
