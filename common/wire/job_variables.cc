#include "common/wire/job_variables.h"

#include <algorithm>
#include <cstring>

namespace maypole::session {
namespace {

// Executors encrypt (common/encryption_mode.h; a test compares its name with
// this one).
constexpr std::string_view kNetworkEncryption = "MAYPOLE_NETWORK_ENCRYPTION";

bool IsNameCharacter(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
         (c >= '0' && c <= '9') || c == '_';
}

// NCCL repeats values in its log, which is the agent's, so no value may forge a
// line.
bool IsControl(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

Status Bad(const std::string& what) {
  return Status(
      Code::kInvalidArgument,
      "the client's variables for NCCL and CUDA are malformed: " + what);
}

}  // namespace

bool IsJobVariable(std::string_view name) {
  if (name == kNcclLibraryVariable || name == kNetworkEncryption) return true;
  for (const char* const blocking : kBlockingVariables) {
    if (name == blocking) return false;
  }
  return (name.starts_with("NCCL_") || name.starts_with("CUDA_")) &&
         name != "CUDA_VISIBLE_DEVICES" &&
         std::all_of(name.begin(), name.end(), IsNameCharacter);
}

Status HelloMessage(const Hello& hello, const char* const* environment,
                    std::string_view nccl_library, std::string* out) {
  bool has_library = false;
  out->assign(reinterpret_cast<const char*>(&hello), sizeof(hello));
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view variable = *environment;
    const size_t equals = variable.find('=');
    if (equals == variable.npos) continue;
    if (!IsJobVariable(variable.substr(0, equals))) continue;
    if (std::any_of(variable.begin(), variable.end(), IsControl)) continue;
    has_library |= variable.substr(0, equals) == kNcclLibraryVariable;
    *out += variable;
    *out += '\0';
  }
  const bool plain =
      std::none_of(nccl_library.begin(), nccl_library.end(), IsControl);
  if (!has_library && !nccl_library.empty() && plain) {
    *out += std::string(kNcclLibraryVariable) + "=";
    *out += nccl_library;
    *out += '\0';
  }
  if (out->size() > kMaxHelloBytes) {
    return Status(Code::kInvalidArgument,
                  "the variables NCCL_*, CUDA_*, MAYPOLE_NCCL_LIBRARY and "
                  "MAYPOLE_NETWORK_ENCRYPTION take " +
                      std::to_string(out->size() - sizeof(hello)) +
                      " bytes, but may take " +
                      std::to_string(kMaxVariablesBytes));
  }
  const auto size = static_cast<uint32_t>(out->size());
  std::memcpy(out->data() + offsetof(Header, size), &size, sizeof(size));
  return Status();
}

Status ParseHello(const void* data, size_t bytes, const Speaker& agent,
                  Hello* hello, std::vector<std::string>* variables) {
  variables->clear();
  Status s = CheckHelloHeader(data, bytes, agent, kMaxHelloBytes);
  if (s.ok()) s = Parse(data, std::min(bytes, sizeof(Hello)), hello);
  if (!s.ok()) return s;
  std::string_view rest(static_cast<const char*>(data) + sizeof(Hello),
                        bytes - sizeof(Hello));
  while (!rest.empty()) {
    const size_t end = rest.find('\0');
    if (end == rest.npos) return Bad("the last one does not end");
    const std::string_view variable = rest.substr(0, end);
    const size_t equals = variable.find('=');
    if (equals == variable.npos) return Bad("one has no value");
    if (!IsJobVariable(variable.substr(0, equals))) {
      return Bad("'" +
                 std::string(variable.substr(0, std::min(equals, size_t{64}))) +
                 "' is not one of NCCL_* and CUDA_* that an executor takes");
    }
    if (std::any_of(variable.begin(), variable.end(), IsControl)) {
      return Bad("the value of " + std::string(variable.substr(0, equals)) +
                 " has a control character");
    }
    variables->emplace_back(variable);
    rest.remove_prefix(end + 1);
  }
  return Status();
}

}  // namespace maypole::session
