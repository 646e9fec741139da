// MakeProgram(): phases, process sets and joins; draw.cc has the operations.
#include <algorithm>
#include <set>
#include <string>
#include <tuple>

#include "tests/properties/spec/draw.h"
#include "tests/properties/spec/spec.h"

namespace maypole::properties {
namespace {

int BelowInt(Random& random, size_t n) {
  return static_cast<int>(Below(random, n));
}

class Maker {
 public:
  Maker(uint64_t seed, const World& world)
      : world_(world), random_(RandomFor(seed, 0)) {
    program_.seed = seed;
  }

  Program Make() {
    program_.phases.resize(1 + Below(random_, 4));
    if (world_.joins && OneIn(random_, 4)) MakeJoins();
    MakeSets();
    MakeOperations();
    return std::move(program_);
  }

 private:
  // A set of program_.sets and the phases in which it may be used.
  struct Usable {
    int set;
    int first;
    int last;
  };

  int phases() const { return static_cast<int>(program_.phases.size()); }
  void MakeJoins();
  void MakeSets();
  void MakeSet();
  void MakeWrongRequest();
  std::vector<int> DrawMembers();
  std::vector<int> FreePhases() const;
  void MakeOperations();
  void MakeOne(int phase);
  void MakeGroup(int phase, int operations);
  Place DrawPlace(int phase);
  void Add(OperationSpec o);
  std::string DrawName(const OperationSpec& o);

  const World& world_;
  Random random_;
  Program program_;
  std::vector<Usable> usable_;
  std::set<std::tuple<int, int, Kind, std::string>> identities_;
  int groups_ = 0;
};

// Every rank joins after one of up to three phases, one after another; once or
// twice. The program's last phase has all ranks.
void Maker::MakeJoins() {
  for (int times = OneIn(random_, 4) ? 2 : 1, first = 0; times > 0; --times) {
    first += BelowInt(random_, 2);
    int last = first;
    std::vector<int> when;
    for (int r = 0; r < world_.ranks; ++r) {
      when.push_back(first + BelowInt(random_, 3));
      last = std::max(last, when.back());
    }
    if (phases() < last + 2)
      program_.phases.resize(static_cast<size_t>(last + 2));
    for (int r = 0; r < world_.ranks; ++r) {
      const auto joins = static_cast<size_t>(when[static_cast<size_t>(r)]);
      program_.phases[joins].joins |= uint64_t{1} << r;
      for (size_t p = joins + 1; p <= static_cast<size_t>(last); ++p) {
        program_.phases[p].aside |= uint64_t{1} << r;
      }
    }
    first = last + 1;
  }
}

// Phases in which all ranks take part: requests for process sets need them.
std::vector<int> Maker::FreePhases() const {
  std::vector<int> free;
  for (int p = 0; p < phases(); ++p) {
    if (program_.phases[static_cast<size_t>(p)].aside == 0) free.push_back(p);
  }
  return free;
}

// Members that no set has so far; empty if it finds none.
std::vector<int> Maker::DrawMembers() {
  for (int tries = 0; tries < 10; ++tries) {
    std::vector<int> members;
    for (int r = 0; r < world_.ranks; ++r) {
      if (OneIn(random_, 2)) members.push_back(r);
    }
    const auto& sets = program_.sets;
    if (members.empty() ||
        std::find(sets.begin(), sets.end(), members) != sets.end()) {
      continue;
    }
    return members;
  }
  return {};
}

void Maker::MakeSet() {
  const std::vector<int> members = DrawMembers();
  if (members.empty()) return;
  const std::vector<int> free = FreePhases();
  SetRequest add;
  add.set = static_cast<int>(program_.sets.size());
  const size_t i = Below(random_, free.size() - 2);
  add.phase = free[i];
  // Each rank may name them in another order.
  for (int r = 0; r < world_.ranks; ++r) {
    add.asked.push_back(members);
    std::shuffle(add.asked.back().begin(), add.asked.back().end(), random_);
  }
  SetRequest remove;
  remove.set = add.set;
  remove.remove = true;
  remove.phase = free[i + 2 + Below(random_, free.size() - i - 2)];
  program_.sets.push_back(members);
  program_.requests.push_back(add);
  program_.requests.push_back(remove);
  usable_.push_back({add.set, add.phase + 1, remove.phase - 1});
}

// A set that is there already, an unknown one removed, or ranks that disagree.
void Maker::MakeWrongRequest() {
  const std::vector<int> free = FreePhases();
  SetRequest r;
  r.set = -1;  // unknown
  r.phase = free[Below(random_, free.size())];
  const auto ranks = static_cast<size_t>(world_.ranks);
  const size_t there = 1 + world_.sets.size();
  r.asked.assign(ranks, program_.sets[Below(random_, there)]);
  r.outcome = SetOutcome::kInvalid;
  if (OneIn(random_, 3)) {
    r.remove = true;
    r.asked.clear();
    if (OneIn(random_, 2)) r.set = 0;
  } else if (OneIn(random_, 2)) {
    const std::vector<int> members = DrawMembers();
    if (members.empty()) return;
    r.asked.assign(ranks, members);
    auto& odd = r.asked[Below(random_, ranks)];
    odd = program_.sets[Below(random_, there)];
    r.outcome = SetOutcome::kDisagreed;
  }
  program_.requests.push_back(r);
}

void Maker::MakeSets() {
  std::vector<int> all;
  for (int r = 0; r < world_.ranks; ++r) all.push_back(r);
  program_.sets.push_back(all);
  for (const auto& set : world_.sets) program_.sets.push_back(set);
  for (size_t i = 0; i < program_.sets.size(); ++i) {
    usable_.push_back({static_cast<int>(i), 0, phases() - 1});
  }
  if (!world_.set_changes || !OneIn(random_, 3)) return;
  // A set is made in one phase, used in the next and removed in a third.
  while (FreePhases().size() < 3) program_.phases.emplace_back();
  for (Usable& u : usable_) u.last = phases() - 1;
  for (uint64_t n = 1 + Below(random_, 3); n > 0; --n) MakeSet();
  if (OneIn(random_, 3)) MakeWrongRequest();
  std::stable_sort(
      program_.requests.begin(), program_.requests.end(),
      [](const auto& a, const auto& b) { return a.phase < b.phase; });
}

// A set that is there in the phase and has a member that is not aside.
Place Maker::DrawPlace(int phase) {
  const uint64_t aside = program_.phases[static_cast<size_t>(phase)].aside;
  const size_t there = 1 + world_.sets.size();
  for (;;) {
    size_t set = 0;
    if (OneIn(random_, 2)) set = Below(random_, usable_.size());
    if (usable_.size() > there && OneIn(random_, 2)) {  // one of our own
      set = there + Below(random_, usable_.size() - there);
    }
    const Usable& u = usable_[set];
    if (phase < u.first || phase > u.last) continue;
    Place place{u.set, program_.sets[static_cast<size_t>(u.set)], aside, phase};
    for (const int rank : place.ranks) {
      if ((aside >> rank & 1) == 0) return place;
    }
  }
}

std::string Maker::DrawName(const OperationSpec& o) {
  if (o.kind == Kind::kBarrier || OneIn(random_, 6)) return "";
  // An epoch has room for some hundred names of alltoalls.
  const uint64_t names = o.kind == Kind::kAlltoall ? 12 : 30;
  for (;;) {
    std::string name = "t" + std::to_string(Below(random_, names));
    if (OneIn(random_, 20)) name.append(kMaxNameBytes - name.size(), '~');
    if (identities_.insert({o.phase, o.set, o.kind, name}).second) return name;
  }
}

void Maker::Add(OperationSpec o) {
  o.name = DrawName(o);
  program_.operations.push_back(std::move(o));
}

void Maker::MakeOne(int phase) {
  const Place place = DrawPlace(phase);
  Add(DrawOperation(random_, world_, place, DrawKind(random_)));
}

// Mostly of one kind in one set.
void Maker::MakeGroup(int phase, int operations) {
  constexpr Kind kKinds[] = {Kind::kAllreduce, Kind::kAllgather,
                             Kind::kReducescatter, Kind::kAlltoall,
                             Kind::kBroadcast};
  Kind kind = kKinds[Below(random_, 3)];
  Place place = DrawPlace(phase);
  const bool mixed = OneIn(random_, 4);
  for (int i = 0; i < operations; ++i) {
    if (mixed) {
      kind = kKinds[Below(random_, std::size(kKinds))];
      place = DrawPlace(phase);
    }
    OperationSpec o = DrawOperation(random_, world_, place, kind);
    o.group = groups_;
    Add(std::move(o));
  }
  ++groups_;
}

void Maker::MakeOperations() {
  const auto most = static_cast<size_t>(world_.most_operations) - 1;
  const size_t n = Below(random_, most + 1);
  while (program_.operations.size() < n) {
    const int phase = BelowInt(random_, program_.phases.size());
    const size_t left = n - program_.operations.size();
    if (world_.groups && left > 1 && OneIn(random_, 6)) {
      MakeGroup(phase, 2 + BelowInt(random_, std::min<size_t>(3, left - 1)));
    } else {
      MakeOne(phase);
    }
  }
  const Place last{0, program_.sets.front(), 0, phases() - 1};
  Add(DrawClosing(random_, world_, last));
  std::stable_sort(
      program_.operations.begin(), program_.operations.end(),
      [](const auto& a, const auto& b) { return a.phase < b.phase; });
}

}  // namespace

Program MakeProgram(uint64_t seed, const World& world) {
  return Maker(seed, world).Make();
}

}  // namespace maypole::properties
