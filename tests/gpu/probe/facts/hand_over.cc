// Fact 3: how long it takes until work of one process' stream goes on after
// work of another's.
#include "tests/gpu/probe/facts/hand_over.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/gpu/probe/facts/facts.h"
#include "tests/gpu/probe/lab/conversation.h"

namespace maypole::probe {
namespace {

constexpr int kFact = 3;
constexpr Duration kStart = Seconds(60);
constexpr Duration kStep = Seconds(20);
constexpr Duration kEnd = Seconds(10);
// Where a hand-over takes milliseconds, as many as there is time for.
constexpr Duration kBudget = Seconds(6);
// Beyond the budget: warming up, a batch that has begun, partners' deadlines.
constexpr Duration kGrace = Seconds(60);

struct Method {
  const char* command;
  const char* name;
  const char*
      piece;  // what the mean of a piece is called; empty: there is none
};
constexpr Method kMethods[] = {
    {"flags", "stream flags in host memory", "mean by device clock"},
    {"events", "interprocess events", "mean, hosts ahead"},
    {"host", "host round trip", ""},
};

struct Pair {
  Actor first, second;
};

absl::StatusOr<Pair> StartPair(Lab& lab) {
  auto first = lab.Start("first");
  if (!first.ok()) return first.status();
  auto second = lab.Start("second");
  if (!second.ok()) return second.status();
  Pair pair{*std::move(first), *std::move(second)};
  for (Actor* actor : {&pair.first, &pair.second}) {
    const auto ready = Hear(*actor, "ready", kStart);
    if (!ready.ok()) return ready.status();
  }
  return pair;
}

absl::Status GivePage(Pair& pair) {
  const auto page = SharedMemory::Create(kHandOverBytes);
  if (!page.ok()) return page.status();
  const int fd = page->fd();
  for (Actor* actor : {&pair.first, &pair.second}) {
    const auto mapped = Ask(*actor, "page", "mapped", kStep, {&fd, 1});
    if (!mapped.ok()) return mapped.status();
  }
  return absl::OkStatus();
}

absl::StatusOr<Words> HandOvers(Pair& pair, const Method& method, int rounds) {
  absl::Status status = GivePage(pair);
  if (!status.ok()) return status;
  const std::string command =
      absl::StrCat(method.command, " ", rounds, " ", kBudget.count());
  for (Actor* actor : {&pair.second, &pair.first}) {
    status = actor->channel().Send(command);
    if (!status.ok()) return status;
  }
  auto took = Hear(pair.first, "took", kBudget + kGrace);
  if (!took.ok()) {
    // The first may only have waited for the second: that knows why.
    const auto other = pair.second.channel().Expect("took", Duration(0));
    if (!other.ok() && !absl::IsDeadlineExceeded(other.status())) {
      return other.status();
    }
    return took;
  }
  const auto other = Hear(pair.second, "took", kStep);
  if (!other.ok()) return other.status();
  return took;
}

void AddTook(Lab& lab, const std::string& name, const Method& method,
             const Words& took) {
  const double p50 = took.Number(2) / 1e3, p99 = took.Number(3) / 1e3;
  Row row{
      kFact,
      name,
      Outcome::kMeasured,
      absl::StrFormat("one hand-over takes %.1f us (p99 %.1f us)", p50, p99),
      {{"p50", p50, "us"},
       {"p99", p99, "us"},
       {"least", took.Number(4) / 1e3, "us"},
       {"most", took.Number(5) / 1e3, "us"},
       {"rounds", took.Number(1), ""},
       {"rounds left out", took.Number(7), ""}}};
  if (*method.piece != '\0') {
    row.figures.push_back({method.piece, took.Number(6) / 1e3, "us"});
  }
  lab.report().Add(std::move(row));
}

void MeasureMethod(Lab& lab, const Method& method, const std::string& name) {
  auto pair = StartPair(lab);
  if (!pair.ok()) {
    AddTrouble(lab, kFact, name, "start", pair.status());
    return;
  }
  const auto took = HandOvers(*pair, method, lab.options().quick ? 200 : 10000);
  if (absl::IsUnimplemented(took.status())) {
    lab.report().NotMeasured(kFact, name, std::string(took.status().message()));
  } else if (!took.ok()) {
    AddTrouble(lab, kFact, name, "hand over", took.status());
    return;
  } else {
    AddTook(lab, name, method, *took);
  }
  pair->first.End(kEnd).IgnoreError();
  pair->second.End(kEnd).IgnoreError();
}

std::string RowName(const Method& method, const std::string& mode) {
  return absl::StrCat(method.name, ", ", mode);
}

}  // namespace

void HandOver(Lab& lab) {
  WithoutAndWithMps(
      lab,
      [&](const std::string& mode) {
        for (const Method& method : kMethods) {
          MeasureMethod(lab, method, RowName(method, mode));
        }
      },
      [&](const std::string& why) {
        for (const Method& method : kMethods) {
          lab.report().NotMeasured(kFact, RowName(method, "MPS"), why);
        }
      });
}

}  // namespace maypole::probe
