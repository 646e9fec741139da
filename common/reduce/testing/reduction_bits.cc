// Prints a checksum of each reduction's result, for inputs that are the same on
// every machine, in lines such as
//
//   reduce float32 sum 1a2b3c4d
//
// All kinds of processors must print the same, because a job's nodes may have
// different ones. The bits of a NaN are unspecified (reduce.h).
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <limits>
#include <random>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/checksum/checksum.h"
#include "common/reduce/adasum.h"
#include "common/reduce/reduce.h"
#include "common/reduce/testing/any_elements.h"
#include "common/types.h"

namespace maypole {
namespace {

constexpr size_t kMostInputs = 5;
constexpr size_t kLengths[] = {1, 7, 16, 33, 64, 130, 1023, 1025, 2500};
constexpr double kFactors[] = {0.5, 0.7, -2.0, 3.0, 1e19};

template <typename T>
const std::byte* Bytes(const std::vector<T>& v) {
  return reinterpret_cast<const std::byte*>(v.data());
}

template <typename T>
std::byte* Bytes(std::vector<T>& v) {
  return reinterpret_cast<std::byte*>(v.data());
}

template <typename T>
std::vector<const std::byte*> Rows(const std::vector<std::vector<T>>& in) {
  std::vector<const std::byte*> rows;
  for (const auto& v : in) rows.push_back(Bytes(v));
  return rows;
}

// The results of one kind of reduction.
template <typename N>
class Results {
 public:
  using T = typename N::Stored;

  void Add(std::vector<T> values) {
    if constexpr (std::is_floating_point_v<typename N::Value>) {
      const T nan =
          N::Write(std::numeric_limits<typename N::Value>::quiet_NaN());
      for (T& v : values) {
        if (std::isnan(N::Read(v))) v = nan;
      }
    }
    all_.insert(all_.end(), values.begin(), values.end());
  }

  void Print(std::string_view what, DType dtype, std::string_view how) const {
    std::cout << what << " " << Name(dtype) << " " << how << " " << std::hex
              << Checksum(all_.data(), all_.size() * sizeof(T)) << "\n";
  }

 private:
  std::vector<T> all_;
};

template <typename N>
void PrintReductions(DType dtype, Op op) {
  Results<N> all, portable;
  std::mt19937_64 random(static_cast<uint64_t>(dtype));
  for (const size_t n : kLengths) {
    for (size_t count = 1; count <= kMostInputs; ++count) {
      const auto in = AnyInputs<N>(count, n, random);
      for (const Epilogue& epilogue :
           {Epilogue(), AnyEpilogue<N>(random), Epilogue{3, 0.7}}) {
        std::vector<typename N::Stored> out(n);
        Reduce(dtype, op, Rows(in), Bytes(out), n, epilogue);
        all.Add(out);
        ReducePortable(dtype, op, Rows(in), Bytes(out), n, epilogue);
        portable.Add(out);
      }
    }
  }
  all.Print("reduce", dtype, Name(op));
  portable.Print("portable", dtype, Name(op));

  std::vector<typename N::Stored> out(1);
  Results<N> neutral;
  FillNeutral(dtype, op, Bytes(out), 1);
  neutral.Add(out);
  neutral.Print("neutral", dtype, Name(op));
}

template <typename N>
void PrintScaled(DType dtype) {
  Results<N> all;
  std::mt19937_64 random(100 + static_cast<uint64_t>(dtype));
  for (const double factor : kFactors) {
    for (const size_t n : kLengths) {
      const auto in = AnyInputs<N>(1, n, random);
      std::vector<typename N::Stored> out(n);
      Scale(dtype, Bytes(in[0]), Bytes(out), n, factor);
      all.Add(out);
    }
  }
  all.Print("scale", dtype, "-");
}

// Like gradients: numbers of about one size.
template <typename N>
std::vector<std::vector<typename N::Stored>> NumberInputs(
    size_t count, size_t elements, std::mt19937_64& random) {
  std::vector<std::vector<typename N::Stored>> in(count);
  for (auto& v : in) {
    for (size_t i = 0; i < elements; ++i) {
      const double value = static_cast<double>(random() % 20001) - 10000;
      v.push_back(N::Write(static_cast<typename N::Value>(value / 777)));
    }
  }
  return in;
}

template <typename N>
void PrintAdasum(DType dtype) {
  Results<N> all;
  std::mt19937_64 random(200 + static_cast<uint64_t>(dtype));
  for (const size_t n : kLengths) {
    for (size_t ranks = 1; ranks <= kMostInputs; ++ranks) {
      for (const auto& in : {NumberInputs<N>(ranks, n, random),
                             AnyInputs<N>(ranks, n, random)}) {
        std::vector<double> products(ranks * ranks);
        AdasumProducts(dtype, Rows(in), n, products.data());
        std::vector<typename N::Stored> out(n);
        AdasumCombine(dtype, Rows(in), AdasumFactors(products, ranks), n,
                      Bytes(out));
        all.Add(out);
      }
    }
  }
  all.Print("adasum", dtype, "-");
}

}  // namespace
}  // namespace maypole

int main() {
  maypole::ForAllTypes([]<typename N>(maypole::DType dtype, N) {
    for (int op = 0; op < maypole::kOps; ++op) {
      maypole::PrintReductions<N>(dtype, static_cast<maypole::Op>(op));
    }
    if (dtype != maypole::DType::kBool) maypole::PrintScaled<N>(dtype);
    if constexpr (std::is_floating_point_v<typename N::Value>) {
      maypole::PrintAdasum<N>(dtype);
    }
  });
  return 0;
}
