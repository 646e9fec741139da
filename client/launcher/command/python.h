// Asks the python3 that ranks would use.
//
// Thread contract: functions; they block, at most for kPythonTimeout.
#ifndef MAYPOLE_CLIENT_LAUNCHER_COMMAND_PYTHON_H_
#define MAYPOLE_CLIENT_LAUNCHER_COMMAND_PYTHON_H_

#include <chrono>
#include <string>

namespace maypole::launcher {

inline constexpr std::chrono::seconds kPythonTimeout{8};

// Runs this code in python3 and returns what it prints. Empty if there is no
// python3 on PATH, or it fails, takes too long, or prints more than 4 KiB.
std::string OutputOfPython(const std::string& code);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_COMMAND_PYTHON_H_
