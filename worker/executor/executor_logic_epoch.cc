// ExecutorLogic: actions that concern coordinator, network and board.
#include <utility>

#include "common/absl_status.h"
#include "worker/executor/executor_logic.h"

namespace maypole::worker {

// --- Coordinator -------------------------------------------------------------

void ExecutorLogic::Do(OpenLink&) {
  transport_.reset();
  presence_sequence_ = 0;
  ++link_number_;
  const auto post = PosterFor(&link_number_);
  TransportCallbacks callbacks;
  callbacks.on_message = [this, post](proto::CoordinatorMessage message) {
    post([this, message = std::move(message)] {
      timeline_.OnTime(system_->NowNs());
      if (!timeline_.OnCoordinator(message)) core_.OnCoordinator(message);
    });
  };
  callbacks.on_acknowledged = [this, post](uint64_t sequence) {
    post([this, sequence] {
      if (presence_sequence_ == 0 || sequence < presence_sequence_) return;
      presence_sequence_ = 0;
      core_.OnPresenceAcknowledged();
      DoActions();  // the next Presence must not be taken for this one
    });
  };
  callbacks.on_away = [this, post](absl::Status status) {
    post([this, status = std::move(status)] {
      observer_->OnCoordinatorAway(status);
      core_.OnCoordinatorAway(status);
    });
  };
  callbacks.on_reconnected = [this, post] {
    post([this] {
      observer_->OnCoordinatorBack();
      core_.OnCoordinatorBack();
    });
  };
  callbacks.on_replaced = [this, post] {
    post([this] {
      observer_->OnCoordinatorBack();
      presence_sequence_ = 0;
      core_.OnCoordinatorReplaced();
      DoActions();  // its state must be sent before what follows
      timeline_.OnCoordinatorReplaced();
    });
  };
  callbacks.on_lost = [this, post](absl::Status status) {
    post([this, status = std::move(status)] {
      observer_->OnCoordinatorLost(status);
      transport_.reset();
      core_.OnLinkLost(status);
    });
  };
  transport_ = system_->OpenTransport(std::move(callbacks));
}

void ExecutorLogic::Do(CloseLink&) {
  observer_->OnCoordinatorLost(
      absl::UnavailableError("ranks have waited for it for too long"));
  transport_.reset();
}

void ExecutorLogic::Do(SendToCoordinator& a) {
  if (transport_ == nullptr) return;
  if (a.message.has_node_state()) {
    timeline_.WriteState(a.message.mutable_node_state());
  }
  const bool presence = a.message.has_presence();
  if (presence) {
    if (timeline_.recording()) {
      timeline_.OnPresence(
          static_cast<uint32_t>(a.message.presence().operations_size()),
          system_->NowNs());
    }
    observer_->OnPresenceSent(
        static_cast<uint64_t>(a.message.presence().operations_size()));
  }
  const uint64_t sequence = transport_->Send(std::move(a.message));
  if (presence) presence_sequence_ = sequence;
}

void ExecutorLogic::Do(SendToPeers& a) {
  if (network_ == nullptr) return;
  if (!a.operations.empty() && keeper_ != nullptr) {
    *a.message.mutable_inputs() = keeper_->ReducedCopies(a.operations);
    observer_->OnInputsSent(a.message.inputs().size(), a.nodes.size());
  }
  network_->SendToPeers(a.nodes, a.message);
}

void ExecutorLogic::Do(FinishSmall& a) {
  if (keeper_ == nullptr || keeper_->board().aborted()) return;
  keeper_->Finish(a);
  observer_->OnSmallFinished(a);
}

void ExecutorLogic::Do(WantCopies& a) {
  if (keeper_ == nullptr || !keeper_->IsAllotted(a.slot)) return;
  keeper_->board().slot(a.slot).wants_copies.store(a.wanted ? 1 : 0,
                                                   std::memory_order_relaxed);
}

void ExecutorLogic::Do(SendStats& a) {
  if (transport_ == nullptr) return;
  // Some counters are read from the board. The last regular scan is up to
  // kBoardScanMs old, by which rates over a second would be wrong.
  if (keeper_ != nullptr) observer_->OnScan(keeper_->TakeSnapshot(0));
  proto::ExecutorMessage message;
  message.set_epoch(a.epoch);
  proto::NodeStats* const stats = message.mutable_node_stats();
  stats->set_time_ms(NowMs());
  observer_->FillStats(stats);
  transport_->Send(std::move(message));
}

void ExecutorLogic::Do(TakeRelayed& a) {
  if (transport_ == nullptr) return;
  transport_->TakeRelayed(a.incarnation, std::move(a.message));
}

void ExecutorLogic::TakePeerMessages() {
  if (network_ == nullptr) return;
  for (const auto& [node, message] : network_->TakePeerMessages()) {
    core_.OnPeerMessage(node, message);
  }
}

// --- Epochs ------------------------------------------------------------------

void ExecutorLogic::Do(PrepareBackend& a) {
  network_.reset();
  ++network_number_;
  const auto post = PosterFor(&network_number_);
  EpochNetwork::Callbacks callbacks;
  callbacks.on_prepared =
      [this, post](absl::StatusOr<std::vector<std::string>> addresses) {
        post([this, addresses] { core_.OnBackendPrepared(addresses); });
      };
  callbacks.on_connected = [this, post](absl::Status s) {
    post([this, s] { core_.OnBackendConnected(s); });
  };
  callbacks.on_failed = [this, post](absl::Status s) {
    post([this, s] {
      if (core_.OnNetworkFailed(s)) observer_->OnNetworkFailed(s);
    });
  };
  callbacks.runner.on_done = [this, post](const RunSpec& run) {
    if (timeline_.recording()) {
      post([this, record = run.record, now = system_->NowNs()] {
        timeline_.OnRunDone(record, now);
      });
    }
    if (run.site != RunSite::kExecutors) observer_->OnRunDone(run);
  };
  callbacks.runner.on_free = [this, post](uint32_t record) {
    post([this, record] { core_.OnRunFree(record); });
  };
  network_ = system_->MakeNetwork(a, std::move(callbacks));
  network_->Prepare(a.node_index, static_cast<uint32_t>(a.node_names.size()));
}

void ExecutorLogic::Do(ConnectBackend& a) {
  if (network_ != nullptr) network_->Connect(std::move(a.addresses));
}

void ExecutorLogic::Do(CreateBoard& a) {
  std::unique_ptr<Board> board;
  const absl::Status s =
      ToAbsl(system_->CreateBoard(a.config, a.version, &board));
  if (s.ok()) {
    keeper_ = std::make_unique<BoardKeeper>(std::move(board));
    wake_ = system_->MakeBoardWake();
    for (uint32_t i = 0; i < a.pids.size(); ++i) {
      keeper_->MarkPresent(i, a.pids[i]);
    }
    if (network_ != nullptr) network_->Start(&keeper_->board());
    observer_->OnEpochStarted(a.config, keeper_->board());
    observer_->OnBoardBytes(keeper_->bytes());
    StartTimeline(a);
  }
  if (core_.OnBoardCreated(s)) Welcome(a);
}

void ExecutorLogic::Welcome(const CreateBoard& a) {
  for (uint32_t i = 0; i < a.clients.size(); ++i) {
    const auto it = clients_.find(a.clients[i]);
    if (it == clients_.end()) continue;
    auto welcome = session::Make<session::Welcome>();
    it->second.version = a.version;
    welcome.header.version = a.version;
    welcome.epoch = a.config.epoch;
    welcome.local_rank = i;
    welcome.checksums = a.checksums;
    const Status s =
        it->second.link->SendWelcome(welcome, keeper_->board(), *wake_);
    if (!s.ok()) ClientGone(a.clients[i], s.message());
  }
}

void ExecutorLogic::Do(AllotSlot& a) {
  if (keeper_ == nullptr) return;
  if (const Status s = keeper_->Allot(a); !s.ok()) {
    core_.OnBoardFull(ToAbsl(s));
    // Execute the abort before later actions that assume the slot to exist;
    // after an abort they have no effect.
    DoActions();
    return;
  }
  observer_->OnBoardBytes(keeper_->bytes());
}

void ExecutorLogic::Do(FindIdleSlots&) {
  if (keeper_ != nullptr) core_.OnIdleSlots(keeper_->IdleSlots());
}

void ExecutorLogic::Do(RecallFrom& a) {
  Send(a.client, &a.message, sizeof(a.message));
  if (keeper_ != nullptr) keeper_->board().TellOfRecall(a.local_rank);
}

void ExecutorLogic::Do(FreeSlot& a) {
  if (keeper_ == nullptr || !keeper_->IsAllotted(a.slot)) return;
  core_.OnSlotFreed(a.slot, keeper_->Free(a.slot));
}

void ExecutorLogic::Do(WantSlot& a) {
  if (keeper_ == nullptr || !keeper_->IsAllotted(a.slot)) return;
  keeper_->board().Want(a.slot, a.generation, a.signature);
}

void ExecutorLogic::Do(IssueRun& a) {
  // After an abort no ticket may be placed.
  const bool by_ranks = a.run.site == RunSite::kRanks;
  if (keeper_ == nullptr || keeper_->board().aborted() ||
      (!by_ranks && network_ == nullptr)) {
    return;
  }
  a.run.issued_ns = system_->NowNs();
  // Ranks count what runs within the node.
  if (a.run.site != RunSite::kExecutors && a.run.nodes.size() > 1) {
    observer_->OnIssued(a.run);
  }
  if (timeline_.recording()) RecordIssued(a.run);
  keeper_->WritePlan(a.run);
  if (!by_ranks) network_->Add(a.run);
  for (const PlanOperation& op : a.run.operations) {
    if (by_ranks) MarkOnGpus(op.slot, op.generation);
  }
  keeper_->Issue(a.run);
}

void ExecutorLogic::Do(FailSlot& a) {
  if (keeper_ == nullptr || !keeper_->IsAllotted(a.slot)) return;
  observer_->OnOperationFailed(a, keeper_->NameOf(a.slot));
  keeper_->board().Fail(a.slot, a.generation, a.code, a.text);
}

void ExecutorLogic::Do(MarkLeft& a) {
  if (keeper_ == nullptr) return;
  observer_->OnRankLeft(a);
  keeper_->MarkLeft(a);
}

void ExecutorLogic::Do(MarkGone& a) {
  if (keeper_ == nullptr) return;
  keeper_->MarkGone(static_cast<uint32_t>(a.local_rank));
}

void ExecutorLogic::Do(AbortBoard& a) {
  observer_->OnEpochAborted(a);
  if (keeper_ != nullptr) keeper_->board().Abort(a.code, a.text);
  if (network_ != nullptr) network_->Abort();
  if (gpus_ != nullptr) gpus_->Abort();
}

void ExecutorLogic::Do(WantChange& a) {
  observer_->OnChangeWanted(a.ranks);
  if (keeper_ == nullptr) return;
  keeper_->board().header().change_wanted.store(a.ranks,
                                                std::memory_order_release);
}

void ExecutorLogic::Do(DropEpoch&) {
  observer_->OnEpochOver(network_.get());
  timeline_.OnEpochOver();
  ++network_number_;
  network_.reset();
  DropGpus();
  keeper_.reset();
  wake_.reset();
}

}  // namespace maypole::worker
