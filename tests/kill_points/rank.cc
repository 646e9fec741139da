#include "tests/kill_points/rank.h"

#include <unistd.h>

#include <memory>
#include <thread>

#include "client/api/client.h"
#include "tests/properties/player/player.h"
#include "tests/properties/player/ranks.h"

namespace maypole::kill_points {
namespace {

using properties::NowNs;

// An operation that is pending for longer counts as lost. Far above the
// promised second, because the time is judged separately.
constexpr int kPatienceMs = 5000;

End EndOf(const properties::Attempt& a) {
  if (!a.submitted() || !a.ended()) return End::kNotSubmitted;
  return a.status().ok() ? End::kOk : End::kError;
}

// The victim cannot record its time of death, only its last sign of life.
void ShowLife(RankPart* part) {
  part->alive_ns = NowNs();
  std::thread([part] {
    for (;;) {
      part->alive_ns = NowNs();
      usleep(1000);
    }
  }).detach();
}

// Submits an operation and returns its error.
std::string TryAnother(Client* client) {
  float x = 1;
  int64_t handle = 0;
  const Tensor tensor{DType::kFloat32, {1}, &x, &x};
  Status s = client->Allreduce("later", tensor, {}, &handle);
  if (s.ok()) s = client->Wait(handle, kPatienceMs);
  return s.ok() ? "" : std::string(s.message());
}

// After an error the memory of failed operations must not be written.
std::string Watch(const properties::Player& player, int grace_ms) {
  usleep(static_cast<useconds_t>(grace_ms) * 1000);
  for (const auto& attempt : player.attempts()) {
    if (!attempt->ended() || attempt->status().ok()) continue;
    if (std::string changed = attempt->Changed(); !changed.empty()) {
      return changed;
    }
  }
  return "";
}

// As in property_ranks.cc: all ranks see rank 0's decision in time.
bool Over(const Round& round, int rank, int number, int64_t deadline,
          Scoreboard* board) {
  if (rank == 0 && board->stop_at == 0 && NowNs() > deadline) {
    board->stop_at = number + 2;
  }
  const int stop = board->stop_at;
  return number >= round.programs || (stop > 0 && number >= stop);
}

void TellEnds(const properties::Player& player, int number, RankPart* part) {
  for (size_t i = 0; i < player.attempts().size(); ++i) {
    part->ends[number][i] = EndOf(*player.attempts()[i]);
  }
  part->programs = number + 1;
}

void TellFailure(const Round& round, const properties::Player& player,
                 Client* client, RankPart* part) {
  part->failed = true;
  SetText(part->error, player.failed()->status().message());
  SetText(part->later, TryAnother(client));
  if (part->wrong[0] == 0) SetText(part->wrong, Watch(player, round.grace_ms));
}

}  // namespace

int RunRank(const Round& round, int rank, Scoreboard* board) {
  RankPart* const part = &board->ranks[rank];
  if (rank == round.victim) ShowLife(part);
  std::unique_ptr<Client> client;
  const RankOptions options =
      properties::OptionsOf(rank, round.world.ranks, round.agents, round.job);
  if (Status s = Client::Join(options, &client); !s.ok()) {
    // Another node's ranks may run, and die, before this one has joined.
    part->failed = true;
    part->ended_ns = NowNs();
    SetText(part->error, s.message());
    SetText(part->later, s.message());
    part->state.store(State::kOver, std::memory_order_release);
    return 0;
  }
  part->state.store(State::kJoined, std::memory_order_release);
  const int64_t deadline = NowNs() + round.play_ms * int64_t{1000000};
  properties::Memory memory(client.get());
  properties::Player player(client.get(), rank, round.world, &memory,
                            kPatienceMs);
  for (int n = 0; !Over(round, rank, n, deadline, board); ++n) {
    const std::string wrong = player.Play(properties::MakeProgram(
        round.seed + static_cast<uint64_t>(n), round.world));
    part->ended_ns = NowNs();
    TellEnds(player, n, part);
    SetText(part->wrong, wrong);
    if (player.failed() != nullptr) {
      TellFailure(round, player, client.get(), part);
    }
    if (part->wrong[0] != 0 || player.failed() != nullptr) break;
  }
  client->Leave();
  part->state.store(State::kOver, std::memory_order_release);
  return 0;
}

}  // namespace maypole::kill_points
