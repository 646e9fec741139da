#include "coordinator/candidacy.h"

#include <unistd.h>

#include <utility>

#include "common/log_value.h"
#include "coordinator/election/etcd_store.h"
#include "coordinator/election/store.h"
#include "spdlog/spdlog.h"

namespace maypole::coordinator {
namespace {

constexpr char kAlarmLine[] =
    "level=error program=maypole-coordinator event=leadership_lost "
    "reason=\"this process did not run when its lease ended: it was stopped, "
    "or the machine was suspended or overloaded\" exit=75\n";
static_assert(kLeadershipLost == 75);
// The alarm rings after the Elections should have ended the process themselves,
// and before the lease ends (ElectionCore's margin is a tenth).
constexpr int kAlarmPart = 20;

[[noreturn]] void EndProcess(const std::string& reason) {
  spdlog::error("event=leadership_lost reason={} exit={}", LogValue(reason),
                kLeadershipLost);
  // No destructor may wait for anything or write to a stream.
  _exit(kLeadershipLost);
}

}  // namespace

absl::Status Candidacy::Stand(const ElectionFlags& flags,
                              const std::string& address,
                              const std::string& incarnation) {
  auto alarm = LeaseAlarm::Make(kAlarmLine, kLeadershipLost);
  if (!alarm.ok()) return alarm.status();
  alarm_ = *std::move(alarm);
  EtcdOptions etcd;
  etcd.endpoints = flags.etcd;
  etcd.tls = flags.tls;
  etcd.prefix = flags.prefix;
  etcd.value = HolderValue(address, incarnation);
  etcd.ttl = flags.ttl;
  ElectionsOptions options;
  options.address = address;
  options.ttl = flags.ttl;
  options.on_lead_until = [alarm = alarm_.get(),
                           grace = flags.ttl / kAlarmPart](BootInstant until) {
    alarm->Set(until + grace);
  };
  options.on_lost = EndProcess;
  elections_ = std::make_unique<Elections>(
      std::move(options), std::make_unique<EtcdStore>(std::move(etcd)),
      &leadership_);
  return absl::OkStatus();
}

void Candidacy::Resign() {
  leadership_.End();
  if (alarm_ != nullptr) alarm_->Clear();
  elections_.reset();
  alarm_.reset();
}

}  // namespace maypole::coordinator
