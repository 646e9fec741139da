#include "tests/scale/load.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"

namespace maypole::scale {
namespace {

double Seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}
double Milliseconds(Clock::duration time) { return 1000 * Seconds(time); }

// As a backward pass produces them.
std::vector<bench::Parameter> Tensors(size_t count) {
  std::vector<bench::Parameter> all = bench::Resnet50();
  std::reverse(all.begin(), all.end());
  all.resize(std::min(all.size(), count));
  for (bench::Parameter& p : all) p.name = "gradient." + p.name;
  return all;
}

Cost Difference(const Cost& after, const Cost& before) {
  return {after.coordinator_cpu - before.coordinator_cpu,
          after.load_cpu - before.load_cpu,
          {after.traffic.sent_messages - before.traffic.sent_messages,
           after.traffic.sent_bytes - before.traffic.sent_bytes,
           after.traffic.received_messages - before.traffic.received_messages,
           after.traffic.received_bytes - before.traffic.received_bytes}};
}

}  // namespace

Load::Load(const LoadOptions& options)
    : options_(options),
      job_(options.job, options.nodes, options.ranks_per_node,
           Tensors(options.tensors), options.address_bytes) {
  for (size_t i = 0; i < std::min(options.channels, options.nodes); ++i) {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    args.SetMaxReceiveMessageSize(-1);
    stubs_.push_back(proto::Coordinator::NewStub(grpc::CreateCustomChannel(
        options.address, grpc::InsecureChannelCredentials(), args)));
  }
  for (size_t i = 0; i < options.nodes; ++i) {
    executors_.push_back(
        std::make_unique<Executor>(&job_, i, stubs_[i % stubs_.size()].get()));
  }
  job_.pass_on = [this](const proto::Relayed& relayed) {
    const Clock::time_point received = Clock::now();
    proto::CoordinatorMessage message;
    if (!message.ParseFromString(relayed.message())) {
      return job_.progress.Fail("a message to pass on is malformed");
    }
    for (const auto& e : executors_) {
      e->TakeRelayed(relayed, message, received);
    }
  };
}

Load::~Load() {
  for (const auto& executor : executors_) executor->Cut();
  for (const auto& executor : executors_) executor->AwaitDone();
}

absl::StatusOr<Cost> Load::Used() const {
  Cost cost;
  absl::StatusOr<double> seconds = CpuSeconds(getpid());
  if (!seconds.ok()) return seconds.status();
  cost.load_cpu = *seconds;
  if (options_.coordinator != 0) {
    seconds = CpuSeconds(options_.coordinator);
    if (!seconds.ok()) return seconds.status();
    cost.coordinator_cpu = *seconds;
  }
  cost.traffic = {job_.sent_messages, job_.sent_bytes, job_.received_messages,
                  job_.received_bytes};
  return cost;
}

absl::StatusOr<Memory> Load::CoordinatorMemory() const {
  if (options_.coordinator == 0) return Memory();
  return MemoryOf(options_.coordinator);
}

absl::StatusOr<Start> Load::Connect() {
  for (const Phase phase : {kWelcomed, kStarted, kConnected}) {
    job_.progress.Expect(phase, options_.nodes);
  }
  const absl::StatusOr<Cost> before = Used();
  if (!before.ok()) return before.status();
  const Clock::time_point begin = Clock::now();
  for (const auto& executor : executors_) executor->Open();
  Start start;
  for (const auto& [phase, seconds] : {std::pair(kWelcomed, &start.welcomed),
                                       {kStarted, &start.started},
                                       {kConnected, &start.connected}}) {
    const auto last = job_.progress.Await(phase, options_.limit);
    if (!last.ok()) return last.status();
    *seconds = Seconds(*last - begin);
  }
  executors_.front()->SayRelaysReady();
  const absl::StatusOr<Cost> after = Used();
  if (!after.ok()) return after.status();
  start.cost = Difference(*after, *before);
  return start;
}

absl::StatusOr<Steps> Load::Run(Pattern pattern, size_t steps, double seconds) {
  Steps out;
  const Clock::time_point begin = Clock::now();
  while (out.steps < steps || Seconds(Clock::now() - begin) < seconds) {
    if (absl::Status s = Step(pattern, &out); !s.ok()) return s;
  }
  return out;
}

absl::Status Load::Step(Pattern pattern, Steps* out) {
  ++step_;
  for (const auto& executor : executors_) executor->Prepare(step_);
  const size_t runs = executors_.front()->runs();
  job_.progress.Expect(kExecuted, options_.nodes);
  if (pattern == Pattern::kLate) {
    if (absl::Status s = SubmitAllButOne(); !s.ok()) return s;
  }
  const absl::StatusOr<Cost> before = Used();
  if (!before.ok()) return before.status();
  const Clock::time_point begin = Clock::now();
  Submit(pattern);
  const auto last = job_.progress.Await(kExecuted, options_.limit);
  if (!last.ok()) return last.status();
  // The next step's messages are not to meet this one's acknowledgements.
  const auto quiet = job_.progress.Await(kReported, options_.limit);
  if (!quiet.ok()) return quiet.status();
  const absl::StatusOr<Cost> after = Used();
  if (!after.ok()) return after.status();
  const Cost cost = Difference(*after, *before);
  Cost& sum = out->cost;
  sum.coordinator_cpu += cost.coordinator_cpu;
  sum.load_cpu += cost.load_cpu;
  sum.traffic.sent_messages += cost.traffic.sent_messages;
  sum.traffic.sent_bytes += cost.traffic.sent_bytes;
  sum.traffic.received_messages += cost.traffic.received_messages;
  sum.traffic.received_bytes += cost.traffic.received_bytes;
  ++out->steps;
  out->seconds += Seconds(*last - begin);
  out->runs += executors_.front()->runs() - runs;
  Measure(out);
  return CheckOrder();
}

absl::Status Load::SubmitAllButOne() {
  job_.progress.Expect(kReported, options_.nodes - 1);
  for (size_t i = 0; i + 1 < executors_.size(); ++i) {
    executors_[i]->Submit(job_.tensors.size());
  }
  return job_.progress.Await(kReported, options_.limit).status();
}

void Load::Submit(Pattern pattern) {
  const size_t all = job_.tensors.size();
  if (pattern == Pattern::kLate) {
    job_.progress.Expect(kReported, 1);
    return executors_.back()->Submit(all);
  }
  job_.progress.Expect(kReported, options_.nodes);
  if (pattern == Pattern::kTogether) {
    for (const auto& executor : executors_) executor->Submit(all);
    return;
  }
  const Clock::time_point begin = Clock::now();
  for (size_t ready = 0; ready < all;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const double part = Seconds(Clock::now() - begin) / Seconds(options_.pace);
    const size_t now =
        std::min(all, static_cast<size_t>(part * static_cast<double>(all)));
    if (now == ready) continue;
    ready = now;
    for (const auto& executor : executors_) executor->Submit(ready);
  }
}

void Load::Measure(Steps* out) const {
  Clock::time_point last_report, last_run;
  for (size_t t = 0; t < job_.tensors.size(); ++t) {
    Clock::time_point reported, executed;
    for (const auto& executor : executors_) {
      reported = std::max(reported, executor->reported()[t]);
      executed = std::max(executed, executor->executed()[t]);
    }
    out->operation_ms.push_back(Milliseconds(executed - reported));
    last_report = std::max(last_report, reported);
    last_run = std::max(last_run, executed);
  }
  out->step_ms.push_back(Milliseconds(last_run - last_report));
}

absl::Status Load::CheckOrder() const {
  for (const auto& executor : executors_) {
    if (executor->runs_digest() == executors_.front()->runs_digest()) continue;
    return absl::InternalError(
        absl::StrCat("step ", step_, ": two nodes have got different runs"));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> Load::Finish(Ending ending) {
  const bool cut = ending == Ending::kStreamBreaks;
  job_.progress.Expect(kEnded, options_.nodes - (cut ? 1 : 0));
  const Clock::time_point begin = Clock::now();
  if (ending == Ending::kAllLeave) {
    for (const auto& executor : executors_) executor->Leave();
  } else if (cut) {
    executors_.back()->Cut();
  } else {
    executors_.back()->LoseRank();
  }
  const auto last = job_.progress.Await(kEnded, options_.limit);
  if (!last.ok()) return last.status();
  return Seconds(*last - begin);
}

}  // namespace maypole::scale
