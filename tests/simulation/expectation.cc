// Inputs and expected results of ranks.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/simulation/program.h"

namespace maypole::simulation {
namespace {

// Appends the number as an element of the type.
void Put(DType dtype, int64_t value, std::vector<std::byte>* out) {
  const auto put = [&](auto v) {
    const auto* p = reinterpret_cast<const std::byte*>(&v);
    out->insert(out->end(), p, p + sizeof(v));
  };
  switch (dtype) {
    case DType::kUint8:
      return put(static_cast<uint8_t>(value));
    case DType::kInt32:
      return put(static_cast<int32_t>(value));
    case DType::kFloat32:
      return put(static_cast<float>(value));
    case DType::kFloat64:
      return put(static_cast<double>(value));
    default:
      return put(value);
  }
}

// A multiple of 12: averages over up to four ranks, and six, are whole.
int64_t ValueOf(const Planned& op, int rank, int64_t element) {
  const int64_t many = op.signatures.front().dtype == DType::kUint8 ? 3 : 50;
  return 12 * ((op.number * 7 + rank * 3 + element * 5) % many);
}

int64_t Elements(const Signature& s) {
  return s.kind == Kind::kBarrier ? 0 : s.Elements();
}

int64_t RowElements(const Signature& s) {
  int64_t n = 1;
  for (int i = 1; i < s.dims; ++i) n *= s.shape[i];
  return n;
}

// Wraps as the kernels do, in any width of whole numbers.
int64_t Combine(Op op, int64_t a, int64_t b) {
  switch (op) {
    case Op::kMin:
      return std::min(a, b);
    case Op::kMax:
      return std::max(a, b);
    case Op::kProduct:
      return static_cast<int64_t>(static_cast<uint64_t>(a) *
                                  static_cast<uint64_t>(b));
    default:
      return a + b;
  }
}

void PutAverage(DType dtype, int64_t sum, size_t ranks,
                std::vector<std::byte>* out) {
  const size_t begin = out->size();
  if (dtype == DType::kFloat32) {
    Put(dtype, 0, out);
    const float average = static_cast<float>(sum) / static_cast<float>(ranks);
    std::memcpy(out->data() + begin, &average, sizeof(average));
  } else if (dtype == DType::kFloat64) {
    Put(dtype, 0, out);
    const double average =
        static_cast<double>(sum) / static_cast<double>(ranks);
    std::memcpy(out->data() + begin, &average, sizeof(average));
  } else {
    // A byte's sum wraps before it is divided.
    const int64_t whole = dtype == DType::kUint8 ? sum & 0xff : sum;
    Put(dtype, whole / static_cast<int64_t>(ranks), out);
  }
}

// The elements begin .. end-1 of the reduced tensor.
std::vector<std::byte> Reduced(const Planned& op, const Signature& s,
                               int64_t begin, int64_t end) {
  std::vector<std::byte> out;
  for (int64_t i = begin; i < end; ++i) {
    bool first = true;
    int64_t value = 0;
    for (const int r : op.ranks) {
      if (op.IsAside(r)) continue;
      const int64_t theirs = ValueOf(op, r, i);
      value = first ? theirs : Combine(s.op, value, theirs);
      first = false;
    }
    if (s.op == Op::kAverage) {
      PutAverage(s.dtype, value, op.ranks.size(), &out);
    } else {
      Put(s.dtype, value, &out);
    }
  }
  return out;
}

// The rows that a rank sends to another in an alltoall.
std::vector<std::byte> Sent(const Planned& op, int from, size_t to) {
  const Signature& s = op.signatures[static_cast<size_t>(from)];
  const std::vector<int64_t>& splits = op.splits[static_cast<size_t>(from)];
  const int64_t row = RowElements(s);
  int64_t begin = 0;
  for (size_t j = 0; j < to; ++j) begin += splits[j] * row;
  std::vector<std::byte> out;
  for (int64_t i = begin; i < begin + splits[to] * row; ++i) {
    Put(s.dtype, ValueOf(op, from, i), &out);
  }
  return out;
}

void Append(const std::vector<std::byte>& part, std::vector<std::byte>* out) {
  out->insert(out->end(), part.begin(), part.end());
}

}  // namespace

bool Planned::IsAside(int rank) const {
  return std::find(aside.begin(), aside.end(), rank) != aside.end();
}

bool Planned::HasPart(int rank) const {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end() &&
         !IsAside(rank);
}

size_t Planned::PositionOf(int rank) const {
  return static_cast<size_t>(std::find(ranks.begin(), ranks.end(), rank) -
                             ranks.begin());
}

std::string Planned::Text() const {
  std::string out =
      absl::StrCat(std::string(Name(kind())), " '",
                   name.empty() ? "unnamed" : name, "' (", number);
  if (set >= 0) {
    absl::StrAppend(&out, ", of");
    for (const int rank : ranks) absl::StrAppend(&out, " ", rank);
  }
  if (!aside.empty()) {
    absl::StrAppend(&out, ", without");
    for (const int rank : aside) absl::StrAppend(&out, " ", rank);
  }
  return out + ")";
}

std::vector<std::byte> InputOf(const Planned& op, int rank) {
  const Signature& s = op.signatures[static_cast<size_t>(rank)];
  std::vector<std::byte> out;
  out.reserve(static_cast<size_t>(Elements(s)) * 8);
  for (int64_t i = 0; i < Elements(s); ++i) {
    Put(s.dtype, ValueOf(op, rank, i), &out);
  }
  return out;
}

std::vector<int64_t> ReceivedOf(const Planned& op, int rank) {
  std::vector<int64_t> out;
  for (const int from : op.ranks) {
    out.push_back(
        op.IsAside(from)
            ? 0
            : op.splits[static_cast<size_t>(from)][op.PositionOf(rank)]);
  }
  return out;
}

std::vector<std::byte> ResultOf(const Planned& op, int rank) {
  const Signature& s = op.signatures[static_cast<size_t>(rank)];
  std::vector<std::byte> out;
  switch (s.kind) {
    case Kind::kBroadcast:
      return InputOf(op, s.root);
    case Kind::kAllgather:
      for (const int r : op.ranks) {
        if (!op.IsAside(r)) Append(InputOf(op, r), &out);
      }
      return out;
    case Kind::kAlltoall:
      for (const int r : op.ranks) {
        if (!op.IsAside(r)) Append(Sent(op, r, op.PositionOf(rank)), &out);
      }
      return out;
    case Kind::kAllreduce:
      return Reduced(op, s, 0, Elements(s));
    case Kind::kReducescatter: {
      const int n = static_cast<int>(op.ranks.size());
      const int place = static_cast<int>(op.PositionOf(rank));
      const int64_t row = RowElements(s);
      const int64_t first = FirstScatteredRow(s, n, place);
      return Reduced(op, s, first * row,
                     (first + ScatteredRows(s, n, place)) * row);
    }
    default:
      return out;
  }
}

}  // namespace maypole::simulation
