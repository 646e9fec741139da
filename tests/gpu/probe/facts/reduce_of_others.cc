// Fact 5: the rate of a reduction over the buffers of k other processes.
//
// Eight lenders export a buffer each; the reducer maps all. For every type, k
// and size: the lenders fill their buffers with patterns, the reducer sums the
// first k into all of them, and each lender checks what then stands in its own
// memory; then the same is timed, in turn with copies. The counted traffic is
// what cannot be avoided: 2 k S bytes of a reduction, 2 S of a copy.
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/types.h"
#include "tests/gpu/probe/facts/facts.h"
#include "tests/gpu/probe/lab/conversation.h"

namespace maypole::probe {
namespace {

constexpr int kFact = 5;
constexpr size_t kCounts[] = {2, 4, 8};
constexpr size_t kLenders = 8;
constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBfloat16};
constexpr int kTimes = 7;
// So many elements are left alone by the checked reductions: an odd number is
// reduced, and nothing beyond.
constexpr uint64_t kLeft = 5;
constexpr Duration kStep = Seconds(30);
constexpr Duration kWhole = Seconds(90);

std::string RowName(size_t count, DType dtype) {
  return absl::StrCat("k=", count, ", ", std::string(Name(dtype)));
}

struct Cast {
  std::optional<Actor> reducer;
  std::vector<Actor> lenders;
  std::vector<uint64_t> sizes;  // bytes, those that there is room for
};

// What one size gave.
struct Rates {
  double reduce = 0, slowest = 0, fastest = 0, copy = 0, kernel_copy = 0;
};

std::vector<uint64_t> Sizes(const Options& options) {
  if (options.quick) return {64 << 10, 1 << 20};
  return {64 << 20, 256 << 20, 1 << 30};
}

absl::Status StartLenders(Lab& lab, Cast& cast) {
  for (size_t i = 0; i < kLenders; ++i) {
    auto lender =
        lab.Start("lender", {absl::StrCat(cast.sizes.back()), absl::StrCat(i)});
    if (!lender.ok()) return lender.status();
    cast.lenders.push_back(*std::move(lender));
  }
  for (Actor& lender : cast.lenders) {
    auto lends = Hear(lender, "lends", kStep);
    if (!lends.ok()) return lends.status();
    const Fd fd = lends->TakeFd();
    const int number = fd.get();
    const auto imported =
        Ask(*cast.reducer, absl::StrCat("import ", lends->Integer(1)),
            "imported", kStep, {&number, 1});
    if (!imported.ok()) return imported.status();
  }
  return Ask(*cast.reducer, absl::StrCat("warm ", cast.sizes.back()), "warm",
             kStep)
      .status();
}

// kUnimplemented, kResourceExhausted: it cannot be measured here.
absl::StatusOr<Cast> Assemble(Lab& lab) {
  Cast cast;
  auto reducer = lab.Start("reducer");
  if (!reducer.ok()) return reducer.status();
  cast.reducer = *std::move(reducer);
  const auto room = Ask(*cast.reducer, "room", "room", kStep);
  if (!room.ok()) return room.status();
  if (room->Integer(2) == 0) {
    return absl::UnimplementedError(
        "this device cannot export memory as a file descriptor");
  }
  const uint64_t usable = static_cast<uint64_t>(room->Integer(1)) / 10 * 8;
  for (const uint64_t size : Sizes(lab.options())) {
    if ((kLenders + 2) * size <= usable) cast.sizes.push_back(size);
  }
  if (cast.sizes.empty()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("only ", usable >> 20, " MiB are free"));
  }
  const absl::Status started = StartLenders(lab, cast);
  if (!started.ok()) return started;
  return cast;
}

// Sums once and lets the lenders check it. Their answers; kDataLoss: wrong.
absl::StatusOr<std::vector<Words>> CheckOnce(Cast& cast, size_t count,
                                             DType dtype, uint64_t elements) {
  const std::span<Actor> lenders(cast.lenders.data(), count);
  const int type = static_cast<int>(dtype);
  const auto filled = AskAll(
      lenders, absl::StrCat("fill ", type, " ", elements), "filled", kStep);
  if (!filled.ok()) return filled.status();
  const uint64_t reduced = elements - kLeft;
  const auto done = Ask(*cast.reducer,
                        absl::StrCat("reduce ", type, " ", count, " ", reduced),
                        "reduced", kStep);
  if (!done.ok()) return done.status();
  for (Actor& lender : lenders) {
    const absl::Status sent = lender.channel().Send(
        absl::StrCat("check ", type, " ", count, " ", reduced, " ", elements));
    if (!sent.ok()) return sent;
  }
  std::vector<Words> out;
  for (size_t i = 0; i < count; ++i) {
    auto line = lenders[i].channel().Receive(kStep);
    if (!line.ok()) return line.status();
    if (line->text.starts_with("wrong ")) {
      return absl::DataLossError(absl::StrCat("buffer ", i, ": ", line->text));
    }
    if (!line->text.starts_with("right ")) {
      return absl::InternalError(line->text);
    }
    out.emplace_back(*std::move(line));
  }
  return out;
}

absl::StatusOr<Rates> Time(Cast& cast, size_t count, DType dtype,
                           uint64_t bytes) {
  const auto timed =
      Ask(*cast.reducer,
          absl::StrCat("time ", static_cast<int>(dtype), " ", count, " ",
                       bytes / SizeOf(dtype), " ", kTimes),
          "timed", kStep);
  if (!timed.ok()) return timed.status();
  const double copied = 2 * timed->Number(1);
  const std::vector<double> ms = timed->Numbers(2);
  std::vector<double> copy, reduce, kernel_copy;
  for (size_t i = 0; i + 2 < ms.size(); i += 3) {
    copy.push_back(ms[i]);
    reduce.push_back(ms[i + 1]);
    kernel_copy.push_back(ms[i + 2]);
  }
  // Bytes in a millisecond, in GB/s.
  const double moved = 2.0 * static_cast<double>(count * bytes) / 1e6;
  return Rates{.reduce = moved / Quantile(reduce, 0.5),
               .slowest = moved / Quantile(reduce, 1),
               .fastest = moved / Quantile(reduce, 0),
               .copy = copied / 1e6 / Quantile(copy, 0.5),
               .kernel_copy = copied / 1e6 / Quantile(kernel_copy, 0.5)};
}

// All sizes of one k and type: one row.
absl::Status Measure(Lab& lab, Cast& cast, size_t count, DType dtype) {
  Row row = {kFact, RowName(count, dtype), Outcome::kMeasured, "", {}};
  double worst = 0, other_bits = 0, checked = 0;
  Rates rates;
  for (const uint64_t bytes : cast.sizes) {
    const auto checks = CheckOnce(cast, count, dtype, bytes / SizeOf(dtype));
    if (!checks.ok()) return checks.status();
    for (const Words& words : *checks) {
      checked += words.Number(1);
      worst = std::max(worst, words.Number(2));
      other_bits += words.Number(3);
    }
    const auto timed = Time(cast, count, dtype, bytes);
    if (!timed.ok()) return timed.status();
    rates = *timed;
    const std::string size = SizeText(bytes);
    row.figures.push_back({size, rates.reduce, "GB/s"});
    row.figures.push_back({size + " slowest", rates.slowest, "GB/s"});
    row.figures.push_back({size + " fastest", rates.fastest, "GB/s"});
    row.figures.push_back({size + " copy", rates.copy, "GB/s"});
    row.figures.push_back({size + " kernel copy", rates.kernel_copy, "GB/s"});
  }
  row.figures.push_back({"checked", checked, ""});
  row.figures.push_back({"worst error", worst, "of the bound"});
  row.figures.push_back({"bits unlike the CPU's", other_bits, ""});
  row.text = absl::StrFormat(
      "%s each: %.0f GB/s, %.0f %% of the copy rate; sums right in all %d "
      "buffers",
      SizeText(cast.sizes.back()), rates.reduce,
      100 * rates.reduce / rates.copy, count);
  if (cast.sizes.size() < Sizes(lab.options()).size()) {
    row.text += "; no room for greater sizes";
  }
  lab.report().Add(std::move(row));
  return absl::OkStatus();
}

void NoneMeasured(Lab& lab, const absl::Status& why) {
  for (const DType dtype : kTypes) {
    for (const size_t count : kCounts) {
      lab.report().NotMeasured(kFact, RowName(count, dtype),
                               std::string(why.message()));
    }
  }
}

}  // namespace

void ReduceOfOthers(Lab& lab) {
  absl::StatusOr<Cast> cast = Assemble(lab);
  if (!cast.ok()) {
    if (absl::IsUnimplemented(cast.status()) ||
        absl::IsResourceExhausted(cast.status())) {
      return NoneMeasured(lab, cast.status());
    }
    return AddTrouble(lab, kFact, "buffers of eight processes", "to start",
                      cast.status());
  }
  const auto end = Clock::now() + kWhole;
  absl::Status broken;
  for (const DType dtype : kTypes) {
    for (const size_t count : kCounts) {
      const std::string name = RowName(count, dtype);
      if (!broken.ok() || Clock::now() > end) {
        lab.report().NotMeasured(
            kFact, name,
            broken.ok() ? "no time was left" : "a row before it failed");
        continue;
      }
      const absl::Status status = Measure(lab, *cast, count, dtype);
      if (status.ok()) continue;
      AddTrouble(lab, kFact, name, "reduction", status);
      // Wrong sums leave the actors as they are; the others are gone.
      if (!absl::IsDataLoss(status)) broken = status;
    }
  }
}

}  // namespace maypole::probe
