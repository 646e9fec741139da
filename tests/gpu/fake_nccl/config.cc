#include "tests/gpu/fake_nccl/config.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace maypole::nccl::fake {
namespace {

template <typename T>
bool Set(T& to, std::string_view text,
         uint64_t most = std::numeric_limits<int>::max()) {
  uint64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc() || end != last || value > most) return false;
  to = static_cast<T>(value);
  return true;
}

bool AddFailure(std::vector<Config::Failure>& to, std::string_view text,
                bool later) {
  Config::Failure failure = {"", 0, ncclInternalError, later};
  const size_t colon = text.find(':');
  if (colon == text.npos) return false;
  failure.call = text.substr(0, colon);
  text.remove_prefix(colon + 1);
  const size_t second = text.find(':');
  if (second != text.npos &&
      !Set(failure.error, text.substr(second + 1), ncclRemoteError)) {
    return false;
  }
  if (!Set(failure.which, text.substr(0, second)) || failure.which == 0) {
    return false;
  }
  to.push_back(failure);
  return true;
}

bool SetInit(Config::Init& to, std::string_view text) {
  if (text != "hang" && text != "error") return false;
  to = text == "hang" ? Config::Init::kHang : Config::Init::kError;
  return true;
}

bool SetAbort(Config::Abort& to, std::string_view text) {
  if (text == "hang") {
    to = Config::Abort::kHang;
  } else if (text == "device") {
    to = Config::Abort::kDevice;
  } else if (text == "collective") {
    to = Config::Abort::kCollective;
  } else {
    return false;
  }
  return true;
}

bool SetKey(Config& config, std::string_view key, std::string_view value) {
  if (key == "version") return Set(config.version, value);
  if (key == "seed") return Set(config.seed, value);
  if (key == "late") return Set(config.late_microseconds, value);
  if (key == "init") return SetInit(config.init, value);
  if (key == "abort") return SetAbort(config.abort, value);
  if (key == "peer_death") {
    config.peer_death_is_error = true;
    return value == "error";
  }
  if (key == "fail") return AddFailure(config.failures, value, false);
  if (key == "fail_later") return AddFailure(config.failures, value, true);
  return false;
}

}  // namespace

Config ReadConfig(const char* text) {
  Config config;
  std::string_view rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (equals == item.npos ||
        !SetKey(config, item.substr(0, equals), item.substr(equals + 1))) {
      Illegal("MAYPOLE_FAKE_NCCL: unknown key or bad value in \"" +
              std::string(item) + "\"");
    }
  }
  return config;
}

void Illegal(std::string_view line) {
  std::fprintf(stderr, "fake libnccl: %.*s\n", static_cast<int>(line.size()),
               line.data());
  std::abort();
}

}  // namespace maypole::nccl::fake
