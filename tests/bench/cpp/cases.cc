#include "tests/bench/cpp/cases.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace maypole::bench {
namespace {

// Rounds of a case: so many that about this much is reduced, within bounds. A
// median wants several rounds, a person wants to see the end.
constexpr int64_t kBytesPerCase = int64_t{1} << 30;
constexpr int64_t kMinRounds = 5;
constexpr int64_t kMaxRounds = 200;

constexpr std::pair<std::string_view, int64_t> kUnits[] = {
    {"GiB", int64_t{1} << 30},
    {"MiB", int64_t{1} << 20},
    {"KiB", int64_t{1} << 10},
};

void SetRounds(int rounds, Case* c) {
  if (rounds == 0) {
    rounds = static_cast<int>(
        std::clamp(kBytesPerCase / c->bytes(), kMinRounds, kMaxRounds));
  }
  c->rounds = rounds;
  c->warmup = std::max(2, rounds / 10);
}

Case SizeCase(int64_t bytes) {
  Case c;
  c.label = BytesText(bytes);
  c.tensors.push_back({"bench." + std::to_string(bytes),
                       {bytes / static_cast<int64_t>(sizeof(float))}});
  return c;
}

Case ResnetCase() {
  Case c;
  c.label = "ResNet-50";
  c.tensors = Resnet50();
  for (Parameter& p : c.tensors) p.name = "bench.resnet50." + p.name;
  return c;
}

Status Invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

Status ParseSizes(std::string_view text, std::vector<int64_t>* sizes) {
  for (bool more = !text.empty(); more;) {
    const size_t comma = text.find(',');
    const std::string part(text.substr(0, comma));
    more = comma != text.npos;
    if (more) text.remove_prefix(comma + 1);
    int64_t bytes = 0;
    if (Status s = ParseBytes(part, &bytes); !s.ok()) return s;
    if (bytes == 0 || bytes % sizeof(float) != 0) {
      return Invalid("'" + part +
                     "': a size must be a positive multiple of 4 bytes (the "
                     "tensors are float32)");
    }
    if (std::find(sizes->begin(), sizes->end(), bytes) != sizes->end()) {
      return Invalid("'" + part + "': this size is given twice");
    }
    sizes->push_back(bytes);
  }
  return Status();
}

}  // namespace

int64_t Case::bytes() const {
  int64_t elements = 0;
  for (const Parameter& p : tensors) elements += p.elements();
  return elements * static_cast<int64_t>(sizeof(float));
}

Status ParseBytes(std::string_view text, int64_t* bytes) {
  std::string_view digits = text;
  int64_t unit = 1;
  for (const auto& [suffix, factor] : kUnits) {
    if (!digits.ends_with(suffix)) continue;
    digits.remove_suffix(suffix.size());
    unit = factor;
    break;
  }
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, *bytes);
  int64_t product = 0;
  if (error != std::errc() || stop != end || *bytes < 0 ||
      __builtin_mul_overflow(*bytes, unit, &product)) {
    return Invalid("'" + std::string(text) +
                   "' is not a number of bytes; expected for example 4, "
                   "64KiB, 1MiB or 1GiB");
  }
  *bytes = product;
  return Status();
}

std::string BytesText(int64_t bytes) {
  for (const auto& [suffix, factor] : kUnits) {
    if (bytes >= factor && bytes % factor == 0) {
      return std::to_string(bytes / factor) + " " + std::string(suffix);
    }
  }
  return std::to_string(bytes) + " B";
}

Status MakeCases(const CaseOptions& options, std::vector<Case>* out) {
  std::vector<int64_t> sizes;
  if (Status s = ParseSizes(options.sizes, &sizes); !s.ok()) return s;
  int64_t max_bytes = INT64_MAX;
  if (!options.max_bytes.empty()) {
    if (Status s = ParseBytes(options.max_bytes, &max_bytes); !s.ok()) return s;
  }
  if (options.rounds < 0) {
    return Invalid(std::to_string(options.rounds) +
                   " rounds: expected a positive number, or 0 for as many as "
                   "fit the size");
  }
  std::vector<Case> cases;
  for (int64_t bytes : sizes) cases.push_back(SizeCase(bytes));
  if (options.resnet) cases.push_back(ResnetCase());
  std::erase_if(cases, [&](const Case& c) { return c.bytes() > max_bytes; });
  if (cases.empty()) return Invalid("no size is left to be measured");
  for (Case& c : cases) SetRounds(options.rounds, &c);
  *out = std::move(cases);
  return Status();
}

std::string ListText(const std::vector<Case>& cases) {
  std::string text;
  for (const Case& c : cases) {
    text += c.label + ": " + std::to_string(c.bytes()) + " bytes in " +
            std::to_string(c.tensors.size()) + " tensors, " +
            std::to_string(c.warmup) + " + " + std::to_string(c.rounds) +
            " rounds\n";
    for (const Parameter& p : c.tensors) {
      text += "  " + p.name + " [";
      for (size_t i = 0; i < p.shape.size(); ++i) {
        text += (i > 0 ? ", " : "") + std::to_string(p.shape[i]);
      }
      text += "]\n";
    }
  }
  return text;
}

}  // namespace maypole::bench
