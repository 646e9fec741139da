// Which frameworks Maypole supports here, for maypolerun --check-build.
//
// Purpose: FindFrameworks() asks the ranks' python3: this program is not
// compiled against them, so what counts is what python3 finds when the job
// runs, and which of our libraries for them are there. DescribeFrameworks()
// makes from it one row for each framework, which says what is not supported
// and why.
//
// Thread contract: functions without state. FindFrameworks() runs python3,
// which imports none of them; DescribeFrameworks() is pure.
#ifndef MAYPOLE_CLIENT_LAUNCHER_COMMAND_FRAMEWORK_ROWS_H_
#define MAYPOLE_CLIENT_LAUNCHER_COMMAND_FRAMEWORK_ROWS_H_

#include <map>
#include <set>
#include <string>
#include <vector>

namespace maypole::launcher {

struct Frameworks {
  std::string python;  // its path; empty: there is none on PATH
  // The versions of installed frameworks, by module name ("torch", "jaxlib");
  // "?" if the version is unknown.
  std::map<std::string, std::string> versions;
  std::string keras_backend;  // the one that Keras 3 would use
  // Frameworks whose library (libmaypole_NAME.so) is there, and where the
  // libraries should be.
  std::set<std::string> libraries;
  std::string library_directory;
};

struct FrameworkRow {
  std::string module;
  bool supported = false;
  std::string text;                // name, version; why it is not supported
  std::vector<std::string> notes;  // what differs or is not supported with it
};

Frameworks FindFrameworks();

// TensorFlow, PyTorch, MXNet, Keras, JAX, in this order.
std::vector<FrameworkRow> DescribeFrameworks(const Frameworks& found);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_COMMAND_FRAMEWORK_ROWS_H_
