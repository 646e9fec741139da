#include "worker/network/network_runner.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/status/statusor.h"
#include "common/board/futex.h"

namespace maypole::worker {
namespace {

// A sleeping network thread checks for work at least this often.
constexpr int kMaxBackoffMs = 100;

static_assert(kAllNodes == kEveryNode);

// Returns the smallest count of a progress word over the run's members, at most
// `limit`.
template <typename Word>
uint32_t Slowest(const Board& board, RunRef ref, const RunSpec& spec,
                 uint32_t limit, Word word) {
  uint32_t count = limit;
  for (uint64_t rest = spec.members; rest != 0; rest &= rest - 1) {
    const auto local = static_cast<uint32_t>(std::countr_zero(rest));
    const uint64_t seen =
        (board.progress(ref, local).*word).load(std::memory_order_acquire);
    count = std::min(count, CountAt(seen, spec.generation));
  }
  return count;
}

}  // namespace

std::vector<Segment> SegmentsOf(const std::vector<NodeBlock>& blocks,
                                Range chunk) {
  std::vector<Segment> out;
  const auto first = std::partition_point(
      blocks.begin(), blocks.end(),
      [&](const NodeBlock& b) { return b.end <= chunk.begin; });
  for (auto b = first; b != blocks.end() && b->begin < chunk.end; ++b) {
    const uint64_t begin = std::max(b->begin, chunk.begin);
    const uint64_t end = std::min(b->end, chunk.end);
    const uint64_t offset = begin - chunk.begin;
    if (!out.empty() && out.back().from == b->from && out.back().to == b->to &&
        out.back().offset + out.back().bytes == offset) {
      out.back().bytes += end - begin;
    } else {
      out.push_back({b->from, b->to, offset, end - begin});
    }
  }
  return out;
}

NetworkRunner::NetworkRunner(const Board* board, Backend* backend,
                             Callbacks callbacks)
    : board_(board), backend_(backend), callbacks_(std::move(callbacks)) {
  backend_->OnEnded([this](const absl::Status& s) { Ended(s); });
}

// Grants free places at once, so that ranks that find the ticket find granted
// places, too, and need not wait for the network thread.
void NetworkRunner::Add(RunSpec spec) {
  auto run = std::make_shared<Active>();
  run->ref = board_->NegotiatedRef(spec.record);
  run->chunks = ChunkCount(spec.bytes, board_->config().chunk_bytes);
  run->spec = std::move(spec);
  {
    std::lock_guard lock(mutex_);
    run->first = next_chunk_;
    next_chunk_ += run->chunks;
    const uint64_t place = run->first % board_->config().ring_depth;
    // This needs no generation tag: ranks read it only after a grant of this
    // generation, and it does not change until all ranks have left the run.
    board_->run(run->ref).node_base.store(place, std::memory_order_release);
    GrantTo(*run);
    runs_.push_back(run);
  }
  if (run->chunks == 0 && callbacks_.on_done) callbacks_.on_done(run->spec);
}

void NetworkRunner::Stop() {
  stop_ = true;
  board_->WakeNetwork();
}

bool NetworkRunner::UpdateConsumed() {
  const uint64_t before = consumed_;
  for (const auto& run : runs_) {
    if (run->consumed < run->chunks) {
      run->consumed =
          Slowest(*board_, run->ref, run->spec, run->done, &Progress::consumed);
      consumed_ = run->first + run->consumed;
      if (run->consumed < run->chunks) break;
    }
  }
  return consumed_ != before;
}

bool NetworkRunner::GrantTo(Active& run) {
  const uint64_t limit = consumed_ + board_->config().ring_depth;
  if (run.first >= limit) return false;
  const auto now =
      static_cast<uint32_t>(std::min<uint64_t>(run.chunks, limit - run.first));
  if (now <= run.granted) return false;
  run.granted = now;
  board_->run(run.ref).granted.store(Tagged(run.spec.generation, now),
                                     std::memory_order_release);
  return true;
}

bool NetworkRunner::Grant() {
  uint64_t members = 0;
  for (const auto& run : runs_) {
    if (GrantTo(*run)) members |= run->spec.members;
  }
  board_->WakeRanks(members);
  return members != 0;
}

uint32_t NetworkRunner::ReadyChunks(const Active& run) const {
  if (run.granted == run.started) return run.started;
  const auto word = run.spec.reduces() ? &Progress::reduced : &Progress::staged;
  return Slowest(*board_, run.ref, run.spec, run.granted, word);
}

// Returns the first run with chunks to start, if its next chunk is ready. All
// nodes start chunks in this order.
std::shared_ptr<NetworkRunner::Active> NetworkRunner::NextReady() {
  std::lock_guard lock(mutex_);
  for (const auto& run : runs_) {
    if (run->started == run->chunks) continue;
    return run->started < ReadyChunks(*run) ? run : nullptr;
  }
  return nullptr;
}

bool NetworkRunner::StartReady() {
  bool started = false;
  while (const std::shared_ptr<Active> run = NextReady()) {
    // Ranks that know of an abort may have changed tensors that others still
    // reduce, so chunks that are published after an abort must not be sent.
    if (board_->aborted()) break;
    StartChunk(run);
    started = true;
  }
  return started;
}

void NetworkRunner::StartChunk(const std::shared_ptr<Active>& run) {
  const BoardConfig& config = board_->config();
  const RunSpec& spec = run->spec;
  const uint32_t chunk = run->started++;
  const Range range = ChunkRange(spec.bytes, config.chunk_bytes, chunk);
  const auto place =
      static_cast<uint32_t>((run->first + chunk) % config.ring_depth);
  Work work;
  work.chunk = std::span(board_->node_ring(place), range.size());
  work.reduces = spec.reduces();
  work.streams = spec.bytes > config.chunk_bytes;
  work.scatters = spec.kind == Kind::kReducescatter;
  work.op = spec.op;
  work.dtype = spec.dtype;
  work.finish = spec.finish;
  work.nodes = spec.nodes;
  work.segments = SegmentsOf(spec.blocks, range);
  {
    std::lock_guard lock(flights_mutex_);
    flights_.push_back(run);
  }
  backend_->Start(std::move(work));
}

void NetworkRunner::Ended(const absl::Status& status) {
  std::shared_ptr<Active> run;
  {
    std::lock_guard lock(flights_mutex_);
    run = std::move(flights_.front());
    flights_.pop_front();
    failure_.Update(status);
    if (!failure_.ok()) {
      board_->WakeNetwork();
      return;
    }
  }
  // Update the own count first, because consumed words are clamped to it.
  const uint32_t done = run->done.load(std::memory_order_relaxed) + 1;
  run->done.store(done, std::memory_order_release);
  board_->run(run->ref).done.store(Tagged(run->spec.generation, done),
                                   std::memory_order_release);
  board_->WakeRanks(run->spec.members);
  if (done == run->chunks && callbacks_.on_done) callbacks_.on_done(run->spec);
}

// Asks the backend, too: it reports a broken connection only to chunks in
// flight, and another node may wait for the end of the epoch while none is in
// flight here.
absl::Status NetworkRunner::Failure() {
  std::lock_guard lock(flights_mutex_);
  failure_.Update(backend_->status());
  return failure_;
}

bool NetworkRunner::AllLeft(const Active& run) const {
  return Slowest(*board_, run.ref, run.spec, UINT32_MAX, &Progress::consumed) ==
         UINT32_MAX;
}

bool NetworkRunner::Retire() {
  std::vector<uint32_t> free;
  {
    std::lock_guard lock(mutex_);
    while (!runs_.empty() && runs_.front()->finished() &&
           AllLeft(*runs_.front())) {
      free.push_back(runs_.front()->spec.record);
      runs_.pop_front();
    }
  }
  for (const uint32_t record : free) {
    if (callbacks_.on_free) callbacks_.on_free(record);
  }
  return !free.empty();
}

absl::StatusOr<bool> NetworkRunner::Step() {
  bool moved = false;
  {
    std::lock_guard lock(mutex_);
    moved |= UpdateConsumed();
    moved |= Grant();
  }
  moved |= StartReady();
  moved |= Retire();
  if (absl::Status s = Failure(); !s.ok()) return s;
  return moved;
}

absl::Status NetworkRunner::Run() {
  BoardHeader& h = board_->header();
  while (!stop_ && !board_->aborted()) {
    absl::StatusOr<bool> moved = Step();
    if (!moved.ok()) return moved.status();
    if (*moved) continue;
    // Announce the sleep, then look once more: a rank that publishes after this
    // look sees the announcement and wakes this thread.
    const uint32_t wake = h.network_wake.load(std::memory_order_acquire);
    h.network_sleeping.store(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    moved = Step();
    if (!moved.ok()) return moved.status();
    if (!*moved && !stop_ && !board_->aborted()) {
      FutexWait(h.network_wake, wake, kMaxBackoffMs);
    }
    h.network_sleeping.store(0, std::memory_order_relaxed);
  }
  return absl::OkStatus();
}

}  // namespace maypole::worker
