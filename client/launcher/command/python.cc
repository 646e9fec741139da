#include "client/launcher/command/python.h"

#include <csignal>
#include <optional>
#include <string_view>

#include "client/launcher/output/output_loop.h"
#include "client/launcher/process/child_process.h"
#include "client/launcher/process/process.h"

namespace maypole::launcher {
namespace {

constexpr size_t kMaxOutput = 4096;

}  // namespace

std::string OutputOfPython(const std::string& code) {
  std::string python, out;
  if (!FindProgram("python3", &python).ok()) return {};
  OutputLoop loop;
  std::optional<Exit> exit;
  ChildProcess child(&loop, {.spawn = {.arguments = {"python3", "-c", code},
                                       .death_signal = SIGKILL},
                             .out = [&](std::string_view b) { out += b; },
                             .err = [](std::string_view) {},
                             .on_end = [&](Exit e) { exit = e; }});
  if (!child.Start(python).ok()) return {};
  const Time deadline = Now() + kPythonTimeout;
  while (!exit && out.size() <= kMaxOutput && Now() < deadline) {
    loop.Poll(deadline);
  }
  child.Signal(SIGKILL);
  while (!exit) loop.Poll(std::nullopt);
  return exit->clean() && out.size() <= kMaxOutput ? out : std::string();
}

}  // namespace maypole::launcher
