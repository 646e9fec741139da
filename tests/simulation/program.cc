#include "tests/simulation/program.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace maypole::simulation {
namespace {

constexpr int64_t kMillisecond = 1000000;
using What = Action::What;

const std::vector<DType>& DTypes() {
  static const auto& all =
      *new std::vector<DType>{DType::kInt32, DType::kFloat32, DType::kInt64,
                              DType::kFloat64, DType::kUint8};
  return all;
}

// What nodes can execute by a schedule.
const std::vector<Kind>& ScheduledKinds() {
  static const auto& all =
      *new std::vector<Kind>{Kind::kAllreduce, Kind::kAllreduce,
                             Kind::kBroadcast, Kind::kReducescatter};
  return all;
}

const std::vector<Kind>& Kinds() {
  static const auto& all = *new std::vector<Kind>{
      Kind::kAllreduce,     Kind::kAllreduce, Kind::kAllreduce,
      Kind::kBroadcast,     Kind::kAllgather, Kind::kAlltoall,
      Kind::kReducescatter, Kind::kBarrier};
  return all;
}

class Maker {
 public:
  Maker(Random* random, const ProgramOptions& options)
      : random_(*random),
        size_(options.size),
        new_names_(options.new_names),
        elastic_(options.elastic),
        repeats_(options.repeats) {
    program_.calm = options.calm;
    program_.actions.resize(static_cast<size_t>(size_));
    all_.resize(static_cast<size_t>(size_));
    std::iota(all_.begin(), all_.end(), 0);
  }

  Program Make();

 private:
  int64_t SomeCount();
  Action Compute();
  int64_t InputDelay(const Planned& op, bool awaited);
  std::vector<int> SomeRanks();
  Op SomeOp(Kind kind, DType dtype);
  void Spoil(Planned* op);
  void Split(Planned* op);
  void AddOperation(std::set<std::string>* taken,
                    const std::vector<int>& joined);
  std::vector<size_t> SomeOrder(int rank, size_t first);
  std::vector<Signature> Changed(const std::vector<Planned>& step);
  std::vector<size_t> Submit(int rank, size_t first, bool may_wait);
  void Wait(int rank, std::vector<size_t> submitted);
  void RequestSet();
  void Step();
  void Repeat();
  void JoinPhase();
  void Cross();
  void ForAll(const Action& action);
  std::vector<Action>& ActionsOf(int rank) {
    return program_.actions[static_cast<size_t>(rank)];
  }
  bool Leaves(int rank) const { return left_ && rank == program_.leaver; }

  Random& random_;
  const int size_;
  const bool new_names_;
  const bool elastic_;
  const bool repeats_;
  bool lasting_ = false;  // operations are being made that will be repeated
  int steps_ = 0;
  std::vector<int> all_;
  std::vector<size_t> live_sets_;
  bool left_ = false;  // the leaver has left
  Program program_;
};

int64_t Maker::SomeCount() {
  switch (random_.Below(8)) {
    case 0:
      return static_cast<int64_t>(random_.Below(2));
    case 1:
      return random_.Between(1000, 8000);  // several chunks
    case 2:
    case 3:
      return random_.Between(100, 1500);
    default:
      return random_.Between(1, 64);
  }
}

Action Maker::Compute() {
  return {.what = What::kCompute,
          .time = random_.OneIn(40)
                      ? random_.Magnitude(100, 9000) * kMillisecond
                      : random_.Magnitude(100, kMillisecond)};
}

// See Action::time.
int64_t Maker::InputDelay(const Planned& op, bool awaited) {
  if (awaited || op.kind() == Kind::kBarrier || !random_.OneIn(6)) return 0;
  return random_.Magnitude(1000, 2 * kMillisecond);
}

std::vector<int> Maker::SomeRanks() {
  std::vector<int> ranks = all_;
  random_.Shuffle(&ranks);
  ranks.resize(1 + random_.Below(ranks.size()));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// --- Operations --------------------------------------------------------------

Op Maker::SomeOp(Kind kind, DType dtype) {
  const bool whole = dtype != DType::kFloat32 && dtype != DType::kFloat64;
  if (kind == Kind::kAllreduce && random_.OneIn(3)) {
    // Products of floats are not exact.
    if (whole && random_.OneIn(3)) return Op::kProduct;
    return random_.OneIn(2) ? Op::kMin : Op::kMax;
  }
  return random_.OneIn(3) ? Op::kAverage : Op::kSum;
}

// One rank submits something else.
void Maker::Spoil(Planned* op) {
  std::vector<int> who;
  for (const int rank : op->ranks) {
    if (op->HasPart(rank)) who.push_back(rank);
  }
  if (who.size() < 2 || op->kind() == Kind::kBarrier || !op->matches) return;
  Signature& s = op->signatures[static_cast<size_t>(random_.Pick(who))];
  op->matches = false;
  const bool gathers = Gathers(s.kind);
  switch (random_.Below(3)) {
    case 0:
      break;
    case 1:
      if (gathers) {
        s.dims = 2;
        s.shape[1] = 3;
      } else {
        s.shape[0] += 1;
      }
      return;
    default:
      if (Reduces(s.kind)) {
        s.op = s.op == Op::kSum ? Op::kAverage : Op::kSum;
        return;
      }
      if (s.kind == Kind::kBroadcast) {
        const size_t place = op->PositionOf(s.root) + 1;
        s.root = op->ranks[place % op->ranks.size()];
        return;
      }
  }
  s.dtype = s.dtype == DType::kInt32 ? DType::kFloat32 : DType::kInt32;
}

void Maker::Split(Planned* op) {
  op->splits.resize(static_cast<size_t>(size_));
  for (const int rank : op->ranks) {
    std::vector<int64_t>& mine = op->splits[static_cast<size_t>(rank)];
    for (size_t i = 0; i < op->ranks.size(); ++i) {
      mine.push_back(random_.OneIn(4) ? 0 : SomeCount() / 3);
    }
    op->signatures[static_cast<size_t>(rank)].shape[0] =
        std::accumulate(mine.begin(), mine.end(), int64_t{0});
  }
}

void Maker::AddOperation(std::set<std::string>* taken,
                         const std::vector<int>& joined) {
  Planned op;
  op.number = static_cast<uint32_t>(program_.operations.size());
  op.ranks = all_;
  if (!live_sets_.empty() && random_.OneIn(2)) {
    op.set = static_cast<int>(random_.Pick(live_sets_));
    op.ranks = program_.sets[static_cast<size_t>(op.set)].asked.front();
  }
  std::vector<int> active;
  for (const int rank : op.ranks) {
    const bool aside =
        std::find(joined.begin(), joined.end(), rank) != joined.end();
    (aside ? op.aside : active).push_back(rank);
  }
  if (active.empty()) return;
  Signature s;
  s.kind = random_.Pick(lasting_ ? ScheduledKinds() : Kinds());
  s.dims = 1;
  const bool unnamed = !new_names_ && !lasting_ &&
                       (s.kind == Kind::kBarrier || random_.OneIn(8));
  for (int i = 0; !unnamed; ++i) {
    op.name = absl::StrCat(std::string(Name(s.kind)).substr(0, 6), i);
    if (new_names_) absl::StrAppend(&op.name, ".", steps_);
    if (taken->insert(absl::StrCat(op.set, "/", op.name)).second) break;
  }
  if (s.kind != Kind::kBarrier) {
    s.dtype = random_.Pick(DTypes());
    s.shape[0] = SomeCount();
  }
  if (Reduces(s.kind)) {
    s.op = SomeOp(s.kind, s.dtype);
  }
  if (s.kind == Kind::kBroadcast) {
    s.root = random_.Pick(random_.OneIn(8) ? op.ranks : active);
    op.matches = !op.IsAside(s.root);
  }
  op.in_place = (s.kind == Kind::kAllreduce || s.kind == Kind::kBroadcast) &&
                random_.OneIn(2);
  op.signatures.assign(static_cast<size_t>(size_), s);
  if (s.kind == Kind::kAllgather) {
    for (Signature& mine : op.signatures) {
      mine.shape[0] = random_.OneIn(4) ? 0 : SomeCount();
    }
  }
  if (s.kind == Kind::kAlltoall) Split(&op);
  if (!lasting_ && random_.OneIn(10)) Spoil(&op);
  program_.operations.push_back(std::move(op));
}

// --- Steps -------------------------------------------------------------------

// The order in which the rank submits the operations from `first` on: any, but
// unnamed ones keep theirs.
std::vector<size_t> Maker::SomeOrder(int rank, size_t first) {
  std::vector<size_t> order;
  for (size_t i = first; i < program_.operations.size(); ++i) {
    if (program_.operations[i].HasPart(rank)) order.push_back(i);
  }
  if (random_.OneIn(2)) return order;
  random_.Shuffle(&order);
  std::vector<size_t> places, unnamed;
  for (size_t i = 0; i < order.size(); ++i) {
    if (!program_.operations[order[i]].name.empty()) continue;
    places.push_back(i);
    unnamed.push_back(order[i]);
  }
  std::sort(unnamed.begin(), unnamed.end());
  for (size_t i = 0; i < places.size(); ++i) order[places[i]] = unnamed[i];
  return order;
}

// The operations that it has submitted and not waited for.
std::vector<size_t> Maker::Submit(int rank, size_t first, bool may_wait) {
  std::vector<Action>& actions = ActionsOf(rank);
  std::vector<size_t> submitted;
  const std::vector<size_t> order = SomeOrder(rank, first);
  const bool alone = program_.operations.size() == first + 1;
  for (const size_t i : order) {
    if (random_.OneIn(4)) actions.push_back(Compute());
    // A rank that waits at once would depend on the others' order of several
    // operations.
    const bool at_once = may_wait && alone && random_.OneIn(2);
    actions.push_back({.what = What::kSubmit,
                       .index = i,
                       .awaited = at_once,
                       .time = InputDelay(program_.operations[i], at_once)});
    if (at_once) {
      actions.push_back({.what = What::kWait, .index = i});
      continue;
    }
    submitted.push_back(i);
    if (!program_.operations[i].name.empty() && random_.OneIn(30)) {
      actions.push_back({.what = What::kDuplicate, .index = i});
    }
  }
  return submitted;
}

void Maker::Wait(int rank, std::vector<size_t> submitted) {
  std::vector<Action>& actions = ActionsOf(rank);
  if (random_.OneIn(2)) random_.Shuffle(&submitted);
  for (const size_t i : submitted) {
    if (random_.OneIn(5)) actions.push_back({.what = What::kPoll, .index = i});
    if (random_.OneIn(6)) actions.push_back(Compute());
    actions.push_back({.what = What::kWait, .index = i});
  }
}

// A step of a training loop: submits all, waits for all.
void Maker::Step() {
  ++steps_;
  const size_t first = program_.operations.size();
  std::set<std::string> taken;
  for (uint64_t n = 1 + random_.Below(5); n > 0; --n) AddOperation(&taken, {});
  for (int rank = 0; rank < size_; ++rank) {
    if (!Leaves(rank)) Wait(rank, Submit(rank, first, true));
  }
}

// Equal steps, now and then with another operation in between, another order,
// or ranks that are late for a while.
void Maker::Repeat() {
  std::set<std::string> taken;
  ++steps_;
  const size_t first = program_.operations.size();
  lasting_ = true;
  for (uint64_t n = 1 + random_.Below(5); n > 0; --n) AddOperation(&taken, {});
  lasting_ = false;
  const std::vector<Planned> step(program_.operations.begin() + first,
                                  program_.operations.end());
  program_.operations.resize(first);
  for (uint64_t rounds = 4 + random_.Below(12); rounds > 0; --rounds) {
    const size_t begin = program_.operations.size();
    for (const Planned& op : step) {
      program_.operations.push_back(op);
      program_.operations.back().number =
          static_cast<uint32_t>(program_.operations.size() - 1);
    }
    if (random_.OneIn(16)) AddOperation(&taken, {});
    if (random_.OneIn(16))
      program_.operations[begin].signatures = Changed(step);
    for (int rank = 0; rank < size_; ++rank) {
      if (Leaves(rank)) continue;
      if (random_.OneIn(40)) ActionsOf(rank).push_back(Compute());
      Wait(rank, Submit(rank, begin, true));
    }
  }
}

// The signatures of the step's first operation, with more elements.
std::vector<Signature> Maker::Changed(const std::vector<Planned>& step) {
  std::vector<Signature> signatures = step.front().signatures;
  for (Signature& s : signatures) s.shape[0] += 3;
  return signatures;
}

void Maker::RequestSet() {
  SetPlan plan;
  if (!live_sets_.empty() && random_.OneIn(4)) {
    plan.removes = true;
    plan.removed = random_.Pick(live_sets_);
    std::erase(live_sets_, plan.removed);
  } else {
    plan.asked.assign(static_cast<size_t>(size_), SomeRanks());
    const auto is_twin = [&](size_t set) {
      return program_.sets[set].asked.front() == plan.asked.front();
    };
    if (plan.asked.front() == all_ ||
        std::any_of(live_sets_.begin(), live_sets_.end(), is_twin)) {
      plan.end = SetPlan::End::kTwin;
    } else if (random_.OneIn(6)) {
      std::vector<int>& other = plan.asked[random_.Below(plan.asked.size())];
      const std::vector<int> others = SomeRanks();
      if (other != others) plan.end = SetPlan::End::kDiffers;
      other = others;
    }
    if (plan.end == SetPlan::End::kDone) {
      live_sets_.push_back(program_.sets.size());
    }
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (Leaves(rank)) continue;
    if (random_.OneIn(4)) ActionsOf(rank).push_back(Compute());
    ActionsOf(rank).push_back(
        {.what = What::kSetRequest, .index = program_.sets.size()});
  }
  program_.sets.push_back(std::move(plan));
}

// Ranks have different numbers of steps; a rank that has none left joins.
void Maker::JoinPhase() {
  std::vector<uint64_t> steps;
  for (int rank = 0; rank < size_; ++rank) steps.push_back(random_.Below(4));
  const uint64_t most = *std::max_element(steps.begin(), steps.end());
  for (uint64_t step = 0; step <= most; ++step) {
    std::vector<int> joined;
    for (int rank = 0; rank < size_; ++rank) {
      if (steps[static_cast<size_t>(rank)] <= step) joined.push_back(rank);
    }
    ++steps_;
    const size_t first = program_.operations.size();
    std::set<std::string> taken;
    for (uint64_t n = 1 + random_.Below(3); n > 0; --n) {
      AddOperation(&taken, joined);
    }
    for (int rank = 0; rank < size_; ++rank) {
      const uint64_t mine = steps[static_cast<size_t>(rank)];
      if (step > mine || Leaves(rank)) continue;
      if (step == mine) {
        ActionsOf(rank).push_back(
            {.what = What::kJoin, .index = program_.joins});
      } else {
        Wait(rank, Submit(rank, first, true));
      }
    }
  }
  ++program_.joins;
}

// One rank reduces 'crossed', the others gather it, and all wait.
void Maker::Cross() {
  program_.deadlocks = true;
  const int odd = random_.Pick(all_);
  for (const Kind kind : {Kind::kAllreduce, Kind::kAllgather}) {
    Planned op;
    op.number = static_cast<uint32_t>(program_.operations.size());
    op.name = "crossed";
    op.ranks = all_;
    Signature s;
    s.kind = kind;
    s.dtype = DType::kInt32;
    s.dims = 1;
    s.shape[0] = 5;
    op.signatures.assign(static_cast<size_t>(size_), s);
    for (int rank = 0; rank < size_; ++rank) {
      if ((rank == odd) != (kind == Kind::kAllreduce)) continue;
      const size_t index = program_.operations.size();
      ActionsOf(rank).push_back({.what = What::kSubmit, .index = index});
      ActionsOf(rank).push_back({.what = What::kWait, .index = index});
    }
    program_.operations.push_back(std::move(op));
  }
}

void Maker::ForAll(const Action& action) {
  for (std::vector<Action>& actions : program_.actions) {
    actions.push_back(action);
  }
}

Program Maker::Make() {
  if (elastic_) {
    ForAll({.what = What::kSync});
  } else if (!program_.calm && random_.OneIn(5)) {
    program_.leaver =
        static_cast<int>(random_.Below(static_cast<uint64_t>(size_)));
  }
  const uint64_t steps = 1 + random_.Below(new_names_ ? 16 : 4);
  const uint64_t leaves_at = random_.Below(steps);
  const bool uses_sets = random_.OneIn(2);
  const bool joins = random_.OneIn(4);
  for (uint64_t step = 0; step < steps; ++step) {
    left_ = left_ || step >= leaves_at;
    while (uses_sets && random_.OneIn(2)) RequestSet();
    repeats_ && !random_.OneIn(3) ? Repeat() : Step();
    const bool all_there = program_.leaver < 0 || !left_;
    if (joins && all_there && random_.OneIn(2)) JoinPhase();
    if (elastic_) {
      ForAll({.what = What::kCommit, .index = program_.operations.size()});
    }
  }
  if (!program_.calm && program_.leaver < 0 && random_.OneIn(10)) Cross();
  if (program_.leaver >= 0 && random_.OneIn(2)) {
    // It leaves with operations pending: those it does not wait for.
    std::vector<Action>& actions = ActionsOf(program_.leaver);
    while (!actions.empty() && (actions.back().what == What::kWait ||
                                actions.back().what == What::kPoll ||
                                actions.back().what == What::kCompute)) {
      actions.pop_back();
    }
  }
  for (std::vector<Action>& actions : program_.actions) {
    if (random_.OneIn(3)) actions.push_back(Compute());
    actions.push_back({.what = What::kLeave});
  }
  return std::move(program_);
}

}  // namespace

Program MakeProgram(Random* random, const ProgramOptions& options) {
  return Maker(random, options).Make();
}

}  // namespace maypole::simulation
