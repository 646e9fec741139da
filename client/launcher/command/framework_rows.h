// Which frameworks Maypole supports here, for maypolerun --check-build.
//
// Purpose: one row for each framework, with what is not supported and why, from
// what was found. Pure.
//
// Thread contract: functions without state.
#ifndef MAYPOLE_CLIENT_LAUNCHER_COMMAND_FRAMEWORK_ROWS_H_
#define MAYPOLE_CLIENT_LAUNCHER_COMMAND_FRAMEWORK_ROWS_H_

#include <map>
#include <set>
#include <string>
#include <vector>

namespace maypole::launcher {

struct Frameworks {
  std::string python;  // its path; empty: there is none on PATH
  // Of those that are installed, by the name of the module ("torch", "jaxlib"):
  // the version, or "?" if nothing says it.
  std::map<std::string, std::string> versions;
  std::string keras_backend;  // that Keras 3 would use
  // Frameworks whose library (libmaypole_NAME.so) is there, and where it should
  // be.
  std::set<std::string> libraries;
  std::string library_directory;
};

struct FrameworkRow {
  std::string module;
  bool supported = false;
  std::string text;                // name, version; why it is not supported
  std::vector<std::string> notes;  // what differs or is not supported with it
};

// TensorFlow, PyTorch, MXNet, Keras, JAX, in this order.
std::vector<FrameworkRow> DescribeFrameworks(const Frameworks& found);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_COMMAND_FRAMEWORK_ROWS_H_
