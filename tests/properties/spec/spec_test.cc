#include "tests/properties/spec/spec.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "tests/properties/spec/draw.h"
#include "tests/properties/spec/order.h"

namespace maypole::properties {
namespace {

World FourRanks(std::vector<int> local_sizes) {
  World w;
  w.ranks = 4;
  w.local_sizes = std::move(local_sizes);
  w.nodes = static_cast<int>(w.local_sizes.size());
  w.chunk_bytes = 4096;
  w.most_bytes = 16 * 1024;
  w.sets = UsualSets(w);
  w.set_changes = w.joins = w.groups = true;
  return w;
}

TEST(WorldTest, NodesAndSets) {
  World w = FourRanks({3, 1});
  EXPECT_EQ(w.NodeOf(2), 0);
  EXPECT_EQ(w.NodeOf(3), 1);
  EXPECT_EQ(w.sets, (std::vector<std::vector<int>>{
                        {0}, {0, 1}, {1, 2, 3}, {0, 2}, {2, 3}}));
  w.local_sizes.clear();
  EXPECT_EQ(w.LocalSizes(), (std::vector<int>{2, 2}));
}

TEST(ProgramTest, OneSeedOneProgram) {
  const World w = FourRanks({2, 2});
  const Program a = MakeProgram(5, w), b = MakeProgram(5, w);
  ASSERT_EQ(a.operations.size(), b.operations.size());
  for (size_t i = 0; i < a.operations.size(); ++i) {
    EXPECT_EQ(a.operations[i].Text(), b.operations[i].Text());
  }
}

// Every rank is present in the last phase, and all submit its last operation.
TEST(ProgramTest, EndsWithAllRanks) {
  const World w = FourRanks({4});
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const Program p = MakeProgram(seed, w);
    EXPECT_EQ(p.phases.back().aside, 0u);
    EXPECT_EQ(p.phases.back().joins, 0u);
    const OperationSpec& last = p.operations.back();
    EXPECT_EQ(last.phase + 1, static_cast<int>(p.phases.size()));
    EXPECT_EQ(last.set, 0);
    EXPECT_FALSE(last.MustFail());
    EXPECT_LE(p.operations.size(), static_cast<size_t>(w.most_operations));
  }
}

// Who joins is away until the phase after which the last rank joins.
TEST(ProgramTest, AllRanksJoin) {
  const World w = FourRanks({2, 2});
  int joins = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    uint64_t away = 0;
    for (const Phase& phase : MakeProgram(seed, w).phases) {
      EXPECT_EQ(phase.aside, away);
      EXPECT_EQ(phase.joins & away, 0u);
      away |= phase.joins;
      joins += phase.joins != 0;
      if (away == 0b1111) away = 0;
    }
    EXPECT_EQ(away, 0u);
  }
  EXPECT_GT(joins, 100);
}

TEST(ProgramTest, OperationsCanBeSubmitted) {
  const World w = FourRanks({2, 2});
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Program p = MakeProgram(seed, w);
    std::set<std::tuple<int, int, Kind, std::string>> names;
    for (const OperationSpec& o : p.operations) {
      int live = 0;
      for (const int rank : o.ranks) {
        live += o.Concerns(rank);
        const Signature s = o.SignatureOf(rank);
        const Status status = CheckSignature(o.name, s);
        EXPECT_TRUE(status.ok()) << o.Text() << ": " << status.message();
        if (o.kind != Kind::kAlltoall) continue;
        int64_t rows = 0;
        for (const int64_t n :
             o.splits[static_cast<size_t>(o.PositionOf(rank))]) {
          EXPECT_GE(n, 0);
          rows += n;
        }
        EXPECT_EQ(rows, s.shape[0]);
      }
      EXPECT_GT(live, 0) << o.Text();
      EXPECT_EQ(p.phases[static_cast<size_t>(o.phase)].aside, o.aside);
      if (!o.name.empty()) {
        EXPECT_TRUE(names.insert({o.phase, o.set, o.kind, o.name}).second);
      }
    }
  }
}

TEST(ProgramTest, MismatchesAreMismatches) {
  const World w = FourRanks({4});
  std::map<Aspect, int> aspects;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    for (const OperationSpec& o : MakeProgram(seed, w).operations) {
      std::vector<std::pair<int, Signature>> submitted;
      for (const int rank : o.ranks) {
        submitted.emplace_back(rank, o.SignatureOf(rank));
        submitted.back().second.aside = o.IsAside(rank) ? 1 : 0;
      }
      EXPECT_EQ(DescribeMismatch(o.name, submitted).empty(), !o.MustFail())
          << o.Text();
      ++aspects[o.aspect];
    }
  }
  EXPECT_EQ(aspects.size(), 8u);
}

// A set is used after it was made and before it is removed, while no rank is
// away that must ask for it.
TEST(ProgramTest, SetsAreThereWhenUsed) {
  const World w = FourRanks({3, 1});
  int used = 0, wrong = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Program p = MakeProgram(seed, w);
    std::map<int, int> made, removed;
    for (const SetRequest& r : p.requests) {
      EXPECT_EQ(p.phases[static_cast<size_t>(r.phase)].aside, 0u);
      if (r.outcome != SetOutcome::kOk) {
        ++wrong;
      } else {
        (r.remove ? removed : made)[r.set] = r.phase;
      }
    }
    for (const OperationSpec& o : p.operations) {
      EXPECT_EQ(o.ranks, p.sets[static_cast<size_t>(o.set)]);
      if (o.set <= static_cast<int>(w.sets.size())) continue;
      ++used;
      EXPECT_LT(made.at(o.set), o.phase);
      EXPECT_GT(removed.at(o.set), o.phase);
    }
    EXPECT_EQ(made.size(), removed.size());
  }
  EXPECT_GT(used, 200);
  EXPECT_GT(wrong, 30);
}

TEST(ProgramTest, EverythingIsDrawn) {
  const World w = FourRanks({2, 2});
  std::set<std::tuple<Kind, DType, Op>> drawn;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    for (const OperationSpec& o : MakeProgram(seed, w).operations) {
      if (!o.MustFail()) drawn.insert({o.kind, o.dtype, o.op});
    }
  }
  // Allreduce 5 ops, reducescatter 2, each without the average of bool; three
  // kinds without an op; barrier.
  EXPECT_EQ(drawn.size(), 11u * 5 - 1 + 11 * 2 - 1 + 3 * 11 + 1);
}

// What is matched by order is in the same order on all ranks.
TEST(OrderTest, KeepsWhatIsMatchedByOrder) {
  const World w = FourRanks({4});
  int differ = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const Program p = MakeProgram(seed, w);
    using Class = std::pair<int, Kind>;
    std::map<Class, std::vector<size_t>> first;
    std::vector<size_t> all_of_first;
    for (uint64_t draw = 0; draw < 4; ++draw) {
      Random random = RandomFor(seed, draw);
      std::map<Class, std::vector<size_t>> unnamed;
      std::vector<size_t> all;
      for (int phase = 0; phase < static_cast<int>(p.phases.size()); ++phase) {
        if (p.phases[static_cast<size_t>(phase)].aside != 0) continue;
        for (const Unit& unit : OrderOf(p, phase, 0, random)) {
          for (const size_t i : unit.operations) {
            const OperationSpec& o = p.operations[i];
            all.push_back(i);
            if (o.kind == Kind::kBarrier) unnamed[{-1, o.kind}].push_back(i);
            if (o.name.empty()) unnamed[{o.set, o.kind}].push_back(i);
          }
        }
      }
      if (draw == 0) {
        first = unnamed;
        all_of_first = all;
      }
      EXPECT_EQ(unnamed, first);
      differ += all != all_of_first;
      std::set<size_t> each(all.begin(), all.end());
      EXPECT_EQ(each.size(), all.size());
    }
  }
  EXPECT_GT(differ, 300);
}

TEST(OrderTest, AsManyUnnamedBeforeABarrierOnAllRanks) {
  const World w = FourRanks({4});
  int barriers = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const Program p = MakeProgram(seed, w);
    for (int phase = 0; phase < static_cast<int>(p.phases.size()); ++phase) {
      std::map<size_t, std::vector<int>> counts;  // of a barrier, by rank
      for (int rank = 0; rank < 4; ++rank) {
        Random random = RandomFor(seed, static_cast<uint64_t>(rank));
        std::map<std::pair<int, Kind>, int> unnamed;
        for (const Unit& unit : OrderOf(p, phase, rank, random)) {
          for (const size_t i : unit.operations) {
            const OperationSpec& o = p.operations[i];
            if (o.kind == Kind::kBarrier) {
              int n = 0;
              for (const auto& [key, count] : unnamed) {
                if (key.first == o.set) n = n * 100 + count;
              }
              counts[i].push_back(n);
            } else if (o.name.empty()) {
              ++unnamed[{o.set, o.kind}];
            }
          }
        }
      }
      for (const auto& [i, by_rank] : counts) {
        ++barriers;
        for (const int n : by_rank) EXPECT_EQ(n, by_rank.front());
      }
    }
  }
  EXPECT_GT(barriers, 100);
}

}  // namespace
}  // namespace maypole::properties
