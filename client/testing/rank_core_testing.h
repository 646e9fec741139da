// World: for RankCore's tests, the cores of all ranks of a node on one board,
// and a minimal executor. One thread steps them in random order.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_CLIENT_TESTING_RANK_CORE_TESTING_H_
#define MAYPOLE_CLIENT_TESTING_RANK_CORE_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "client/engine/rank_core.h"

namespace maypole {

// A shell that records the core's calls.
class Shell : public RankShell {
 public:
  void Send(const void* message, size_t bytes) override {
    const char* p = static_cast<const char*>(message);
    sent.emplace_back(p, p + bytes);
  }
  bool SendIfRoom(const void* message, size_t bytes) override {
    if (no_room) return false;
    Send(message, bytes);
    return true;
  }
  void WakeExecutor() override { ++executor_wakes; }
  void WakeThreads() override {}
  bool MarkUnattended(const Operation&) override { return false; }
  void Ended() override { ++ended; }
  void ShowUser(const std::string& line) override { told.push_back(line); }
  void Record(const Operation& op) override {
    recorded.emplace_back(op.name, op.moments);
  }
  bool AbortIsOverdue() override { return false; }
  void Detach(Operation*) override {}
  int64_t Now() override { return now += 1000; }
  void GiveUp(Status status) override { broken = std::move(status); }

  std::deque<std::vector<char>> sent;
  bool no_room = false;
  std::vector<std::string> told;
  std::vector<std::pair<std::string, Moments>> recorded;
  int executor_wakes = 0;
  int ended = 0;
  int64_t now = 0;
  Status broken;
};

// An operation of a rank, with its memory.
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

// The cores of all k ranks, the board and the executor.
class World {
 public:
  // Operations also need another node, which never takes part.
  bool negotiated = false;

  explicit World(uint32_t k, uint32_t seed = 1) : random(seed), k_(k) {
    BoardConfig config;
    config.size = config.local_size = k;
    config.slots = 128;
    config.runs = 2;
    config.chunk_bytes = 4096;
    config.ring_depth = 3;
    config.eager_bytes = 512;
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
    returned.resize(k);
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

  // Fills in what the operation lacks and starts it.
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

  // All ranks add a process set; returns its id.
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

  // The executor recalls these slots from the rank.
  void Recall(uint32_t r, const std::vector<uint32_t>& slots) {
    auto m = session::Make<session::SlotRecall>();
    m.count = static_cast<uint32_t>(slots.size());
    std::copy(slots.begin(), slots.end(), m.slots);
    Answer(r, m);
    board->TellOfRecall(r);
  }
  // Call this when all ranks have returned the slot: the next new name gets it.
  void Free(uint32_t slot) {
    std::erase_if(slots_, [&](const auto& s) { return s.second == slot; });
    free_[slot] = board->Free(slot);
  }

  std::mt19937 random;
  // The slots that each rank has returned.
  std::vector<std::vector<uint32_t>> returned;
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
    const std::vector<char> m = std::move(shells[r]->sent.front());
    shells[r]->sent.pop_front();
    session::SlotRequest slot;
    session::SetRequest set;
    session::JoinRequest join;
    session::SlotReturn back;
    if (session::Parse(m.data(), m.size(), &slot).ok()) {
      OnSlotRequest(r, slot);
    } else if (session::Parse(m.data(), m.size(), &back).ok()) {
      returned[r].insert(returned[r].end(), back.slots,
                         back.slots + back.count);
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
    auto [it, is_new] = slots_.emplace(key, allotted_);
    if (is_new) {
      uint32_t base = 0;
      if (free_.empty()) {
        ++allotted_;
      } else {
        std::tie(it->second, base) = *free_.begin();
        free_.erase(free_.begin());
      }
      board->Allot(it->second, request.process_set,
                   static_cast<Kind>(request.kind), request.name,
                   sets_[request.process_set].mask(), it->second + 1, base);
    }
    auto reply = session::Make<session::SlotReply>();
    reply.request = request.request;
    reply.slot = it->second;
    reply.negotiated = negotiated ? 1 : 0;
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
  std::vector<std::deque<std::vector<char>>> answers_;
  std::map<std::string, uint32_t> slots_;
  uint32_t allotted_ = 0;
  std::map<uint32_t, uint32_t> free_;  // slot -> generation to begin at
  std::vector<ProcessSet> sets_;
  std::map<uint32_t, SetAsked> asked_;
  std::vector<bool> joined_;
  int last_joined_ = -1;
};

inline Tensor Make(Kind kind, const std::string& name, std::vector<int32_t> v,
                   Op op = Op::kSum, uint32_t set = 0) {
  Tensor t;
  t.op->name = name;
  t.op->signature.kind = kind;
  t.op->signature.op = op;
  t.op->signature.process_set = set;
  t.input = std::move(v);
  return t;
}

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_TESTING_RANK_CORE_TESTING_H_
