// The cores of all ranks of a node over one board and an executor of a few
// lines, in one thread, in any order: process sets, joins, groups, blocked
// ranks.
#include "client/rank_core.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/reduce.h"

namespace maypole {
namespace {

using Message = std::vector<char>;

class Shell : public RankShell {
 public:
  void Send(const void* message, size_t bytes) override {
    const char* p = static_cast<const char*>(message);
    sent.emplace_back(p, p + bytes);
  }
  void WakeExecutor() override { ++executor_wakes; }
  void WakeThreads() override {}
  bool LeaveAlone(const Operation&) override { return false; }
  void Ended() override { ++ended; }
  void Tell(const std::string& line) override { told.push_back(line); }
  bool PatienceIsOver() override { return false; }
  void Detach(Operation*) override {}
  int64_t Now() override { return now += 1000; }
  void Break(Status status) override { broken = std::move(status); }

  std::deque<Message> sent;
  std::vector<std::string> told;
  int executor_wakes = 0;
  int ended = 0;
  int64_t now = 0;
  Status broken;
};

struct Tensor {
  std::shared_ptr<Operation> op = std::make_shared<Operation>();
  std::vector<int32_t> input;
  std::vector<int32_t> output;

  std::vector<int32_t> Result() const {
    if (op->gathered == nullptr) return output;
    std::vector<int32_t> out(op->gathered_bytes / 4);
    if (!out.empty()) {
      std::memcpy(out.data(), op->gathered.get(), op->gathered_bytes);
    }
    return out;
  }
};

class World {
 public:
  explicit World(uint32_t k, uint32_t seed = 1) : random(seed), k_(k) {
    BoardConfig config;
    config.size = config.local_size = k;
    config.slots = 128;
    config.runs = 2;
    config.chunk_bytes = 4096;
    config.ring_depth = 3;
    config.small_bytes = 512;
    config.pool_buffers = 3;
    for (uint32_t i = 0; i < k; ++i) {
      config.global_rank[i] = static_cast<int>(i);
    }
    EXPECT_TRUE(Board::Create(config, &board).ok());
    sets_.push_back(MakeGlobalSet(config));
    for (uint32_t i = 0; i < k; ++i) {
      shells.push_back(std::make_unique<Shell>());
      cores.push_back(
          std::make_unique<RankCore>(board.get(), i, shells.back().get()));
    }
    answers_.resize(k);
    joined_.assign(k, false);
  }

  // A step of a random rank or of the executor; false if nothing moved.
  bool Step() {
    const uint32_t r = random() % k_;
    switch (random() % 3) {
      case 0:
        return Serve(r);
      case 1:
        if (answers_[r].empty()) return false;
        cores[r]->OnMessage(answers_[r].front());
        answers_[r].pop_front();
        return true;
      default:
        return cores[r]->Step();
    }
  }

  void Settle() {
    for (uint32_t idle = 0; idle < 60 * k_;) idle = Step() ? 0 : idle + 1;
  }

  Status Start(uint32_t r, const std::shared_ptr<Operation>& op) {
    return cores[r]->Start({&op, 1});
  }

  // Fills in what is missing and starts it.
  Status Submit(uint32_t r, Tensor& t) {
    Operation& op = *t.op;
    op.set = cores[r]->FindSet(op.signature.process_set);
    op.signature.dtype = DType::kInt32;
    const Kind kind = op.signature.kind;
    if (kind != Kind::kBarrier) {
      op.signature.dims = 1;
      op.signature.shape[0] = static_cast<int64_t>(t.input.size());
    }
    op.input = reinterpret_cast<const std::byte*>(t.input.data());
    if (kind == Kind::kReducescatter) {
      t.output.resize(ScatteredBytes(board->config(), r, op).size() / 4);
    } else if (kind == Kind::kAllreduce || kind == Kind::kBroadcast) {
      t.output.resize(t.input.size());
    }
    if (!t.output.empty()) {
      op.output = reinterpret_cast<std::byte*>(t.output.data());
    }
    return Start(r, t.op);
  }

  std::shared_ptr<Operation> Join(uint32_t r) {
    auto op = std::make_shared<Operation>();
    op->control = Control::kJoin;
    op->name = "join";
    op->signature.kind = Kind::kJoin;
    EXPECT_TRUE(Start(r, op).ok());
    return op;
  }

  // All ranks make a set.
  uint32_t MakeSet(const std::vector<int>& ranks) {
    std::vector<std::shared_ptr<Operation>> all;
    for (uint32_t r = 0; r < k_; ++r) {
      all.push_back(std::make_shared<Operation>());
      all.back()->control = Control::kSetRequest;
      all.back()->name = "new process set";
      all.back()->ranks = ranks;
      EXPECT_TRUE(Start(r, all.back()).ok());
    }
    Settle();
    for (const auto& op : all) {
      EXPECT_TRUE(op->done.load());
      EXPECT_EQ(op->answer, all[0]->answer);
    }
    return static_cast<uint32_t>(all[0]->answer);
  }

  std::mt19937 random;
  std::unique_ptr<Board> board;
  std::vector<std::unique_ptr<Shell>> shells;
  std::vector<std::unique_ptr<RankCore>> cores;

 private:
  struct SetAsked {
    session::SetRequest request;
    uint32_t ranks = 0;
  };

  template <typename T>
  void Answer(uint32_t r, const T& message) {
    const char* p = reinterpret_cast<const char*>(&message);
    answers_[r].emplace_back(p, p + sizeof(message));
  }

  // The executor reads a message of rank r.
  bool Serve(uint32_t r) {
    if (shells[r]->sent.empty()) return false;
    const Message m = std::move(shells[r]->sent.front());
    shells[r]->sent.pop_front();
    session::SlotRequest slot;
    session::SetRequest set;
    session::JoinRequest join;
    if (session::Parse(m.data(), m.size(), &slot).ok()) {
      OnSlotRequest(r, slot);
    } else if (session::Parse(m.data(), m.size(), &set).ok()) {
      OnSetRequest(set);
    } else if (session::Parse(m.data(), m.size(), &join).ok()) {
      OnJoinRequest(r, join);
    }
    return true;
  }

  void OnSlotRequest(uint32_t r, const session::SlotRequest& request) {
    const std::string key = std::to_string(request.process_set) + "/" +
                            std::to_string(request.kind) + "/" + request.name;
    auto [it, is_new] =
        slots_.emplace(key, static_cast<uint32_t>(slots_.size()));
    if (is_new) {
      board->Allot(it->second, request.process_set,
                   static_cast<Kind>(request.kind), request.name,
                   sets_[request.process_set].mask(), it->second + 1);
    }
    auto reply = session::Make<session::SlotReply>();
    reply.request = request.request;
    reply.slot = it->second;
    Answer(r, reply);
  }

  void OnSetRequest(const session::SetRequest& request) {
    SetAsked& asked = asked_[request.number];
    asked.request = request;
    if (++asked.ranks < k_) return;
    auto reply = session::Make<session::SetReply>();
    reply.number = request.number;
    reply.process_set = request.process_set;
    if (request.remove == 0) {
      std::vector<int> ranks;
      for (int i = 0; i < static_cast<int>(k_); ++i) {
        if (request.members[0] >> i & 1) ranks.push_back(i);
      }
      reply.process_set = static_cast<uint32_t>(sets_.size());
      sets_.push_back(
          MakeProcessSet(board->config(), reply.process_set, ranks));
    }
    for (uint32_t r = 0; r < k_; ++r) Answer(r, reply);
  }

  void OnJoinRequest(uint32_t r, const session::JoinRequest& request) {
    if (request.settled == 0) {
      last_joined_ = static_cast<int>(r);
      return;
    }
    joined_[r] = true;
    if (std::count(joined_.begin(), joined_.end(), true) < k_) return;
    joined_.assign(k_, false);
    auto reply = session::Make<session::JoinReply>();
    reply.number = request.number;
    reply.last_rank = last_joined_;
    for (uint32_t i = 0; i < k_; ++i) Answer(i, reply);
  }

  const uint32_t k_;
  std::vector<std::deque<Message>> answers_;
  std::map<std::string, uint32_t> slots_;
  std::vector<ProcessSet> sets_;
  std::map<uint32_t, SetAsked> asked_;
  std::vector<bool> joined_;
  int last_joined_ = -1;
};

Tensor Make(Kind kind, const std::string& name, std::vector<int32_t> v,
            Op op = Op::kSum, uint32_t set = 0) {
  Tensor t;
  t.op->name = name;
  t.op->signature.kind = kind;
  t.op->signature.op = op;
  t.op->signature.process_set = set;
  t.input = std::move(v);
  return t;
}

TEST(RankCoreTest, ASetIsThereWhenAllHaveAskedAndItsOperationsAreItsOwn) {
  World w(3);
  EXPECT_EQ(w.MakeSet({0, 2}), 1u);
  EXPECT_EQ(w.MakeSet({1, 2}), 2u);
  Tensor a = Make(Kind::kAllreduce, "x", {1, 2}, Op::kSum, 1);
  Tensor b = Make(Kind::kAllreduce, "x", {10, 20}, Op::kSum, 1);
  Tensor c = Make(Kind::kAllreduce, "x", {5}, Op::kMax, 2);
  Tensor d = Make(Kind::kAllreduce, "x", {7}, Op::kMax, 2);
  EXPECT_TRUE(w.Submit(0, a).ok());
  EXPECT_TRUE(w.Submit(2, d).ok());  // the same name, another set
  EXPECT_TRUE(w.Submit(2, b).ok());
  EXPECT_TRUE(w.Submit(1, c).ok());
  w.Settle();
  for (Tensor* t : {&a, &b}) {
    ASSERT_TRUE(t->op->done.load());
    EXPECT_EQ(t->output, (std::vector<int32_t>{11, 22}));
  }
  EXPECT_EQ(c.output, std::vector<int32_t>{7});
  EXPECT_EQ(d.output, std::vector<int32_t>{7});
}

TEST(RankCoreTest, AGroupIsTakenWholeOrNotAtAll) {
  World w(2);
  Tensor pending = Make(Kind::kAllreduce, "b", {1});
  EXPECT_TRUE(w.Submit(0, pending).ok());
  std::vector<Tensor> group;
  for (const char* name : {"a", "b", "c"}) {
    group.push_back(Make(Kind::kAllreduce, name, {1}));
    group.back().op->set = w.cores[0]->FindSet(0);
  }
  std::vector<std::shared_ptr<Operation>> ops;
  for (Tensor& t : group) ops.push_back(t.op);
  const Status s = w.cores[0]->Start(ops);
  EXPECT_EQ(s.code(), Code::kAlreadyExists);
  EXPECT_NE(s.message().find("allreduce 'b'"), std::string::npos);
  EXPECT_NE(s.message().find("none of the group's 3"), std::string::npos);
  EXPECT_EQ(w.cores[0]->outstanding(), 1u);
  ops[1]->name = "a";
  EXPECT_NE(w.cores[0]->Start(ops).message().find("comes twice"),
            std::string::npos);
  // The names of the refused ones are free.
  Tensor a = Make(Kind::kAllreduce, "a", {1});
  EXPECT_TRUE(w.Submit(0, a).ok());
}

TEST(RankCoreTest, ASetWithPendingOperationsIsNotRemoved) {
  World w(2);
  const uint32_t id = w.MakeSet({0});
  Tensor a = Make(Kind::kAllreduce, "a", {1}, Op::kSum, id);
  EXPECT_TRUE(w.Submit(0, a).ok());
  auto remove = std::make_shared<Operation>();
  remove->control = Control::kSetRequest;
  remove->name = "removal of process set 1";
  remove->removes = id;
  const Status s = w.Start(0, remove);
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_EQ(s.message(),
            "removal of process set 1: allreduce 'a' is still pending on it; "
            "wait for it first");
  w.Settle();
  EXPECT_TRUE(a.op->done.load());
  auto other = std::make_shared<Operation>();
  other->control = Control::kSetRequest;
  other->name = remove->name;
  other->removes = id;
  EXPECT_TRUE(w.Start(0, remove).ok());
  EXPECT_TRUE(w.Start(1, other).ok());
  w.Settle();
  EXPECT_TRUE(remove->done.load());
  EXPECT_EQ(w.cores[0]->FindSet(id), nullptr);
}

TEST(RankCoreTest, ARankThatHasJoinedSubmitsNothingAndIsNotWaitedFor) {
  World w(3);
  const auto join = w.Join(1);
  Tensor late = Make(Kind::kAllreduce, "a", {1});
  late.op->set = w.cores[1]->FindSet(0);
  const Status s = w.Start(1, late.op);
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_NE(s.message().find("this rank has joined"), std::string::npos);
  Tensor a = Make(Kind::kAllreduce, "a", {-4}, Op::kMax);
  Tensor b = Make(Kind::kAllreduce, "a", {-5}, Op::kMax);
  EXPECT_TRUE(w.Submit(0, a).ok());
  EXPECT_TRUE(w.Submit(2, b).ok());
  w.Settle();
  ASSERT_TRUE(a.op->done.load() && b.op->done.load());
  EXPECT_EQ(a.output, std::vector<int32_t>{-4});  // not 0
  EXPECT_FALSE(join->done.load());
  const auto second = w.Join(2);
  const auto third = w.Join(0);
  w.Settle();
  for (const auto& op : {join, second, third}) {
    ASSERT_TRUE(op->done.load());
    EXPECT_TRUE(op->status.ok());
    EXPECT_EQ(op->answer, join->answer);
  }
  EXPECT_EQ(w.board->header().aside_count.load(), 0u);
}

// Around the end of the ring of names a joined rank finds what comes later
// first; its own next unnamed operation must be the others' next one all the
// same.
TEST(RankCoreTest, AJoinedRankFollowsUnnamedOperationsAroundTheirRing) {
  World w(2);
  const uint32_t set = w.MakeSet({0, 1});
  const auto submit = [&](uint32_t r, int32_t value) {
    auto t = std::make_unique<Tensor>(
        Make(Kind::kAllreduce, "", {value}, Op::kSum, set));
    EXPECT_TRUE(w.Submit(r, *t).ok());
    return t;
  };
  for (uint32_t i = 0; i + 1 < kUnnamedSlotsOfASet; ++i) {
    const auto a = submit(0, 1), b = submit(1, 2);
    w.Settle();
    ASSERT_TRUE(a->op->done.load() && b->op->done.load());
  }
  const auto join = w.Join(1);
  const auto last = submit(0, 5);   // the ring's last name
  const auto first = submit(0, 6);  // and its first one again
  for (int n = 0; n < 200; ++n) w.Step();
  w.Settle();
  EXPECT_EQ(last->output, std::vector<int32_t>{5});
  EXPECT_EQ(first->output, std::vector<int32_t>{6});
  const auto other = w.Join(0);
  w.Settle();
  ASSERT_TRUE(join->done.load() && other->done.load());
  const auto a = submit(0, 10), b = submit(1, 20);
  w.Settle();
  ASSERT_TRUE(a->op->done.load() && b->op->done.load());
  EXPECT_EQ(a->output, std::vector<int32_t>{30});
  EXPECT_EQ(b->op->name, a->op->name);
}

TEST(RankCoreTest, ASetThatIsBeingRemovedTakesNoOperations) {
  World w(2);
  const uint32_t id = w.MakeSet({0});
  auto remove = std::make_shared<Operation>();
  remove->control = Control::kSetRequest;
  remove->name = "removal";
  remove->removes = id;
  EXPECT_TRUE(w.Start(0, remove).ok());
  Tensor a = Make(Kind::kAllreduce, "a", {1}, Op::kSum, id);
  const Status s = w.Submit(0, a);
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_EQ(s.message(),
            "allreduce 'a' of process set 1: the process set is being removed");
}

TEST(RankCoreTest, ARankIsNotBlockedWhileSomethingOfItMayStillBegin) {
  World w(2);
  Tensor a = Make(Kind::kAllreduce, "a", {1});
  EXPECT_TRUE(w.Submit(0, a).ok());
  w.Settle();
  Tensor other = Make(Kind::kAllreduce, "b", {1});
  EXPECT_TRUE(w.Submit(0, other).ok());  // its slot's number is to come
  EXPECT_FALSE(w.cores[0]->SetBlocked(*a.op));
  w.Settle();
  EXPECT_TRUE(w.cores[0]->SetBlocked(*a.op));
}

TEST(RankCoreTest, AnAbortEndsJoinsAndRequests) {
  World w(2);
  const auto join = w.Join(0);
  auto set = std::make_shared<Operation>();
  set->control = Control::kSetRequest;
  set->name = "new process set [0]";
  set->ranks = {0};
  EXPECT_TRUE(w.Start(1, set).ok());
  w.Settle();
  EXPECT_FALSE(join->done.load());
  w.board->Abort(Code::kAborted, "rank 9 died");
  w.Settle();
  ASSERT_TRUE(join->done.load() && set->done.load());
  EXPECT_EQ(join->status.message(), "join: rank 9 died");
  EXPECT_EQ(set->status.message(), "new process set [0]: rank 9 died");
  EXPECT_EQ(w.cores[0]->outstanding() + w.cores[1]->outstanding(), 0u);
}

TEST(RankCoreTest, TheLastRankToBlockWakesTheExecutor) {
  World w(2);
  Tensor a = Make(Kind::kAllreduce, "a", {1});
  Tensor b = Make(Kind::kAllgather, "a", {1});
  EXPECT_TRUE(w.Submit(0, a).ok());
  EXPECT_FALSE(w.cores[0]->SetBlocked(*a.op));  // no slot yet
  EXPECT_TRUE(w.Submit(1, b).ok());
  w.Settle();
  EXPECT_TRUE(w.cores[0]->SetBlocked(*a.op));
  EXPECT_EQ(w.shells[0]->executor_wakes, 0);
  EXPECT_TRUE(w.cores[1]->SetBlocked(*b.op));
  EXPECT_EQ(w.shells[1]->executor_wakes, 1);
  const RankBlock& rank = w.board->rank(1);
  EXPECT_EQ(rank.blocked_on.load(), Tagged(1, b.op->slot));
  EXPECT_EQ(rank.blocked_count.load() % 2, 1u);
  w.cores[1]->ClearBlocked();
  EXPECT_EQ(rank.blocked_count.load(), 2u);
}

// Rounds of operations over several sets; in each, every rank takes part in the
// first few and then joins, without waiting for anything.
class JoinProgram {
 public:
  explicit JoinProgram(uint32_t seed)
      : random_(seed), k_(2 + random_() % 3), w_(k_, seed) {
    sets_.push_back(w_.cores[0]->FindSet(0));
    for (int n = 0; n < 2; ++n) {
      std::vector<int> ranks;
      for (int r = 0; r < static_cast<int>(k_); ++r) {
        if (random_() % 2 == 0) ranks.push_back(r);
      }
      if (ranks.empty()) continue;
      const uint32_t id = w_.MakeSet(ranks);
      sets_.push_back(w_.cores[0]->FindSet(id));
    }
    for (int round = 0; round < 3; ++round) rounds_.push_back(MakeRound());
    Play();
    for (const Round& round : rounds_) Check(round);
  }

 private:
  struct Planned {
    std::shared_ptr<const ProcessSet> set;
    Kind kind = Kind::kAllreduce;
    Op op = Op::kSum;
    int root = 0;
    std::string name;
    std::vector<Tensor> by_rank;
    std::vector<bool> takes_part;
  };

  std::vector<int32_t> Values(size_t n) {
    std::vector<int32_t> v(n);
    for (int32_t& x : v) x = static_cast<int32_t>(random_() % 2000) - 1000;
    return v;
  }

  Planned Make(int number, const std::vector<int>& limit) {
    static constexpr Kind kKinds[] = {Kind::kAllreduce,     Kind::kAllgather,
                                      Kind::kBroadcast,     Kind::kAlltoall,
                                      Kind::kReducescatter, Kind::kBarrier};
    Planned p;
    p.set = sets_[random_() % sets_.size()];
    p.kind = kKinds[random_() % std::size(kKinds)];
    static constexpr Op kOps[] = {Op::kSum, Op::kMin, Op::kMax, Op::kProduct};
    if (p.kind == Kind::kAllreduce) p.op = kOps[random_() % 4];
    if (random_() % 3 != 0) p.name = "n" + std::to_string(number);
    p.root = p.set->ranks[random_() % p.set->ranks.size()];
    p.by_rank.resize(k_);
    p.takes_part.resize(k_);
    const size_t n = random_() % 4 == 0 ? random_() % 9000 : random_() % 30;
    for (const int r : p.set->ranks) {
      const auto at = static_cast<size_t>(r);
      p.takes_part[at] = number < limit[at];
      const bool uneven =
          p.kind == Kind::kAllgather || p.kind == Kind::kAlltoall;
      Tensor& t = p.by_rank[at];
      t = maypole::Make(p.kind, p.name,
                        Values(uneven ? random_() % (n + 1) : n), p.op,
                        p.set->id);
      if (p.kind == Kind::kBarrier) t.input.clear();
      if (p.kind == Kind::kBroadcast) t.op->signature.root = p.root;
      if (p.kind == Kind::kAlltoall) {
        t.op->splits.assign(p.set->ranks.size(), 0);
        for (size_t i = 0; i < t.input.size(); ++i) {
          ++t.op->splits[random_() % p.set->ranks.size()];
        }
      }
    }
    return p;
  }

  struct Round {
    std::vector<int> limit;  // by rank: it takes part in so many
    std::vector<Planned> plan;
    std::vector<std::shared_ptr<Operation>> joins;
  };

  Round MakeRound() {
    const int count = 1 + static_cast<int>(random_() % 8);
    Round round;
    round.limit.resize(k_);
    for (int& n : round.limit) n = static_cast<int>(random_() % (count + 1));
    for (int i = 0; i < count; ++i) round.plan.push_back(Make(i, round.limit));
    round.joins.resize(k_);
    return round;
  }

  // The next thing that rank r does; it waits for nothing but its joins, and
  // goes on to the next round while others still end theirs.
  void Act(uint32_t r, std::vector<int>& next, std::vector<size_t>& at) {
    if (at[r] == rounds_.size()) return;
    Round& round = rounds_[at[r]];
    if (round.joins[r] != nullptr) {
      if (!round.joins[r]->done.load()) return;
      next[r] = 0;
      ++at[r];
    } else if (next[r] == round.limit[r]) {
      round.joins[r] = w_.Join(r);
    } else {
      Planned& p = round.plan[static_cast<size_t>(next[r]++)];
      if (!p.set->Has(static_cast<int>(r))) return;
      const Status s = w_.Submit(r, p.by_rank[r]);
      EXPECT_TRUE(s.ok()) << s.message();
    }
  }

  void Play() {
    std::vector<int> next(k_, 0);
    std::vector<size_t> at(k_, 0);
    for (int turn = 0; turn < 100000; ++turn) {
      Act(random_() % k_, next, at);
      for (uint32_t n = random_() % 10; n > 0; --n) w_.Step();
      if (std::count(at.begin(), at.end(), rounds_.size()) == k_) break;
    }
    w_.Settle();
  }

  void Check(const Round& round) {
    for (const auto& join : round.joins) {
      ASSERT_TRUE(join != nullptr && join->done.load());
      EXPECT_TRUE(join->status.ok()) << join->status.message();
      EXPECT_EQ(join->answer, round.joins[0]->answer);
    }
    for (const Planned& p : round.plan) Check(p);
  }

  void Check(const Planned& p) {
    const std::string what = std::string(Name(p.kind)) + " '" + p.name +
                             "' of " + std::to_string(p.set->id) + " " +
                             std::string(Name(p.op));
    for (const int r : p.set->ranks) {
      const auto at = static_cast<size_t>(r);
      if (!p.takes_part[at]) continue;
      const Tensor& t = p.by_rank[at];
      ASSERT_TRUE(t.op->done.load()) << what;
      if (p.kind == Kind::kBroadcast &&
          !p.takes_part[static_cast<size_t>(p.root)]) {
        EXPECT_EQ(t.op->status.code(), Code::kFailedPrecondition) << what;
        continue;
      }
      ASSERT_TRUE(t.op->status.ok()) << what << t.op->status.message();
      if (p.kind == Kind::kBarrier) continue;
      EXPECT_EQ(t.Result(), Want(p, r)) << what;
    }
  }

  std::vector<int32_t> Reduced(const Planned& p) const {
    std::vector<int32_t> out;
    for (const int r : p.set->ranks) {
      if (!p.takes_part[static_cast<size_t>(r)]) continue;
      const std::vector<int32_t>& in = p.by_rank[static_cast<size_t>(r)].input;
      if (out.empty()) {
        out = in;
        continue;
      }
      for (size_t i = 0; i < out.size(); ++i) {
        if (p.op == Op::kMin) out[i] = std::min(out[i], in[i]);
        if (p.op == Op::kMax) out[i] = std::max(out[i], in[i]);
        if (p.op == Op::kSum) out[i] += in[i];
        if (p.op == Op::kProduct) {
          out[i] = static_cast<int32_t>(static_cast<uint32_t>(out[i]) *
                                        static_cast<uint32_t>(in[i]));
        }
      }
    }
    return out;
  }

  std::vector<int32_t> Want(const Planned& p, int rank) const {
    const auto mine = static_cast<size_t>(p.set->PositionOf(rank));
    if (p.kind == Kind::kAllreduce) return Reduced(p);
    if (p.kind == Kind::kBroadcast) {
      return p.by_rank[static_cast<size_t>(p.root)].input;
    }
    std::vector<int32_t> out;
    if (p.kind == Kind::kReducescatter) {
      const std::vector<int32_t> sum = Reduced(p);
      const size_t n = p.set->ranks.size();
      const size_t first =
          sum.size() / n * mine + std::min(mine, sum.size() % n);
      const size_t rows = sum.size() / n + (mine < sum.size() % n ? 1 : 0);
      return {sum.begin() + static_cast<long>(first),
              sum.begin() + static_cast<long>(first + rows)};
    }
    for (const int r : p.set->ranks) {
      const Tensor& t = p.by_rank[static_cast<size_t>(r)];
      if (!p.takes_part[static_cast<size_t>(r)]) continue;
      int64_t begin = 0, end = static_cast<int64_t>(t.input.size());
      if (p.kind == Kind::kAlltoall) {
        for (size_t i = 0; i < mine; ++i) begin += t.op->splits[i];
        end = begin + t.op->splits[mine];
      }
      out.insert(out.end(), t.input.begin() + begin, t.input.begin() + end);
    }
    return out;
  }

  std::mt19937 random_;
  uint32_t k_;
  World w_;
  std::vector<std::shared_ptr<const ProcessSet>> sets_;
  std::vector<Round> rounds_;
};

TEST(RankCoreTest, JoinsAtAnyTimeLeaveTheOthersRightResults) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    JoinProgram program(seed);
    if (testing::Test::HasFailure()) return;
  }
}

// The sum of the ranks' counters.
struct Counted {
  Counted(const World& w, uint32_t ranks, Kind kind) {
    for (uint32_t r = 0; r < ranks; ++r) {
      const RankCounters& counters = w.board->rank(r).counters;
      operations += counters.operations[static_cast<size_t>(kind)].load();
      bytes += counters.operation_bytes[static_cast<size_t>(kind)].load();
      mismatches += counters.mismatches.load();
    }
  }
  uint64_t operations = 0;
  uint64_t bytes = 0;
  uint64_t mismatches = 0;
};

TEST(RankCoreTest, EndedOperationsAreCountedOnceOnTheNode) {
  World w(3);
  const auto run = [&](Kind kind, size_t elements) {
    std::vector<Tensor> all;
    for (uint32_t r = 0; r < 3; ++r) {
      all.push_back(Make(kind, "t", std::vector<int32_t>(elements, 1)));
      if (kind == Kind::kAlltoall) {
        all[r].op->splits.assign(3, static_cast<int64_t>(elements / 3));
      }
      EXPECT_TRUE(w.Submit(r, all[r]).ok());
    }
    w.Settle();
    for (const Tensor& t : all) EXPECT_TRUE(t.op->done && t.op->status.ok());
  };
  run(Kind::kAllreduce, 10);
  run(Kind::kAllreduce, 5000);
  run(Kind::kAllgather, 6);
  run(Kind::kAlltoall, 9);
  struct Expected {
    Kind kind;
    uint64_t operations, bytes;
  };
  for (const Expected& e :
       {Expected{Kind::kAllreduce, 2, 20040}, Expected{Kind::kAllgather, 1, 72},
        Expected{Kind::kAlltoall, 1, 108}, Expected{Kind::kBroadcast, 0, 0}}) {
    const Counted counted(w, 3, e.kind);
    EXPECT_EQ(counted.operations, e.operations) << Name(e.kind);
    EXPECT_EQ(counted.bytes, e.bytes) << Name(e.kind);
  }
}

TEST(RankCoreTest, AMismatchIsCountedOnceAndIsNoOperation) {
  World w(3);
  std::vector<Tensor> all;
  for (uint32_t r = 0; r < 3; ++r) {
    all.push_back(Make(Kind::kAllreduce, "t", std::vector<int32_t>(4 + r, 1)));
    ASSERT_TRUE(w.Submit(r, all[r]).ok());
  }
  w.Settle();
  for (const Tensor& t : all) {
    EXPECT_EQ(t.op->status.code(), Code::kFailedPrecondition);
  }
  EXPECT_EQ(Counted(w, 3, Kind::kAllreduce).mismatches, 1u);
  EXPECT_EQ(Counted(w, 3, Kind::kAllreduce).operations, 0u);
}

TEST(RankCoreTest, AWaitKnowsForWhomItIs) {
  World w(3);
  const std::vector<int32_t> large(5000, 1);  // it takes several steps
  std::vector<Tensor> all;
  for (int i = 0; i < 3; ++i) {
    all.push_back(Make(Kind::kAllreduce, "t", large));
  }
  uint64_t late = 7;
  ASSERT_TRUE(w.Submit(1, all[1]).ok());
  EXPECT_EQ(w.cores[1]->WaitsFor(*all[1].op, &late), WaitFor::kAgent);
  EXPECT_EQ(late, 0u);
  w.Settle();  // its slot is there
  EXPECT_EQ(w.cores[1]->WaitsFor(*all[1].op, &late), WaitFor::kRanks);
  EXPECT_EQ(late, 0b101u);
  ASSERT_TRUE(w.Submit(0, all[0]).ok());
  w.Settle();
  EXPECT_EQ(w.cores[1]->WaitsFor(*all[1].op, &late), WaitFor::kRanks);
  EXPECT_EQ(late, 0b100u);
  ASSERT_TRUE(w.Submit(2, all[2]).ok());
  while (w.board->arrival(0, 2).generation.load() == 0) w.Step();
  ASSERT_FALSE(all[1].op->done.load());
  EXPECT_EQ(w.cores[1]->WaitsFor(*all[1].op, &late), WaitFor::kData);
  EXPECT_EQ(late, 0u);
  w.Settle();
  EXPECT_TRUE(all[1].op->done.load());

  const auto join = w.Join(2);
  w.Settle();
  EXPECT_EQ(w.cores[2]->WaitsFor(*join, &late), WaitFor::kRanks);
  EXPECT_EQ(late, 0b011u);
}

TEST(RankCoreTest, SleepsAreCountedWithThoseWhomTheyWereFor) {
  World w(3);
  w.cores[1]->CountSleep(WaitFor::kRanks, 0b101, 70, true);
  w.cores[1]->CountSleep(WaitFor::kRanks, 0b100, 30, false);
  w.cores[1]->CountSleep(WaitFor::kData, 0, 5, true);
  const RankCounters& counters = w.board->rank(1).counters;
  const auto ranks = static_cast<size_t>(WaitFor::kRanks);
  const auto data = static_cast<size_t>(WaitFor::kData);
  EXPECT_EQ(counters.waits[ranks].load(), 1u);
  EXPECT_EQ(counters.wait_ns[ranks].load(), 100u);
  EXPECT_EQ(counters.waits[data].load(), 1u);
  EXPECT_EQ(counters.wait_ns[data].load(), 5u);
  EXPECT_EQ(counters.waited_for_ns[0].load(), 70u);
  EXPECT_EQ(counters.waited_for_ns[1].load(), 0u);
  EXPECT_EQ(counters.waited_for_ns[2].load(), 100u);
}

}  // namespace
}  // namespace maypole
