#include "client/launcher/command/frameworks.h"

#include <sstream>

#include "client/launcher/command/python.h"
#include "client/launcher/process/process.h"

namespace maypole::launcher {
namespace {

// Prints lines "MODULE VERSION".
constexpr char kCode[] =
    "import importlib.metadata as metadata, importlib.util as util\n"
    "for name in 'torch tensorflow keras mxnet jax'.split():\n"
    "    try:\n"
    "        if util.find_spec(name) is None: continue\n"
    "    except Exception: continue\n"
    "    try: print(name, metadata.version(name))\n"
    "    except Exception: print(name, '?')\n";

}  // namespace

Frameworks FindFrameworks() {
  Frameworks found;
  if (!FindProgram("python3", &found.python).ok()) return {};
  std::istringstream lines(OutputOfPython(kCode));
  std::string name, version;
  while (lines >> name >> version) found.versions[name] = version;
  return found;
}

}  // namespace maypole::launcher
