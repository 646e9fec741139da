// Node: for the progress engine's tests, the ranks of a node on one board. One
// thread steps them in any order.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_CLIENT_TESTING_PROGRESS_ENGINE_TESTING_H_
#define MAYPOLE_CLIENT_TESTING_PROGRESS_ENGINE_TESTING_H_

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "client/engine/arrival.h"
#include "client/engine/progress_engine.h"
#include "common/process_set.h"
#include "common/reduce/reduce.h"

namespace maypole {

// A rank's operations, without the client's threads.
class Table : public SubmittedOperations {
 public:
  Operation* Claim(uint32_t slot, uint32_t generation) override {
    auto it = waiting.find(slot);
    if (it == waiting.end() || it->second->generation != generation) {
      return nullptr;
    }
    Operation* op = it->second;
    waiting.erase(it);
    return op;
  }
  uint32_t WaitingGeneration(uint32_t slot) override {
    auto it = waiting.find(slot);
    return it == waiting.end() ? 0 : it->second->generation;
  }
  void Finish(Operation* op, Status status) override {
    EXPECT_FALSE(op->done.load()) << op->Title() << " finished twice";
    op->status = std::move(status);
    op->done.store(true);
  }
  std::vector<Operation*> Waiting() override {
    std::vector<Operation*> all;
    for (auto& [slot, op] : waiting) all.push_back(op);
    return all;
  }
  bool AbortIsOverdue() override { return abort_is_overdue; }
  void Detach(Operation* op) override { detached.push_back(op); }
  void GiveUp(Status status) override { broken = std::move(status); }

  int64_t Now() override { return now += 1000; }

  int64_t now = 0;
  bool abort_is_overdue = false;
  std::vector<Operation*> detached;

  std::map<uint32_t, Operation*> waiting;
  Status broken;
};

struct Rank {
  Rank(const Board* board, uint32_t me) : pool(board, me) {}
  EagerPool pool;
  Table table;
  std::unique_ptr<ProgressEngine> engine;
  std::map<uint32_t, uint32_t> generation;  // by slot
};

struct Submitted {
  std::unique_ptr<Operation> op = std::make_unique<Operation>();
  std::vector<std::byte> input;
  std::vector<std::byte> output;
  bool in_place = false;
};

class Node {
 public:
  explicit Node(uint32_t k, uint32_t chunk_bytes = 4096,
                uint32_t ring_depth = 3, bool backwards = false) {
    BoardConfig config;
    config.size = config.local_size = k;
    config.slots = 64;
    config.runs = 2;
    config.chunk_bytes = chunk_bytes;
    config.ring_depth = ring_depth;
    config.eager_bytes = 512;  // so that tests use eager and rendezvous
    config.pool_buffers = 3;
    config.arena_bytes = 16 << 20;
    config.nodes = 1;
    for (uint32_t i = 0; i < k; ++i)
      config.global_rank[i] = static_cast<int>(backwards ? k - 1 - i : i);
    EXPECT_TRUE(Board::Create(config, &board).ok());
    for (uint32_t i = 0; i < k; ++i) {
      ranks.push_back(std::make_unique<Rank>(board.get(), i));
      ranks[i]->engine =
          std::make_unique<ProgressEngine>(board.get(), i, &ranks[i]->table);
    }
    all = std::make_shared<const ProcessSet>(MakeGlobalSet(config));
  }

  // Process set `id` of these global ranks.
  std::shared_ptr<const ProcessSet> Set(uint32_t id, std::vector<int> ranks) {
    return std::make_shared<const ProcessSet>(
        MakeProcessSet(board->config(), id, std::move(ranks)));
  }

  // Numbers the operation; allots the slot on first use.
  void Begin(uint32_t r, uint32_t slot, Operation& op) {
    if (op.set == nullptr) op.set = all;
    if (board->slot(slot).identity.load() == 0) {
      board->Allot(slot, op.set->id, op.signature.kind, std::to_string(slot),
                   op.set->mask(), slot + 1);
    }
    op.signature.process_set = op.set->id;
    op.slot = slot;
    op.generation = ++ranks[r]->generation[slot];
    ranks[r]->table.waiting[slot] = &op;
  }

  // False if this rank had to queue the ticket and could not.
  bool Submit(uint32_t r, uint32_t slot, Submitted& s) {
    Begin(r, slot, *s.op);
    Operation& op = *s.op;
    op.input = s.input.data();
    const Kind kind = op.signature.kind;
    if (kind == Kind::kReducescatter) {
      s.output.resize(ScatteredBytes(board->config(), r, op).size());
      op.output = s.output.data();
    } else if (!Gathers(kind)) {
      if (!s.in_place) s.output.resize(s.input.size());
      op.output = s.in_place ? s.input.data() : s.output.data();
    }
    const ArriveResult a = Arrive(*board, r, ranks[r]->engine->cursor(), op,
                                  false, &ranks[r]->pool);
    if (a.done) {
      ranks[r]->table.waiting.erase(slot);
      ranks[r]->table.Finish(&op, Status());
      if (!a.held) ranks[r]->engine->Pass(a.ticket);
    }
    return !a.held;
  }

  // Steps ranks in random order until none can move.
  void Settle(std::mt19937& random) {
    uint32_t idle = 0;
    while (idle < 20 * ranks.size()) {
      idle = ranks[random() % ranks.size()]->engine->Step() ? 0 : idle + 1;
    }
  }

  std::unique_ptr<Board> board;
  std::vector<std::unique_ptr<Rank>> ranks;
  std::shared_ptr<const ProcessSet> all;
};

template <typename T>
std::vector<std::byte> Bytes(const std::vector<T>& v) {
  std::vector<std::byte> out(v.size() * sizeof(T));
  if (!v.empty()) std::memcpy(out.data(), v.data(), out.size());
  return out;
}

template <typename T>
std::vector<T> Values(const std::byte* p, size_t bytes) {
  std::vector<T> out(bytes / sizeof(T));
  if (bytes > 0) std::memcpy(out.data(), p, bytes);
  return out;
}

inline Submitted Allreduce(const std::vector<float>& v, Op op, bool in_place) {
  Submitted s;
  s.op->name = "x";
  s.op->signature.kind = Kind::kAllreduce;
  s.op->signature.dtype = DType::kFloat32;
  s.op->signature.op = op;
  s.op->signature.dims = 1;
  s.op->signature.shape[0] = static_cast<int64_t>(v.size());
  s.input = Bytes(v);
  s.in_place = in_place;
  return s;
}

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_TESTING_PROGRESS_ENGINE_TESTING_H_
