#include "worker/agent/executor_environment.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>

#include "common/wire/job_variables.h"

namespace maypole::worker {
namespace {

std::string_view NameOf(std::string_view variable) {
  return variable.substr(0, variable.find('='));
}

// Checks parts of the name, because each version of NCCL adds variables.
bool MayNameCode(std::string_view name) {
  constexpr std::string_view kParts[] = {"PLUGIN", "INJECTION", "PATH", "_LIB",
                                         "CONF_FILE"};
  return std::any_of(
      std::begin(kParts), std::end(kParts),
      [&](std::string_view part) { return name.find(part) != name.npos; });
}

}  // namespace

ExecutorEnvironment MakeExecutorEnvironment(const char* const* agent,
                                            const std::vector<std::string>& job,
                                            bool other_user) {
  ExecutorEnvironment out;
  std::map<std::string_view, std::string_view> variables;
  for (; *agent != nullptr; ++agent) variables.emplace(NameOf(*agent), *agent);
  if (other_user) {
    variables.emplace("NCCL_CONF_FILE", "NCCL_CONF_FILE=/dev/null");
  }
  // Backwards: the first of two with the same name counts, as for getenv().
  for (auto it = job.rbegin(); it != job.rend(); ++it) {
    const std::string_view name = NameOf(*it);
    const bool library = name == session::kNcclLibraryVariable;
    // The rank's value only names the library that the rank has loaded.
    if (library && variables.contains(name)) continue;
    const bool none = library && it->ends_with("=none");
    if (other_user && MayNameCode(name) && !none) {
      if (out.left_out.size() < kMaxLeftOut) out.left_out.emplace_back(name);
    } else {
      variables[name] = *it;
    }
  }
  for (const auto& [name, variable] : variables) {
    out.variables.emplace_back(variable);
  }
  return out;
}

}  // namespace maypole::worker
