// What the core asks for of the coordinator's link, of the network and the
// board.
#include <unistd.h>

#include <utility>

#include "common/absl_status.h"
#include "tests/simulation/executor.h"

namespace maypole::simulation {

// --- Coordinator -------------------------------------------------------------

// As on a node that does not see its clients' processes.
void Executor::Do(worker::KeepWatching& a) { core_.OnProcessEnded(a.client); }

void Executor::Do(worker::OpenLink&) {
  if (transport_ != nullptr) transport_->Close();
  presence_sequence_ = 0;
  const uint64_t number = ++link_number_;
  const auto post = [this, number](std::function<void()> letter) {
    Post([this, number, letter = std::move(letter)] {
      if (number == link_number_) letter();
    });
  };
  worker::TransportCallbacks callbacks;
  callbacks.on_message = [this, post](proto::CoordinatorMessage message) {
    if (message.has_epoch_start()) {
      epoch_key_ = options_.coordinator->EpochKey(options_.node);
    }
    post(
        [this, message = std::move(message)] { core_.OnCoordinator(message); });
  };
  callbacks.on_acknowledged = [this, post](uint64_t sequence) {
    post([this, sequence] {
      if (presence_sequence_ == 0 || sequence < presence_sequence_) return;
      presence_sequence_ = 0;
      core_.OnPresenceAcknowledged();
    });
  };
  callbacks.on_reconnected = [] {};
  callbacks.on_lost = [this, post](absl::Status status) {
    post([this, status = std::move(status)] {
      stage_->Trace("node ", options_.node,
                    ": coordinator lost: ", status.message());
      transport_.reset();
      core_.OnLinkLost(status);
    });
  };
  proto::ExecutorHello hello;
  hello.set_protocol_version(kProtocolVersion);
  hello.set_job(options_.core.job);
  hello.set_token("token");
  hello.set_node(options_.core.node);
  hello.set_host(options_.core.host);
  transport_ = std::make_shared<SimulatedTransport>(
      stage_, options_.coordinator, options_.node, std::move(hello),
      options_.core.resume_timeout_ms * kMillisecond, std::move(callbacks));
  transport_->Start();
}

void Executor::Do(worker::SendToCoordinator& a) {
  if (transport_ == nullptr) return;
  const bool presence = a.message.has_presence();
  const uint64_t sequence = transport_->Send(std::move(a.message));
  if (presence) presence_sequence_ = sequence;
}

// --- Epoch -------------------------------------------------------------------

void Executor::Do(worker::PrepareBackend& a) {
  DropNetwork();
  const auto nodes = static_cast<uint32_t>(a.node_names.size());
  ++network_number_;
  network_ = std::make_unique<Network>();
  network_->backend = std::make_unique<SimulatedBackend>(
      options_.fabric, a.node_names[a.node_index]);
  network_->turn =
      std::make_unique<Turn>(&stage_->scheduler, [this] { NetworkTurn(); });
  const auto addresses = network_->backend->Prepare(a.node_index, nodes);
  stage_->scheduler.After(stage_->SoonDelay(), network_->life,
                          [this, addresses] {
                            Post([this, addresses, n = network_number_] {
                              if (n != network_number_) return;
                              core_.OnBackendPrepared(addresses);
                            });
                          });
}

void Executor::Do(worker::ConnectBackend& a) {
  if (network_ == nullptr) return;
  network_->backend->StartConnecting(a.addresses,
                                     [this](const absl::Status& s) {
                                       Post([this, s, n = network_number_] {
                                         if (n == network_number_)
                                           core_.OnBackendConnected(s);
                                       });
                                     });
}

void Executor::Do(worker::CreateBoard& a) {
  std::unique_ptr<Board> board;
  // What the core does not know of: the smallest pools that try all ways.
  a.config.small_bytes = 512;
  a.config.pool_buffers = 3;
  const absl::Status s = ToAbsl(Board::Create(a.config, &board));
  if (!s.ok()) stage_->Found("no board: ", s.message());
  if (s.ok()) {
    keeper_ = std::make_unique<worker::BoardKeeper>(std::move(board));
    for (uint32_t i = 0; i < a.pids.size(); ++i) {
      keeper_->MarkPresent(i, a.pids[i]);
    }
    if (network_ != nullptr) {
      worker::NetworkRunner::Callbacks callbacks;
      callbacks.on_free = [this](uint32_t record) {
        Post([this, record, n = network_number_] {
          if (n == network_number_) core_.OnRunFree(record);
        });
      };
      network_->runner = std::make_unique<worker::NetworkRunner>(
          &keeper_->board(), network_->backend.get(), std::move(callbacks));
      network_->turn->Ask(stage_->SoonDelay(), network_->life);
    }
    ++stage_->counts.epochs;
    stage_->Trace("node ", options_.node, ": epoch ", EpochKey());
  }
  if (!core_.OnBoardCreated(s)) return;
  for (uint32_t i = 0; i < a.clients.size(); ++i) {
    auto welcome = session::Make<session::Welcome>();
    welcome.epoch = a.config.epoch;
    welcome.local_rank = i;
    SendToClient(a.clients[i], &welcome, sizeof(welcome),
                 Fd(dup(keeper_->board().fd())));
  }
}

void Executor::Do(worker::AllotSlot& a) {
  // Memory is not what a seed makes short.
  if (keeper_ != nullptr) (void)keeper_->Allot(a);
}

void Executor::Do(worker::WantSlot& a) {
  if (keeper_ == nullptr) return;
  stage_->Trace("node ", options_.node, ": wants slot ", a.slot, ":",
                a.generation);
  keeper_->board().Want(a.slot, a.generation, a.signature);
}

void Executor::Do(worker::IssueRun& a) {
  if (keeper_ == nullptr || network_ == nullptr || keeper_->board().aborted()) {
    return;
  }
  stage_->Trace("node ", options_.node, ": run ", Name(a.run.kind), " of ",
                a.run.operations.size(), " operations, ", a.run.bytes,
                " bytes, record ", a.run.record, ":", a.run.generation);
  if (stage_->Spoils(Sabotage::kSkipRun, 64)) return;
  keeper_->WritePlan(a.run);
  network_->runner->Add(a.run);
  keeper_->Issue(a.run);
}

void Executor::Do(worker::FailSlot& a) {
  if (keeper_ == nullptr) return;
  stage_->Trace("node ", options_.node, ": fails slot ", a.slot, ":",
                a.generation, " ", a.text);
  keeper_->board().Fail(a.slot, a.generation, a.code, a.text);
}

void Executor::Do(worker::MarkLeft& a) {
  if (keeper_ == nullptr) return;
  stage_->Trace("node ", options_.node, ": left: ", a.text);
  keeper_->MarkLeft(a);
}

void Executor::Do(worker::MarkGone& a) {
  if (keeper_ != nullptr) {
    keeper_->MarkGone(static_cast<uint32_t>(a.local_rank));
  }
}

void Executor::Do(worker::AbortBoard& a) {
  stage_->Trace("node ", options_.node, ": aborts: ", a.text);
  if (keeper_ != nullptr) keeper_->board().Abort(a.code, a.text);
  if (network_ != nullptr) {
    network_->over = true;
    network_->backend->Abort();
  }
}

void Executor::Do(worker::WantChange& a) {
  if (keeper_ == nullptr) return;
  keeper_->board().header().change_wanted.store(a.ranks);
}

void Executor::Do(worker::DropEpoch&) {
  stage_->Trace("node ", options_.node, ": epoch over");
  ++network_number_;
  DropNetwork();
  keeper_.reset();
}

void Executor::Do(worker::ReportIdle&) { idle_ = true; }

}  // namespace maypole::simulation
