// JobShard: messages that executors pass on (docs/relays.md).
#include "absl/strings/str_cat.h"
#include "coordinator/core/job_shard.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

absl::Status JobShard::BeginRelays(const ExecutorSession& session,
                                   uint64_t number, Actions* actions) {
  const CoordinatorEpoch* const epoch = job_->epoch();
  // The message may have crossed the epoch's end.
  if (epoch == nullptr || epoch->number() != number) {
    return absl::OkStatus();
  }
  if (epoch->nodes().members().front().session != session.id) {
    return InvalidArgument("only the first node says that relays are ready");
  }
  // All nodes must have all their ranks.
  if (epoch->RelayFanOut() == 0 || !epoch->departures().ranks().empty() ||
      !epoch->nodes().AllConnected()) {
    return absl::OkStatus();
  }
  std::vector<SessionId> nodes;
  for (const NodeMember& m : epoch->nodes().members())
    nodes.push_back(m.session);
  relays_.emplace(epoch->number(), std::move(nodes), epoch->RelayFanOut(),
                  incarnation_);
  Note(Level::kInfo, session, "relays_begun",
       absl::StrCat("epoch=", epoch->number()), actions);
  if (!detached_.empty()) PauseRelays("not all nodes connected", actions);
  return absl::OkStatus();
}

void JobShard::PauseRelays(absl::string_view why, Actions* actions) {
  if (!relays_ || !relays_->active()) return;
  relays_->Pause(now_);
  actions->emplace_back(Log{
      Level::kInfo, absl::StrCat("event=relays_paused job=", id_, " epoch=",
                                 relays_->epoch(), " reason=", LogValue(why))});
  for (const SessionId id : relays_->nodes()) {
    const auto it = sessions_.find(id);
    if (it == sessions_.end() || it->second.stream == 0) continue;
    it->second.link.Resend([&](const Outgoing& m) {
      actions->emplace_back(Send{it->second.stream, m});
    });
  }
}

void JobShard::EndRelays(absl::string_view why, Actions* actions) {
  PauseRelays(why, actions);
  relays_.reset();
}

void JobShard::CheckRelays(Actions* actions) {
  if (!relays_ || !relays_->Deadline() || now_ < *relays_->Deadline()) return;
  const auto late = relays_->Late(
      [this](SessionId id) { return sessions_.at(id).link.acknowledged(); });
  if (!relays_->active()) {
    if (late || !detached_.empty()) return relays_->Pause(now_);
    return relays_->Resume();
  }
  if (!late) return relays_->Checked();
  const ExecutorSession& node = sessions_.at(relays_->nodes()[*late]);
  PauseRelays(absl::StrCat("node ", node.node, " does not acknowledge"),
              actions);
}

}  // namespace maypole::coordinator
