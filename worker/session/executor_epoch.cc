// The executor's side towards coordinator, backend and board.
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "common/log_value.h"
#include "worker/session/clock.h"
#include "worker/session/executor.h"
#include "worker/session/executor_tags.h"

namespace maypole::worker {

// --- Coordinator -------------------------------------------------------------

void Executor::Do(OpenLink&) {
  transport_.reset();
  presence_sequence_ = 0;
  const uint64_t number = ++link_number_;
  const auto post = [this, number](std::function<void()> letter) {
    mailbox_.Post([this, number, letter = std::move(letter)] {
      if (number == link_number_) letter();
    });
  };
  TransportCallbacks callbacks;
  callbacks.on_message = [this, post](proto::CoordinatorMessage message) {
    post(
        [this, message = std::move(message)] { core_.OnCoordinator(message); });
  };
  callbacks.on_acknowledged = [this, post](uint64_t sequence) {
    post([this, sequence] {
      if (presence_sequence_ == 0 || sequence < presence_sequence_) return;
      presence_sequence_ = 0;
      core_.OnPresenceAcknowledged();
      DoActions();  // the next Presence must not be taken for this one
    });
  };
  callbacks.on_reconnected = [this, post] {
    StatsPage::Add(stats_->reconnects, 1);
    spdlog::warn("event=coordinator_reconnected job={}", options_.core.job);
  };
  callbacks.on_lost = [this, post](absl::Status status) {
    post([this, status = std::move(status)] {
      spdlog::error("event=coordinator_lost job={} epoch={} reason={}",
                    options_.core.job, epoch(), LogValue(status.message()));
      stats_->Count(ErrorKind::kCoordinatorLost);
      transport_.reset();
      core_.OnLinkLost(status);
    });
  };
  transport_ = options_.make_transport(std::move(callbacks));
}

void Executor::Do(SendToCoordinator& a) {
  if (transport_ == nullptr) return;
  const bool presence = a.message.has_presence();
  if (presence) {
    StatsPage::Add(
        stats_->presence,
        static_cast<uint64_t>(a.message.presence().operations_size()));
  }
  const uint64_t sequence = transport_->Send(std::move(a.message));
  if (presence) presence_sequence_ = sequence;
}

// --- Epoch -------------------------------------------------------------------

void Executor::Do(PrepareBackend& a) {
  const auto nodes = static_cast<uint32_t>(a.node_names.size());
  const uint64_t number = ++network_number_;
  const auto post = [this, number](std::function<void()> letter) {
    mailbox_.Post([this, number, letter = std::move(letter)] {
      if (number == network_number_) letter();
    });
  };
  Network::Callbacks callbacks;
  callbacks.on_prepared =
      [this, post](absl::StatusOr<std::vector<std::string>> addresses) {
        post([this, addresses] { core_.OnBackendPrepared(addresses); });
      };
  callbacks.on_connected = [this, post](absl::Status s) {
    post([this, s] { core_.OnBackendConnected(s); });
  };
  callbacks.on_failed = [this, post](absl::Status s) {
    post([this, s] {
      spdlog::error("event=network_failed job={} epoch={} reason={}",
                    options_.core.job, epoch(), LogValue(s.message()));
      stats_->Count(ErrorKind::kNetwork);
      core_.OnNetworkFailed(s);
    });
  };
  callbacks.runner.on_done = [this](const RunSpec& run) {
    stats_->run_ns.Observe(static_cast<uint64_t>(NowNs() - run.issued_ns),
                           1e-9);
  };
  callbacks.runner.on_free = [this, post](uint32_t record) {
    post([this, record] { core_.OnRunFree(record); });
  };
  network_ = std::make_unique<Network>(options_.make_backend(a),
                                       std::move(callbacks));
  network_->Prepare(a.node_index, nodes);
}

void Executor::Do(ConnectBackend& a) {
  if (network_ != nullptr) network_->Connect(std::move(a.addresses));
}

void Executor::Do(CreateBoard& a) {
  std::unique_ptr<Board> board;
  absl::Status s = ToAbsl(Board::Create(a.config, &board));
  if (s.ok()) {
    keeper_ = std::make_unique<BoardKeeper>(std::move(board));
    board_wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    Watch(board_wake_.get(), kBoardWake);
    for (uint32_t i = 0; i < a.pids.size(); ++i) {
      keeper_->MarkPresent(i, a.pids[i]);
    }
    if (network_ != nullptr) network_->Start(&keeper_->board());
    sampler_ = std::make_unique<CounterSampler>(&keeper_->board());
    present_since_.assign(a.config.slots, {});
    stats_->SetRanks({a.config.global_rank, a.config.local_size});
    stats_->local_ranks = a.config.local_size;
    stats_->board_bytes = keeper_->bytes();
    StatsPage::Add(stats_->epochs, 1);
    spdlog::info("event=epoch_start job={} epoch={} ranks={} local={} nodes={}",
                 options_.core.job, a.config.epoch, a.config.size,
                 a.config.local_size, a.config.nodes);
  }
  if (core_.OnBoardCreated(s)) Welcome(a);
}

void Executor::Welcome(const CreateBoard& a) {
  for (uint32_t i = 0; i < a.clients.size(); ++i) {
    auto welcome = session::Make<session::Welcome>();
    welcome.epoch = a.config.epoch;
    welcome.local_rank = i;
    SendToClient(a.clients[i], &welcome, sizeof(welcome),
                 {keeper_->board().fd(), board_wake_.get()});
  }
}

void Executor::Do(AllotSlot& a) {
  if (keeper_ == nullptr) return;
  if (const Status s = keeper_->Allot(a); !s.ok()) {
    core_.OnBoardFull(ToAbsl(s));
    // Before what the core has said of the slot in the belief that it is there:
    // after an abort nothing of it is done.
    DoActions();
    return;
  }
  stats_->board_bytes = keeper_->bytes();
}

void Executor::Do(WantSlot& a) {
  if (keeper_ == nullptr || !keeper_->IsAllotted(a.slot)) return;
  keeper_->board().Want(a.slot, a.generation, a.signature);
}

void Executor::Do(IssueRun& a) {
  // After an abort no ticket may be placed any more.
  if (keeper_ == nullptr || network_ == nullptr || keeper_->board().aborted()) {
    return;
  }
  a.run.issued_ns = NowNs();
  CountIssued(a.run);
  keeper_->WritePlan(a.run);
  network_->Add(a.run);
  keeper_->Issue(a.run);
}

void Executor::CountIssued(const RunSpec& run) {
  const int kind = static_cast<int>(run.kind);
  StatsPage::Add(stats_->operations[kind], run.operations.size());
  StatsPage::Add(stats_->operation_bytes[kind], run.tensor_bytes);
  StatsPage::Add(stats_->runs, 1);
  stats_->run_operations.Observe(run.operations.size(), 1);
  for (const PlanOperation& op : run.operations) {
    const PresentSince& since = present_since_[op.slot];
    if (since.generation != op.generation) continue;
    stats_->presence_ns.Observe(static_cast<uint64_t>(run.issued_ns - since.ns),
                                1e-9);
  }
}

void Executor::Do(FailSlot& a) {
  if (keeper_ == nullptr || !keeper_->IsAllotted(a.slot)) return;
  spdlog::warn("event=operation_failed job={} epoch={} tensor={} reason={}",
               options_.core.job, epoch(), LogValue(keeper_->NameOf(a.slot)),
               LogValue(a.text));
  stats_->Count(ErrorKind::kOperationFailed);
  keeper_->board().Fail(a.slot, a.generation, a.code, a.text);
}

void Executor::Do(MarkLeft& a) {
  if (keeper_ == nullptr) return;
  spdlog::info("event=rank_left job={} epoch={} rank={} text={}",
               options_.core.job, epoch(), a.rank, LogValue(a.text));
  keeper_->MarkLeft(a);
}

void Executor::Do(MarkGone& a) {
  if (keeper_ != nullptr)
    keeper_->MarkGone(static_cast<uint32_t>(a.local_rank));
}

void Executor::Do(AbortBoard& a) {
  spdlog::error("event=epoch_aborted job={} epoch={} reason={}",
                options_.core.job, epoch(), LogValue(a.text));
  stats_->Count(ErrorKind::kEpochAborted);
  if (keeper_ != nullptr) keeper_->board().Abort(a.code, a.text);
  if (network_ != nullptr) network_->Abort();
}

void Executor::Do(WantChange& a) {
  spdlog::info("event=change_wanted job={} epoch={} ranks={}",
               options_.core.job, epoch(), a.ranks);
  if (keeper_ == nullptr) return;
  keeper_->board().header().change_wanted.store(a.ranks,
                                                std::memory_order_release);
}

void Executor::Do(DropEpoch&) {
  spdlog::info("event=epoch_over job={} epoch={}", options_.core.job, epoch());
  ++network_number_;
  if (sampler_ != nullptr) SampleCounters();
  CountNetworkBytes();
  network_.reset();
  counted_sent_ = counted_received_ = 0;
  sampler_.reset();
  keeper_.reset();
  board_wake_.Reset();
  stats_->local_ranks = 0;
  stats_->board_bytes = 0;
  stats_->arena_bytes = 0;
}

}  // namespace maypole::worker
