#include "client/bootstrap/rank_variables.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "common/parse.h"

namespace maypole {
namespace {

constexpr int kMaxProcessor = (1 << 16) - 1;

Status Invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

}  // namespace

const char* EitherVariable(const GetVariable& get, const std::string& name,
                           std::string* full) {
  for (const char* prefix : {"MAYPOLE_", "HOROVOD_"}) {
    *full = prefix + name;
    const char* text = get(full->c_str());
    if (text != nullptr && *text != 0) return text;
  }
  return nullptr;
}

Status ReadLogLevel(const GetVariable& get, std::string* out) {
  constexpr std::string_view kLevels[] = {"TRACE",   "DEBUG", "INFO",
                                          "WARNING", "ERROR", "FATAL"};
  out->clear();
  std::string name;
  const char* text = EitherVariable(get, "LOG_LEVEL", &name);
  if (text == nullptr) return Status();
  std::string level = text;
  for (char& c : level) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  if (std::find(std::begin(kLevels), std::end(kLevels), level) ==
      std::end(kLevels)) {
    return Invalid(name + "='" + text +
                   "': expected trace, debug, info, warning, error or fatal");
  }
  *out = std::move(level);
  return Status();
}

Status ReadThreadAffinity(const GetVariable& get, std::vector<int>* out) {
  out->clear();
  std::string name;
  const char* text = EitherVariable(get, "THREAD_AFFINITY", &name);
  return text == nullptr ? Status() : ParseProcessors(name, text, out);
}

Status ParseProcessors(const std::string& name, const std::string& text,
                       std::vector<int>* out) {
  out->clear();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int processor = 0;
    if (!ParseNumber(std::string_view(text).substr(begin, end - begin), 0,
                     kMaxProcessor, &processor)) {
      return Invalid(name + "='" + text +
                     "': expected the numbers of processors, separated by "
                     "commas, one for each rank of a node");
    }
    out->push_back(processor);
    begin = end + 1;
  }
  return Status();
}

}  // namespace maypole
