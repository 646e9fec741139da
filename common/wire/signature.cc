#include "common/wire/signature.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <vector>

namespace maypole {
namespace {

// "[*, 3]", because the first dimension may differ.
std::string GatheredShapeText(const Signature& s) {
  std::string out = s.dims > 0 ? "[*" : "[";
  for (int i = 1; i < std::min<int>(s.dims, kMaxDims); ++i) {
    out += ", " + std::to_string(s.shape[i]);
  }
  return out + "]";
}

// A barrier's counts: "none", or "3 x allreduce, 1 x broadcast".
std::string UnnamedText(const Signature& s) {
  std::string out;
  for (int kind = 0; kind + 1 < std::min<int>(s.dims, kMaxDims); ++kind) {
    const int64_t n = s.shape[kind + 1];
    if (n == 0) continue;
    if (!out.empty()) out += ", ";
    out +=
        std::to_string(n) + " x " + std::string(Name(static_cast<Kind>(kind)));
  }
  return out.empty() ? "none" : out;
}

bool SameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// A text that differs for different bits: as few digits as are needed to read
// back the same number; a NaN is shown with its bits.
std::string FactorText(double v) {
  char text[32];
  if (std::isnan(v)) {
    snprintf(text, sizeof(text), "nan (0x%016llx)",
             static_cast<unsigned long long>(std::bit_cast<uint64_t>(v)));
    return text;
  }
  // Starts at digits10, since %g prints no trailing zeros.
  for (int digits = std::numeric_limits<double>::digits10;
       digits <= std::numeric_limits<double>::max_digits10; ++digits) {
    snprintf(text, sizeof(text), "%.*g", digits, v);
    if (SameBits(std::strtod(text, nullptr), v)) break;
  }
  return text;
}

std::string Quoted(std::string_view name, const Signature& s) {
  std::string out = std::string(Name(s.kind)) + " '" + std::string(name) + "'";
  if (s.process_set != 0) {
    out += " of process set " + std::to_string(s.process_set);
  }
  return out;
}

// "rank 0", "ranks 1,3", "ranks 0,1,2,3 and 60 more"
std::string Ranks(const std::vector<int>& ranks) {
  constexpr size_t kShown = 8;
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    if (i > 0) out += ",";
    out += std::to_string(ranks[i]);
  }
  if (ranks.size() > kShown) {
    out += " and " + std::to_string(ranks.size() - kShown) + " more";
  }
  return out;
}

// One aspect in which signatures may differ: its name (plural), what every rank
// must submit, and its value as text ("" if it does not apply).
struct Aspect {
  std::string_view what;
  std::string_view rule;
  std::function<std::string(const Signature&)> value;
};

const std::vector<Aspect>& Aspects() {
  static const auto& aspects = *new std::vector<Aspect>{
      {"collectives", "the same collective",
       [](const Signature& s) { return std::string(Name(s.kind)); }},
      {"process sets", "the same process set",
       [](const Signature& s) { return std::to_string(s.process_set); }},
      {"dtypes", "the same dtype",
       [](const Signature& s) { return std::string(Name(s.dtype)); }},
      {"devices", "the same device class",
       [](const Signature& s) {
         return std::string(s.device == Device::kGpu ? "GPU" : "CPU");
       }},
      {"root ranks", "the same root rank",
       [](const Signature& s) {
         return s.kind == Kind::kBroadcast ? std::to_string(s.root) : "";
       }},
      {"reduction operations", "the same reduction",
       [](const Signature& s) {
         return Reduces(s.kind) ? std::string(Name(s.op)) : "";
       }},
      {"prescale factors", "the same prescale factor",
       [](const Signature& s) {
         return Reduces(s.kind) ? FactorText(s.prescale) : "";
       }},
      {"postscale factors", "the same postscale factor",
       [](const Signature& s) {
         return Reduces(s.kind) ? FactorText(s.postscale) : "";
       }},
      {"shapes", "the same shape",
       [](const Signature& s) {
         return Gathers(s.kind) || s.kind == Kind::kBarrier ? std::string()
                                                            : ShapeText(s);
       }},
      {"shapes", "the same shape except for the first dimension",
       [](const Signature& s) {
         return Gathers(s.kind) ? GatheredShapeText(s) : std::string();
       }},
      {"counts of unnamed operations before it",
       "as many unnamed operations of each kind (give them names to match "
       "them whatever their order)",
       [](const Signature& s) {
         return s.kind == Kind::kBarrier ? UnnamedText(s) : std::string();
       }},
  };
  return aspects;
}

// "mismatched shapes: rank 0 submitted [3], ranks 1,3 submitted [4]; every rank
// must submit the same shape"; empty if all ranks have the same value.
std::string DescribeAspect(
    const Aspect& aspect,
    std::span<const std::pair<int, Signature>> submitted) {
  std::map<std::string, std::vector<int>> by_value;
  for (const auto& [rank, s] : submitted) {
    by_value[aspect.value(s)].push_back(rank);
  }
  if (by_value.size() < 2) return "";
  std::vector<std::pair<std::string, std::vector<int>>> groups(by_value.begin(),
                                                               by_value.end());
  for (auto& g : groups) std::sort(g.second.begin(), g.second.end());
  std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return a.second.front() < b.second.front();
  });
  constexpr size_t kShown = 4;
  std::string out = "mismatched " + std::string(aspect.what) + ": ";
  for (size_t i = 0; i < std::min(groups.size(), kShown); ++i) {
    if (i > 0) out += ", ";
    out += Ranks(groups[i].second) + " submitted " + groups[i].first;
  }
  if (groups.size() > kShown) {
    out += " (and " + std::to_string(groups.size() - kShown) + " other values)";
  }
  return out + "; every rank must submit " + std::string(aspect.rule);
}

}  // namespace

int64_t Signature::Elements() const {
  int64_t n = 1;
  for (int i = 0; i < dims; ++i) n *= shape[i];
  return n;
}

uint64_t Signature::Bytes() const {
  return static_cast<uint64_t>(Elements()) * SizeOf(dtype);
}

uint64_t Signature::RowBytes() const {
  uint64_t n = SizeOf(dtype);
  for (int i = 1; i < dims; ++i) n *= static_cast<uint64_t>(shape[i]);
  return n;
}

namespace {

// Checks that a reduction supports the op, dtype and factors.
Status CheckReduction(std::string_view name, const Signature& s) {
  auto bad = [&](const std::string& what) {
    return Status(Code::kInvalidArgument, Quoted(name, s) + ": " + what);
  };
  if (s.op == Op::kAdasum) {  // clients build it from other operations
    return Status(Code::kUnimplemented,
                  Quoted(name, s) + ": an Adasum is no operation of its own");
  }
  if (s.op == Op::kAverage && s.dtype == DType::kBool) {
    return bad("bool has no average; use sum, min, max or product");
  }
  if (s.dtype == DType::kBool && (s.prescale != 1.0 || s.postscale != 1.0)) {
    return bad("scale factors need a tensor of numbers, this one is bool");
  }
  return Status();
}

// The root of a broadcast if it stands aside, otherwise -1.
int AbsentRoot(std::span<const std::pair<int, Signature>> submitted) {
  for (const auto& [rank, s] : submitted) {
    if (s.kind == Kind::kBroadcast && s.aside != 0 && s.root == rank) {
      return rank;
    }
  }
  return -1;
}

}  // namespace

Status CheckSignature(std::string_view name, const Signature& s) {
  auto bad = [&](const std::string& what) {
    return Status(Code::kInvalidArgument, Quoted(name, s) + ": " + what);
  };
  if (name.size() > kMaxNameBytes) {
    return Status(Code::kInvalidArgument,
                  "the name of an operation may have at most " +
                      std::to_string(kMaxNameBytes) + " bytes, this one has " +
                      std::to_string(name.size()) + ": '" +
                      std::string(name.substr(0, 40)) + "...'");
  }
  // Where names are C strings, they end there: two names that differ only after
  // it would be one.
  if (const size_t end = name.find('\0'); end != name.npos) {
    return Status(Code::kInvalidArgument,
                  "the name of an operation must have no NUL byte, this one "
                  "has one after '" +
                      std::string(name.substr(0, std::min<size_t>(end, 40))) +
                      "'");
  }
  if (!IsKnown(s.kind) || !IsKnown(s.dtype) || !IsKnown(s.op) ||
      s.device > Device::kGpu) {
    return bad("unknown kind, dtype, reduction or device number");
  }
  if (s.dims > kMaxDims) {
    return bad("a tensor may have at most " + std::to_string(kMaxDims) +
               " dimensions, this one has " + std::to_string(s.dims));
  }
  if (s.kind == Kind::kBarrier) {
    const bool empty = s.dims > 0 && s.shape[0] == 0;
    if (!empty) return bad("a barrier must have no elements");
    const bool counts = std::all_of(s.shape, s.shape + s.dims,
                                    [](int64_t n) { return n >= 0; });
    return counts ? Status() : bad("a barrier's counts must not be negative");
  }
  // Zero-sized dimensions must not hide an overflow of the others.
  uint64_t bytes = SizeOf(s.dtype);
  for (int i = 0; i < s.dims; ++i) {
    if (s.shape[i] < 0) return bad("negative dimension in " + ShapeText(s));
    const uint64_t d = std::max<uint64_t>(1, s.shape[i]);
    if (d > kMaxTensorBytes / bytes) {
      return bad("a tensor may have at most 2^44 bytes, " + ShapeText(s) +
                 " has more");
    }
    bytes *= d;
  }
  switch (s.kind) {
    case Kind::kReducescatter:
      if (s.dims == 0) {
        return bad("a scalar cannot be scattered; reshape to [1]");
      }
      if (s.op != Op::kSum && s.op != Op::kAverage) {
        return bad("reducescatter supports sum and average; " +
                   std::string(Name(s.op)) + " is for allreduce");
      }
      return CheckReduction(name, s);
    case Kind::kAllreduce:
      return CheckReduction(name, s);
    case Kind::kAllgather:
      if (s.dims == 0) {
        return bad("a scalar cannot be gathered; reshape to [1]");
      }
      break;
    case Kind::kAlltoall:
      if (s.dims == 0) {
        return bad("a scalar cannot be split among ranks; reshape to [1]");
      }
      break;
    case Kind::kBroadcast:
      if (s.root < 0) return bad("root rank " + std::to_string(s.root));
      break;
    default:
      break;
  }
  return Status();
}

Signature AgreedPart(const Signature& s) {
  Signature a = s;
  a.aside = a.joins = a.padding = 0;
  for (int i = s.dims; i < kMaxDims; ++i) a.shape[i] = 0;
  if (Gathers(s.kind)) a.shape[0] = 0;
  if (s.kind != Kind::kBroadcast) a.root = -1;
  if (!Reduces(s.kind)) {
    a.op = Op::kSum;
    a.prescale = a.postscale = 1.0;
  }
  return a;
}

uint64_t AgreementHash(const Signature& s) {
  const Signature a = AgreedPart(s);
  return HashBytes({reinterpret_cast<const char*>(&a), sizeof(a)});
}

bool Agree(const Signature& a, const Signature& b) {
  const Signature x = AgreedPart(a), y = AgreedPart(b);
  return std::memcmp(&x, &y, sizeof(x)) == 0;
}

std::string DescribeMismatch(
    std::string_view name,
    std::span<const std::pair<int, Signature>> submitted) {
  if (submitted.empty()) return "";
  bool all_agree = true;
  for (const auto& [rank, s] : submitted) {
    all_agree = all_agree && Agree(s, submitted.front().second);
  }
  const std::string what = Quoted(name, submitted.front().second);
  if (all_agree) {
    const int root = AbsentRoot(submitted);
    if (root < 0) return "";
    return what + ": its root, rank " + std::to_string(root) +
           ", has joined (it has no more inputs) and has nothing to "
           "broadcast; choose a root that has not joined";
  }
  for (const Aspect& aspect : Aspects()) {
    std::string text = DescribeAspect(aspect, submitted);
    if (!text.empty()) return what + ": " + text;
  }
  return what +
         ": ranks submitted different values; every rank must submit the same";
}

int64_t ScatteredRows(const Signature& s, int ranks, int position) {
  return s.shape[0] / ranks + (position < s.shape[0] % ranks ? 1 : 0);
}

int64_t FirstScatteredRow(const Signature& s, int ranks, int position) {
  return s.shape[0] / ranks * position +
         std::min<int64_t>(position, s.shape[0] % ranks);
}

std::string IdentityKey(uint32_t process_set, uint32_t kind,
                        std::string_view name) {
  std::string key = std::to_string(process_set) + "/" + std::to_string(kind);
  key += '/';
  key += name;
  return key;
}

std::string ShapeText(const Signature& s) {
  std::string out = "[";
  for (int i = 0; i < std::min<int>(s.dims, kMaxDims); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(s.shape[i]);
  }
  return out + "]";
}

uint64_t HashBytes(std::string_view bytes) {
  uint64_t h = 14695981039346656037ull;
  for (unsigned char c : bytes) {
    h ^= c;
    h *= 1099511628211ull;
  }
  return h;
}

}  // namespace maypole
