#include "coordinator/election/elections.h"

#include <chrono>
#include <optional>
#include <utility>
#include <variant>

#include "common/log_value.h"
#include "spdlog/spdlog.h"

namespace maypole::coordinator {
namespace {

// How long the destructor tries to revoke the lease.
constexpr std::chrono::milliseconds kRevokeTime(500);

}  // namespace

Elections::Elections(ElectionsOptions options,
                     std::unique_ptr<ElectionStore> store,
                     Leadership* leadership)
    : options_(std::move(options)),
      store_(std::move(store)),
      leadership_(leadership),
      core_(options_.ttl, BootTime()) {
  leadership_->SetOwnAddress(options_.address);
  runner_ = std::thread([this] { Run(); });
  watcher_ = std::thread([this] {
    store_->Watch([this] {
      std::lock_guard lock(mutex_);
      changed_ = true;
      woken_.notify_all();
    });
  });
}

Elections::~Elections() {
  leadership_->End();
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    woken_.notify_all();
  }
  store_->Stop();
  runner_.join();
  watcher_.join();
  const LeaseId lease = core_.Resign();
  if (lease == 0) return;
  store_->Call({StoreCall::Kind::kRevoke, lease, kRevokeTime});
}

bool Elections::Wait(bool* changed) {
  std::unique_lock lock(mutex_);
  const auto woken = [this] { return changed_ || ending_; };
  if (const std::optional<BootInstant> deadline = core_.Deadline()) {
    woken_.wait_for(lock, *deadline - BootTime(), woken);
  } else {
    woken_.wait(lock, woken);
  }
  *changed = std::exchange(changed_, false);
  return !ending_;
}

void Elections::Run() {
  bool changed = false;
  while (Wait(&changed)) {
    ElectionActions actions;
    if (changed) {
      core_.Changed(BootTime(), &actions);
    } else {
      core_.Passed(BootTime(), &actions);
    }
    Do(&actions);
  }
}

// A call may be the last of the actions; its answer causes further actions.
void Elections::Do(ElectionActions* actions) {
  while (!actions->empty()) {
    ElectionActions more;
    for (const ElectionAction& action : *actions) {
      if (const auto* call = std::get_if<StoreCall>(&action)) {
        const StoreAnswer answer = store_->Call(*call);
        core_.Answered(BootTime(), answer, &more);
      } else if (const auto* lead = std::get_if<Lead>(&action)) {
        leadership_->Begin(lead->term, lead->until);
        if (options_.on_lead_until) options_.on_lead_until(lead->until);
        spdlog::info("event=leading address={} term={}", options_.address,
                     lead->term);
      } else if (const auto* prolong = std::get_if<Prolong>(&action)) {
        leadership_->Prolong(prolong->until);
        if (options_.on_lead_until) options_.on_lead_until(prolong->until);
      } else if (const auto* follow = std::get_if<Follow>(&action)) {
        Log(*follow);
      } else if (const auto* down = std::get_if<StepDown>(&action)) {
        leadership_->End();
        options_.on_lost(down->reason);
      } else if (const auto* failed = std::get_if<StoreFailed>(&action)) {
        spdlog::warn("event=election_store_failed reason={}",
                     LogValue(failed->text));
      } else {
        spdlog::info("event=election_store_answers");
      }
    }
    std::lock_guard lock(mutex_);
    if (ending_) return;
    actions->swap(more);
  }
}

void Elections::Log(const Follow& follow) const {
  if (!follow.holder) {
    leadership_->Follow({});
    spdlog::info("event=no_leader");
    return;
  }
  const std::string address = AddressOf(follow.holder->value);
  leadership_->Follow({address, follow.holder->term});
  spdlog::info("event=standby leader={} term={}", LogValue(address),
               follow.holder->term);
}

}  // namespace maypole::coordinator
