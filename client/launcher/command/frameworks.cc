// FindFrameworks(): queries the system.
#include <stdlib.h>

#include <filesystem>
#include <sstream>
#include <system_error>

#include "client/launcher/command/framework_rows.h"
#include "client/launcher/command/python.h"
#include "client/launcher/process/process.h"

namespace maypole::launcher {
namespace {

// Prints lines "MODULE VERSION", and "keras_backend NAME". A distribution's
// name may differ from its module's.
constexpr char kCode[] =
    "import importlib.metadata as metadata, importlib.util as util\n"
    "import json, os\n"
    "modules = 'torch tensorflow keras mxnet jax jaxlib numpy'.split()\n"
    "for name in modules:\n"
    "    try:\n"
    "        if util.find_spec(name) is None: continue\n"
    "    except Exception: continue\n"
    "    version = '?'\n"
    "    for end in ('', '-cpu', '-gpu', '-rocm', '-cu112', '-cu110'):\n"
    "        try: version = metadata.version(name + end)\n"
    "        except Exception: continue\n"
    "        break\n"
    "    print(name, version)\n"
    "home = os.environ.get('KERAS_HOME') or os.path.expanduser('~/.keras')\n"
    "try:\n"
    "    with open(os.path.join(home, 'keras.json')) as f:\n"
    "        backend = json.load(f)['backend']\n"
    "except Exception: backend = 'tensorflow'\n"
    "print('keras_backend', os.environ.get('KERAS_BACKEND') or backend)\n";

// Where libmaypole is: where Python's package finds it, or beside the programs'
// directory.
std::string LibraryDirectory() {
  const char* const named = getenv("MAYPOLE_LIBRARY");
  if (named != nullptr && *named != 0) {
    return std::filesystem::path(named).parent_path();
  }
  return OwnPath().parent_path().parent_path() / "lib";
}

void FindLibraries(Frameworks* found) {
  found->library_directory = LibraryDirectory();
  for (const char* name : {"tensorflow", "jax", "mxnet"}) {
    std::error_code error;
    const std::string file = std::string("libmaypole_") + name + ".so";
    if (std::filesystem::exists(
            std::filesystem::path(found->library_directory) / file, error)) {
      found->libraries.insert(name);
    }
  }
}

}  // namespace

Frameworks FindFrameworks() {
  Frameworks found;
  if (!FindProgram("python3", &found.python).ok()) return {};
  std::istringstream lines(OutputOfPython(kCode));
  std::string name, version;
  while (lines >> name >> version) found.versions[name] = version;
  if (const auto backend = found.versions.extract("keras_backend")) {
    found.keras_backend = backend.mapped();
  }
  FindLibraries(&found);
  return found;
}

}  // namespace maypole::launcher
