#include "coordinator/service/metrics.h"

#include <chrono>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "common/metrics/families.h"
#include "common/metrics/process.h"
#include "common/version.h"
#include "coordinator/core/limits.h"
#include "prometheus/gauge.h"
#include "prometheus/metric_family.h"

namespace maypole::coordinator {
namespace {

constexpr const char* kErrorKinds[] = {
    "mismatch",    "rank_lost", "rank_left", "executor_lost", "start_timeout",
    "bad_message", "stalled",   "deadlock",  "results_differ"};
// By proto::ScheduleEnd.
constexpr const char* kScheduleEnds[] = {
    "late",    "other_operation", "operation_changed",
    "request", "rank_left",       "coordinator"};
static_assert(std::size(kScheduleEnds) == proto::ScheduleEnd_ARRAYSIZE);
constexpr const char* kBucketEnds[] = {"complete", "urgent", "age",
                                       "forgotten"};

// Asks the core at every scrape, so that gauges are never stale.
class Gauges : public prometheus::Collectable {
 public:
  Gauges(std::function<Totals()> totals, const Leadership* leadership)
      : totals_(std::move(totals)), leadership_(leadership) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    const Totals t = totals_();
    Families all;
    const auto gauge = [&all](const char* name, const char* help,
                              size_t value) {
      all.Gauge(name, help, {}, static_cast<double>(value));
    };
    gauge("maypole_coordinator_leader",
          "1: this coordinator leads (or is the only one); 0: it is a standby.",
          leadership_ == nullptr || leadership_->Leads());
    gauge("maypole_coordinator_term",
          "Number of this coordinator's leadership; 0: it has never led, or is "
          "the only one.",
          leadership_ == nullptr ? 0 : leadership_->term());
    gauge("maypole_jobs", "Jobs that have executors.", t.jobs);
    gauge("maypole_nodes", "Executors, one per job and node.", t.nodes);
    gauge("maypole_ranks", "Ranks of running epochs.", t.ranks);
    gauge("maypole_pending_operations",
          "Operations that are present on some nodes and awaited from others.",
          t.pending_operations);
    gauge("maypole_late_ranks",
          "Ranks that have kept others waiting for longer than the stall check "
          "time.",
          t.late_ranks);
    gauge("maypole_late_operations", "Operations that they hold up.",
          t.late_operations);
    gauge("maypole_frozen_jobs",
          "Jobs whose nodes execute their steps without the coordinator.",
          t.frozen_jobs);
    return all.Take();
  }

 private:
  const std::function<Totals()> totals_;
  const Leadership* const leadership_;
};

}  // namespace

// maypole_node_late_seconds_total, for the nodes that exist when the metrics
// are scraped.
class StragglerNodes : public prometheus::Collectable {
 public:
  // Must be called before the first scrape.
  void Ask(std::function<std::vector<StragglerNode>()> take) {
    take_ = std::move(take);
  }

  void Add(const StragglerNode& late) {
    std::lock_guard lock(mutex_);
    // Many jobs have ended without a scrape: drops their values.
    if (seconds_.size() >= 2 * kMaxSessions) seconds_.clear();
    seconds_[{late.job, late.node}] += Seconds(late);
  }

  std::vector<prometheus::MetricFamily> Collect() const override {
    const std::vector<StragglerNode> taken = take_();
    Families all;
    std::lock_guard lock(mutex_);
    std::map<Key, double> before;
    before.swap(seconds_);
    for (const StragglerNode& late : taken) {
      const Key key(late.job, late.node);
      const double seconds = before[key] + Seconds(late);
      seconds_[key] = seconds;
      all.Counter("maypole_node_late_seconds_total",
                  "Time in which operations of other nodes of the job waited "
                  "for this one.",
                  {{"job", late.job}, {"node", late.node}}, seconds);
    }
    return all.Take();
  }

 private:
  using Key = std::pair<std::string, std::string>;  // job, node
  static double Seconds(const StragglerNode& late) {
    return std::chrono::duration<double>(late.time).count();
  }

  std::function<std::vector<StragglerNode>()> take_;
  mutable std::mutex mutex_;
  mutable std::map<Key, double> seconds_;
};

namespace {

prometheus::Family<prometheus::Counter>& CounterFamily(
    prometheus::Registry* registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(*registry);
}

prometheus::Histogram* AddHistogram(prometheus::Registry* registry,
                                    const char* name, const char* help,
                                    std::vector<double> buckets) {
  return &prometheus::BuildHistogram()
              .Name(name)
              .Help(help)
              .Register(*registry)
              .Add({}, std::move(buckets));
}

}  // namespace

Metrics::Metrics()
    : registry_(std::make_shared<prometheus::Registry>()),
      straggler_nodes_(std::make_shared<StragglerNodes>()) {
  prometheus::Registry* r = registry_.get();
  prometheus::BuildGauge()
      .Name("maypole_build_info")
      .Help("The coordinator's version; always 1.")
      .Register(*r)
      .Add({{"version", kVersion}})
      .Set(1);
  auto& operations =
      CounterFamily(r, "maypole_operations_total", "Operations issued to run.");
  auto& bytes = CounterFamily(r, "maypole_operation_bytes_total",
                              "Bytes of the results of operations issued.");
  for (int k = 0; k < kKinds; ++k) {
    const std::string kind(Name(static_cast<Kind>(k)));
    operations_.push_back(&operations.Add({{"kind", kind}}));
    bytes_.push_back(&bytes.Add({{"kind", kind}}));
  }
  auto& buckets = CounterFamily(
      r, "maypole_buckets_total",
      "Buckets of operations, or parts of them, that ran, by cause.");
  for (const char* end : kBucketEnds) {
    buckets_.push_back(&buckets.Add({{"end", end}}));
  }
  auto& errors = CounterFamily(r, "maypole_errors_total",
                               "Errors that reached executors, by cause.");
  for (const char* kind : kErrorKinds) {
    errors_.push_back(&errors.Add({{"kind", kind}}));
  }
  auto& events = CounterFamily(r, "maypole_events_total",
                               "Events of jobs that were logged, by level.");
  for (const char* level : kLevelNames) {
    events_.push_back(&events.Add({{"level", level}}));
  }
  auto& checksums = CounterFamily(
      r, "maypole_checksums_total",
      "Operations whose results ranks have compared by checksums, by outcome.");
  results_equal_ = &checksums.Add({{"outcome", "equal"}});
  results_different_ = &checksums.Add({{"outcome", "different"}});
  results_unchecked_ = &checksums.Add({{"outcome", "unchecked"}});
  runs_ = &CounterFamily(r, "maypole_runs_total", "Runs issued.").Add({});
  schedules_ = &CounterFamily(r, "maypole_schedules_total",
                              "Schedules begun: steps that the nodes of a job "
                              "execute without the coordinator.")
                    .Add({});
  scheduled_operations_ =
      &CounterFamily(r, "maypole_scheduled_operations_total",
                     "Operations executed by schedules that have ended.")
           .Add({});
  auto& ends = CounterFamily(r, "maypole_schedules_ended_total",
                             "Schedules that have ended, by cause.");
  for (const char* reason : kScheduleEnds) {
    schedule_ends_.push_back(&ends.Add({{"reason", reason}}));
  }
  reconnects_ = &CounterFamily(r, "maypole_reconnects_total",
                               "Broken streams that executors resumed.")
                     .Add({});
  relayed_ = &CounterFamily(r, "maypole_relayed_messages_total",
                            "Messages to many nodes of a job that one node "
                            "has got, to pass them on.")
                  .Add({});
  run_operations_ =
      AddHistogram(r, "maypole_run_operations", "Operations of a run.",
                   {1, 2, 4, 8, 16, 32, 64, 128, 256, 512});
  negotiation_ = AddHistogram(
      r, "maypole_negotiation_seconds",
      "From an operation's presence on the first node until it is issued.",
      {1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1, 3, 10, 60});
}

void Metrics::Observe(const Action& action) {
  std::visit([this](const auto& fact) { Count(fact); }, action);
}

void Metrics::Count(const OperationIssued& fact) {
  const int kind = static_cast<int>(fact.kind);
  operations_[kind]->Increment();
  bytes_[kind]->Increment(static_cast<double>(fact.bytes));
  negotiation_->Observe(
      std::chrono::duration<double>(fact.negotiation).count());
}

void Metrics::Count(const RunIssued& fact) {
  runs_->Increment();
  run_operations_->Observe(static_cast<double>(fact.operations));
}

void Metrics::Count(const BucketRan& fact) {
  buckets_[static_cast<int>(fact.end)]->Increment();
}

void Metrics::Count(const ScheduleOver& fact) {
  schedule_ends_[fact.why]->Increment();
  scheduled_operations_->Increment(static_cast<double>(fact.operations));
}

void Metrics::Count(const ErrorCounted& fact) {
  errors_[static_cast<int>(fact.kind)]->Increment();
}

void Metrics::Count(const Log& line) {
  events_[static_cast<int>(line.level)]->Increment();
}

void Metrics::Count(const ResultsCompared& fact) {
  results_equal_->Increment(static_cast<double>(fact.equal));
  results_different_->Increment(static_cast<double>(fact.different));
  results_unchecked_->Increment(static_cast<double>(fact.unchecked));
}

void Metrics::Count(const StragglerNode& fact) { straggler_nodes_->Add(fact); }

absl::StatusOr<int> Metrics::Serve(
    const Address& address, std::function<Totals()> totals,
    std::function<std::vector<StragglerNode>()> take_lateness,
    const Leadership* leadership) {
  straggler_nodes_->Ask(std::move(take_lateness));
  absl::StatusOr<std::unique_ptr<MetricsServer>> server = MetricsServer::Start(
      address, {registry_, std::make_shared<ProcessMetrics>(),
                std::make_shared<Gauges>(std::move(totals), leadership),
                straggler_nodes_});
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  return server_->port();
}

void Metrics::StopServing() { server_.reset(); }

}  // namespace maypole::coordinator
