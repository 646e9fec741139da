// Executor: speaks for the executor of one node, without ranks, board or data.
//
// Purpose: a coordinator cannot tell it from a real executor. It connects,
// reports its ranks as ready, exchanges endpoints, and reports the tensors of
// each step as worker/core/operations/presence.h does: at once if no report is
// unacknowledged, otherwise with all others that have become ready by the time
// the acknowledgement comes. The message that empties the queue also says that
// the ranks wait for the first tensor, if that is not in a run yet. It
// acknowledges what it receives as worker/network/grpc_transport.cc does.
//
// The first executor gives messages that executors pass on (docs/relays.md)
// directly to all; they count as received when the first one has them. So the
// time of the other hops is not measured here.
//
//   Job job(...);
//   Executor executor(&job, 0, stub);
//   executor.Open();                      // Progress: when it is connected
//   executor.Prepare(step);               // builds the reports
//   executor.Submit(job.tensors.size());  // Progress: when all has run
//
// Thread contract: any thread may call the methods; gRPC calls the On*()
// methods. Not deleted before the stream's end (AwaitDone()).
//
// Invariants: runs are checked as they come: their numbers have no gaps, each
// operation of a step is in one run, with the step's generation.
#ifndef MAYPOLE_TESTS_SCALE_EXECUTOR_H_
#define MAYPOLE_TESTS_SCALE_EXECUTOR_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/wire/link.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "proto/coordinator.grpc.pb.h"
#include "tests/bench/cpp/resnet50.h"
#include "tests/scale/progress.h"

namespace maypole::scale {

// What the executors of a job have in common.
struct Job {
  Job(std::string name, size_t nodes, size_t ranks_per_node,
      std::vector<bench::Parameter> tensors, size_t address_bytes);

  const std::string name;
  const size_t nodes;
  const size_t ranks_per_node;
  const std::vector<bench::Parameter> tensors;    // in the order of a step
  const size_t address_bytes;                     // of each endpoint
  std::unordered_map<std::string, size_t> index;  // of a tensor's name
  // The coordinator's id of each tensor; 0 before the first run.
  std::vector<std::atomic<uint32_t>> ids;
  std::atomic<uint64_t> sent_messages{0};
  std::atomic<uint64_t> sent_bytes{0};
  std::atomic<uint64_t> received_messages{0};
  std::atomic<uint64_t> received_bytes{0};
  // Gives the message to all executors.
  std::function<void(const proto::Relayed&)> pass_on;
  Progress progress;
};

class Executor final
    : public grpc::ClientBidiReactor<proto::ExecutorMessage,
                                     proto::CoordinatorMessage> {
 public:
  // `job` and `stub` must outlive the executor.
  Executor(Job* job, size_t node, proto::Coordinator::Stub* stub);

  void Open();
  // Builds the reports of the step, which counts from 1. The step before is
  // complete.
  void Prepare(uint32_t step);
  // The first `tensors` of the step are ready on the node's ranks.
  void Submit(size_t tensors);
  // All nodes are connected. Of the first node.
  void SayRelaysReady();
  // Takes this node's part of what was passed on; `message` is what all get.
  void TakeRelayed(const proto::Relayed& relayed,
                   const proto::CoordinatorMessage& message,
                   Clock::time_point received);
  // The node's first rank dies.
  void LoseRank();
  // All of the node's ranks leave, as at the end of a program. Progress says
  // kEnded when the coordinator has acknowledged that.
  void Leave();
  // Cuts the stream, as the death of the node would. It is not resumed.
  void Cut();
  // Waits until the stream has ended.
  void AwaitDone();

  // Of the last step, by tensor: when the report was written, and when the
  // Execute came.
  const std::vector<Clock::time_point>& reported() const { return reported_; }
  const std::vector<Clock::time_point>& executed() const { return executed_; }
  // Equal on all nodes whose runs were equal so far.
  uint64_t runs_digest() const { return digest_; }
  size_t runs() const { return last_run_; }

 private:
  using Out = proto::ExecutorMessage;
  using In = proto::CoordinatorMessage;
  // The link keeps what is written until it is acknowledged, without a copy.
  struct Numbered {
    std::shared_ptr<Out> message;
    void set_sequence(uint64_t n) { message->set_sequence(n); }
    void set_acknowledged(uint64_t n) { message->set_acknowledged(n); }
  };

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  // All with the lock.
  void Handle(const In& message);
  // Takes it in its turn: `early_` has those that came before their turn.
  void Take(const In& message, uint64_t sequence, uint64_t acknowledged,
            Clock::time_point received);
  void OnNumbers(uint64_t acknowledged);
  void OnPayload(const In& message, Clock::time_point received);
  void OnStart(const proto::EpochStart& start);
  void TakeRun(const proto::Run& run, Clock::time_point now);
  void Send(std::shared_ptr<Out> message);
  void Queue(Numbered numbered);
  void Write();
  void Report();
  void Fail(const std::string& what);

  Job* const job_;
  const size_t node_;
  const std::string name_;
  proto::Coordinator::Stub* const stub_;
  grpc::ClientContext context_;

  std::mutex mutex_;
  std::condition_variable ended_;
  Link<Numbered> link_{4096};
  std::deque<Numbered> outgoing_;  // the first is being written
  std::map<uint64_t, std::pair<In, Clock::time_point>> early_;
  uint32_t relay_fan_out_ = 0;
  In incoming_;
  bool cut_ = false;
  bool leaving_ = false;
  bool done_ = false;
  uint64_t epoch_ = 0;
  uint32_t step_ = 0;
  std::vector<proto::PresentOperation> reports_;  // of the step
  size_t submitted_ = 0;
  size_t taken_ = 0;          // of reports_: those in messages
  bool urgent_said_ = false;  // in this step
  bool all_acknowledged_ = true;
  uint64_t unacknowledged_ = 0;  // number of the last presence message; 0: none
  size_t executed_count_ = 0;
  std::vector<size_t> by_id_;  // a tensor's index by the coordinator's id
  uint64_t last_run_ = 0;
  uint64_t digest_ = 0xcbf29ce484222325;
  std::vector<Clock::time_point> reported_;
  std::vector<Clock::time_point> executed_;
};

}  // namespace maypole::scale

#endif  // MAYPOLE_TESTS_SCALE_EXECUTOR_H_
