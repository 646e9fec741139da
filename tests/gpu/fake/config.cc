#include "tests/gpu/fake/config.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>

namespace maypole::cuda::fake {
namespace {

std::optional<uint64_t> Number(std::string_view text, uint64_t most) {
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  if (value > most) return {};
  return value;
}

template <typename T>
bool Set(T& to, std::string_view text,
         uint64_t most = std::numeric_limits<int>::max()) {
  const auto value = Number(text, most);
  if (value) to = static_cast<T>(*value);
  return value.has_value();
}

bool SetBytes(uint64_t& to, std::string_view text) {
  constexpr std::string_view kSuffixes = "KMG";
  int shift = 0;
  if (!text.empty() && kSuffixes.find(text.back()) != kSuffixes.npos) {
    shift = 10 * static_cast<int>(kSuffixes.find(text.back()) + 1);
    text.remove_suffix(1);
  }
  if (!Set(to, text, uint64_t{1} << 32)) return false;
  to <<= shift;
  return true;
}

bool SetVmm(FakeConfig::Vmm& to, std::string_view text) {
  if (text != "0" && text != "lies") return false;
  to = text == "0" ? FakeConfig::Vmm::kNone : FakeConfig::Vmm::kLies;
  return true;
}

bool AddFailure(std::vector<FakeConfig::Failure>& to, std::string_view text) {
  FakeConfig::Failure failure = {"", 0, CUDA_ERROR_OUT_OF_MEMORY};
  const size_t colon = text.find(':');
  if (colon == text.npos) return false;
  failure.call = text.substr(0, colon);
  text.remove_prefix(colon + 1);
  const size_t second = text.find(':');
  if (second != text.npos && !Set(failure.error, text.substr(second + 1))) {
    return false;
  }
  if (!Set(failure.which, text.substr(0, second)) || failure.which == 0) {
    return false;
  }
  to.push_back(failure);
  return true;
}

bool SetKey(FakeConfig& config, std::string_view key, std::string_view value) {
  if (key == "devices") return Set(config.devices, value, 64);
  if (key == "memory") return SetBytes(config.memory, value);
  if (key == "seed") return Set(config.seed, value);
  if (key == "late") return Set(config.late_microseconds, value);
  if (key == "vmm") return SetVmm(config.vmm, value);
  if (key == "ipc") return Set(config.ipc, value, 0);
  if (key == "mps") return Set(config.mps, value, 1);
  if (key == "writes") return Set(config.writes, value, 0);
  if (key == "driver") {
    return Set(config.driver, value) && config.driver >= 12000;
  }
  if (key == "init") return Set(config.init, value);
  if (key == "exclusive") return Set(config.exclusive, value, 1);
  if (key == "state") {
    config.state = value;
    return !value.empty();
  }
  if (key == "fail") return AddFailure(config.failures, value);
  return false;
}

}  // namespace

FakeConfig ReadConfig(const char* text) {
  FakeConfig config;
  std::string_view rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (equals == item.npos ||
        !SetKey(config, item.substr(0, equals), item.substr(equals + 1))) {
      Illegal("MAYPOLE_FAKE_CUDA: unknown key or bad value in \"" +
              std::string(item) + "\"");
    }
  }
  return config;
}

void Illegal(std::string_view line) {
  std::fprintf(stderr, "fake libcuda: %.*s\n", static_cast<int>(line.size()),
               line.data());
  std::abort();
}

}  // namespace maypole::cuda::fake
